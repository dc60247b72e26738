/** The page of the API: endpoints from the router's registry, parameters from the schemas that bodies are checked with, and the section of the notes that explains each. */
import { z } from 'zod';
import { NOTE, table } from './reference_table.js';
import { valueText } from './value_text.js';

/** Descriptions by which `only` and `hint` of surfaces/openai/parameter_schemas.ts mark what they make. */
const UNSUPPORTED = /^Not supported; /;
const WITHOUT_EFFECT = 'Changes no output';

const code = (text) => `\`${text}\``;
const codes = (names) => names.map(code).join(', ');
const anchorOf = (heading) =>
  heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-');

/**
 * Returns a function that links a parameter to the first section of the notes that has its name in a code span. A section that begins with
 * the path of an endpoint is about this endpoint alone, and goes before the others there.
 */
function noteLinks(notes) {
  const sections = notes
    .split(/^## /m)
    .slice(1)
    .map((section) => {
      const [heading, ...lines] = section.split('\n');
      const text = lines.join('\n').trim();
      const names = new Set([...text.matchAll(/`([a-z_0-9]+)(?:[:.] ?[^`]*)?`/g)].map(([, name]) => name));
      return { heading, names, path: /^`(\/[^`]+)`/.exec(text)?.[1] };
    });
  return (parameter, paths) => {
    const found = sections.filter(({ names, path }) => names.has(parameter) && (!path || paths.includes(path)));
    const best = found.find(({ path }) => path) ?? found[0];
    return best && `[${best.heading}](API_NOTES.md#${anchorOf(best.heading)})`;
  };
}

/** Returns the schemas of all bodies by name, each with the endpoints that take it. */
function bodiesOf(surfaces) {
  const bodies = new Map();
  for (const { paths, describe } of surfaces) {
    for (const [name, schema] of Object.entries(describe.schemas)) {
      const body = bodies.get(name) ?? {
        json: z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' }),
        paths: [],
      };
      body.paths.push(paths[0]);
      bodies.set(name, body);
    }
  }
  return bodies;
}

const sameJson = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** Returns one body's section. `earlier` has the bodies above it: a parameter that has the same values there is only named. */
function bodySection(name, { json, paths }, earlier, linkOf) {
  const required = new Set(json.required ?? []);
  const own = new Map();
  const shared = new Map();
  for (const [parameter, value] of Object.entries(json.properties)) {
    const before = earlier.find(([, one]) => sameJson(one.json.properties[parameter], value));
    if (before && !required.has(parameter)) shared.set(before[0], [...(shared.get(before[0]) ?? []), parameter]);
    else own.set(parameter, value);
  }
  const entries = [...own];
  const isRefused = ([, { description }]) => UNSUPPORTED.test(description ?? '');
  const isHint = ([, { description }]) => description === WITHOUT_EFFECT;
  const used = entries.filter((entry) => !isRefused(entry) && !isHint(entry));
  const rowOf = ([parameter, value]) => [
    required.has(parameter) ? `${code(parameter)} (required)` : code(parameter),
    valueText(value),
    [value.description, linkOf(parameter, paths)].filter(Boolean).join('. '),
  ];
  const refusedBy = new Map();
  for (const [parameter, { enum: values }] of entries.filter(isRefused)) {
    const accepted = values.map((value) => code(JSON.stringify(value))).join(', ');
    refusedBy.set(accepted, [...(refusedBy.get(accepted) ?? []), parameter]);
  }
  const refused = [...refusedBy].map(([accepted, names]) => [accepted, codes(names)]);
  const hints = entries.filter(isHint).map(([parameter]) => parameter);
  return [
    `### ${name}`,
    `The body of ${codes(paths)}.`,
    used.length > 0 && table(['parameter', 'value', 'notes'], used.map(rowOf)),
    ...[...shared].map(([other, names]) => `As in [${other}](#${anchorOf(other)}): ${codes(names)}.`),
    hints.length > 0 && `Accepted with any value, and changes no output: ${codes(hints)}.`,
    refused.length > 0 &&
      `Not supported: refused with any other value than these.\n\n${table(['accepted', 'parameters'], refused)}`,
  ]
    .filter(Boolean)
    .join('\n\n');
}

function endpointRows(surfaces) {
  return surfaces.flatMap(({ paths: [path, ...others], describe, counts, events, errors, routes = [] }) => {
    const form = code(errors.schema.name);
    const bodies = Object.keys(describe.schemas).map((name) => `[${name}](#${anchorOf(name)})`);
    const own = [`POST ${code(path)}`, codes(others), describe.summary, bodies.join(' or ')];
    const kept = [...new Set(routes.map((route) => route.path))].map((one) => {
      const methods = routes.filter((route) => route.path === one).map(({ method }) => method);
      return [`${methods.join(', ')} ${code(one)}`, '', describe.routes ?? '', '', 'no', 'none', form];
    });
    return [[...own, events ? 'yes' : 'no', counts, form], ...kept];
  });
}

function routeRows(operations, queries, isShown) {
  const paths = Object.keys(operations).filter(isShown);
  const queryText = ({ name, schema }) =>
    `${code(name)}: ${[valueText(schema), schema.description].filter(Boolean).join(', ')}`;
  return paths.map((path) => [code(path), operations[path].summary, (queries[path] ?? []).map(queryText).join('; ')]);
}

/** Returns the page. `notes`: text of API_NOTES.md. */
export function apiPage({ surfaces, operations, queries, notes }) {
  const bodies = [...bodiesOf(surfaces)];
  const linkOf = noteLinks(notes);
  const forms = new Map(surfaces.map(({ errors }) => [errors.schema.name, errors.schema.json]));
  const isInside = (path) => path.startsWith('/api/');
  const routeHead = ['path', 'answer', 'query parameters'];
  return `${NOTE}

# The API

Every endpoint of the router, and the parameters of every body. [API_NOTES](API_NOTES.md) explains what needs more than a line: tools, structured output, streams, limits, headers of an answer.
\`/openapi.json\` is the same description for programs. Made from \`surfaces/registry.ts\`, the schemas that bodies are checked with, and \`http/openapi.ts\`;
[how to add an endpoint or a parameter](README.md#to-add).

## Endpoints with a body

Bodies are JSON. Also at: the path of the same endpoint at other servers. Streams: whether \`stream: true\` has server-sent events as its answer. Counted as: the counts and rates of \`/metrics\`
that a request belongs to; \`none\` asks no engine for tokens or an embedding.

${table(['endpoint', 'also at', 'answer', 'body', 'streams', 'counted as', 'errors'], endpointRows(surfaces))}

Errors have one of these forms, at every status and in streams:

${table(
  ['form', 'body'],
  [...forms].map(([name, json]) => [code(name), valueText(json)]),
)}

## Parameters of bodies

A parameter means what OpenAI's API documents, else what vLLM's does; at \`/v1/messages\` what Anthropic's does. The linked notes say what differs, and what is our own. A body needs its prompt (\`messages\`, \`prompt\`, \`input\`,
\`tokens\`); of the other parameters only those marked so are required. \`null\` is the same as leaving a parameter out. A key that is not listed is ignored or refused by name: [Parameters](API_NOTES.md#parameters).

${bodies.map(([name, body], index) => bodySection(name, body, bodies.slice(0, index), linkOf)).join('\n\n')}

## Routes without a body

All are GET. \`/health\`, \`/v1/health\` and \`/ping\` answer 200 while requests can be answered, else 503.

${table(
  routeHead,
  routeRows(operations, queries, (path) => !isInside(path)),
)}

## Look inside

GET too; [INSPECTION](INSPECTION.md) explains what each answers.

${table(routeHead, routeRows(operations, queries, isInside))}
`;
}
