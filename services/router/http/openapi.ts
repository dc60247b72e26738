/** The API's description (OpenAPI 3.1): every route, and bodies by the schemas that requests are checked with. */
import { z } from 'zod';
import { softwareVersion } from '../../../shared/base/version.ts';
import { STREAM_PARTS } from '../observe/live_stream.ts';
import { PHASES } from '../observe/request_row.ts';
import { scopes } from '../metrics/exposition.ts';
import { EVENT_KINDS } from '../observe/event_kinds.ts';
import type { ErrorForm } from '../api/errors.ts';
import type { Surfaces } from '../api/surfaces.ts';

/** Description of a route, and the bodies that it accepts. */
interface Operation {
  readonly summary: string;
  readonly bodies?: readonly string[];
  /** Content type of its answer, when that is not JSON. */
  readonly type?: string;
}

/** The router's own routes, all of which are GET. @public for config/reference.js */
export const operations: Readonly<Record<string, Operation>> = {
  '/v1/models': { summary: 'Lists the served models' },
  '/v1/models/{model}': { summary: 'Describes a served model' },
  '/models': { summary: 'The same as /v1/models' },
  '/models/{model}': { summary: 'The same as /v1/models/{model}' },
  '/version': { summary: 'Names the version of this software' },
  '/load': { summary: 'Counts the prompts in flight' },
  '/tokenizer_info': { summary: "Describes a model's tokenizer, in the keys of tokenizer_config.json" },
  '/openapi.json': { summary: 'This document' },
  '/health': { summary: 'Says whether requests can be answered' },
  '/v1/health': { summary: 'The same as /health' },
  '/readyz': { summary: 'The same as /health' },
  '/livez': { summary: 'Says that the process answers, whatever it can do' },
  '/ping': { summary: 'Says by its status alone whether requests can be answered' },
  '/metrics': { summary: 'Metrics of the router and of the cluster, for Prometheus', type: 'text/plain' },
  '/api/pool': { summary: 'Health, processes, their load, the blocks in each tier, and the placement policy' },
  '/api/events': { summary: 'What happened in the cluster: members that came, went, failed or were refused; alarms' },
  '/api/blocks': { summary: 'The prefix tree of all blocks, as runs of blocks with the same holders' },
  '/api/reuse': { summary: "Hit ratio against the capacity of a model's pool, from a sample of the blocks" },
  '/api/history': { summary: 'Values of the cluster, a role, a model or a node over time' },
  '/api/stream': {
    summary: 'What changes in the cluster, each second, as server-sent events `tick`',
    type: 'text/event-stream',
  },
  '/api/requests': { summary: 'Requests in flight and finished ones, with their attempts and times, or as rows' },
  '/api/requests/{id}': { summary: 'All that is known of one request' },
  '/api/profile': { summary: 'CPU profile of the router as a Chrome trace; `seconds`, 1 to 60' },
  '/api/decisions': { summary: 'Recent decisions of the conductor, with their reasons' },
  '/api/hardware': { summary: "A model's engines as a replay of traces simulates them, measured" },
  '/dashboard/login': { summary: 'The page on which an admin logs in to the dashboard with a key', type: 'text/html' },
  '/dashboard/logout': { summary: 'Ends a log-in', type: 'text/html' },
  '/api/session': { summary: 'Names the key with which a browser has logged in' },
  '/dashboard/app.js': { summary: 'The script of the dashboard', type: 'text/javascript' },
  '/dashboard/app.css': { summary: 'The style sheet of the dashboard', type: 'text/css' },
  '/dashboard/icon.svg': { summary: 'The icon of the dashboard', type: 'image/svg+xml' },
  '/dashboard': { summary: 'A live page over the cluster', type: 'text/html' },
  '/': { summary: 'Leads to the dashboard', type: 'text/html' },
};

/** Query parameters of the router's own routes, by path. @public for config/reference.js */
export const queries: Readonly<Record<string, readonly { readonly name: string; readonly schema: object }[]>> = {
  '/tokenizer_info': [{ name: 'model', schema: { type: 'string' } }],
  '/metrics': [
    {
      name: 'scope',
      schema: {
        type: 'string',
        enum: [...scopes],
        description: 'series of this router or of the cluster; both without it',
      },
    },
  ],
  '/api/hardware': [{ name: 'model', schema: { type: 'string' } }],
  '/api/blocks': [
    { name: 'root', schema: { type: 'string', pattern: '^[0-9a-f]{16}$' } },
    { name: 'depth', schema: { type: 'integer', minimum: 1, maximum: 1_000 } },
    { name: 'limit', schema: { type: 'integer', minimum: 1, maximum: 5_000 } },
  ],
  '/api/requests': [
    { name: 'limit', schema: { type: 'integer', minimum: 1, maximum: 1_000 } },
    { name: 'view', schema: { type: 'string', enum: ['full', 'rows'] } },
    { name: 'cursor', schema: { type: 'string', description: '`next` of the page before' } },
    { name: 'phase', schema: { type: 'string', description: `separated by commas: ${PHASES.join(', ')}` } },
    ...['model', 'tenant', 'node', 'endpoint', 'error', 'reason', 'q'].map((name) => ({
      name,
      schema: { type: 'string' },
    })),
    { name: 'min_ttft_ms', schema: { type: 'integer', minimum: 0 } },
    { name: 'since', schema: { type: 'integer', description: 'earliest start, in ms since 1970' } },
    { name: 'slowest', schema: { type: 'integer', enum: [0, 1] } },
  ],
  '/api/reuse': [{ name: 'model', schema: { type: 'string' } }],
  '/api/history': [
    { name: 'scope', schema: { type: 'string', description: 'cluster, role:NAME, model:NAME or node:NAME' } },
    { name: 'series', schema: { type: 'string', description: 'names separated by commas' } },
    ...['from', 'to', 'step'].map((name) => ({ name, schema: { type: 'integer', minimum: 0 } })),
  ],
  '/api/stream': STREAM_PARTS.map((name) => ({ name, schema: { type: 'integer', enum: [0, 1] } })),
  '/api/events': [
    { name: 'since', schema: { type: 'integer', minimum: 0 } },
    { name: 'kind', schema: { type: 'string', description: `separated by commas: ${EVENT_KINDS.join(', ')}` } },
    { name: 'node', schema: { type: 'string' } },
    { name: 'limit', schema: { type: 'integer', minimum: 1 } },
  ],
  '/api/decisions': [{ name: 'limit', schema: { type: 'integer', minimum: 1 } }],
};

const refTo = (name: string): { readonly $ref: string } => ({ $ref: `#/components/schemas/${name}` });

/** The endpoints, as far as the document describes them. */
export type DescribedSurfaces = Pick<Surfaces, 'paths' | 'routes' | 'errorFormOf'>;

/** Returns the document. `routes` has the methods of each route, with `*` at the end of one that takes a model's name. */
export function openApiDocument(routes: ReadonlyMap<string, readonly string[]>, surfaces: DescribedSurfaces): object {
  const paths: Record<string, object> = {};
  const described = { ...operations, ...surfaceOperations(surfaces) };
  const operationOf = (path: string): object =>
    operationJson(path, described[path] ?? { summary: path }, surfaces.errorFormOf(path));
  for (const [url, methods] of routes) {
    const path = url.replace('*', '{model}');
    const own = methods.filter((method) => method !== 'HEAD');
    paths[path] = Object.fromEntries(own.map((method) => [method.toLowerCase(), operationOf(path)]));
  }
  const bodies = surfaces.paths.flatMap(([, { describe }]) => Object.entries(describe.schemas));
  const schemas = Object.fromEntries(bodies.map(([name, schema]) => [name, bodySchema(schema)]));
  const errors = Object.fromEntries(
    surfaces.paths.map(([, { errors: form }]): [string, object] => [form.schema.name, form.schema.json]),
  );
  return {
    openapi: '3.1.0',
    info: {
      title: 'Penstock',
      version: softwareVersion,
      description: 'The API of OpenAI, as vLLM extends it, and the Messages of Anthropic.',
    },
    paths,
    components: { schemas: { ...schemas, ...errors } },
  };
}

/** Returns the operations of the endpoints and of what they keep, by path. */
function surfaceOperations({ paths, routes }: DescribedSurfaces): Readonly<Record<string, Operation>> {
  const ofPaths = paths.map(
    ([
      path,
      {
        paths: [first],
        describe,
      },
    ]): [string, Operation] => {
      const summary = path === first ? describe.summary : `The same as ${first}`;
      return [path, { summary, bodies: Object.keys(describe.schemas) }];
    },
  );
  const ofRoutes = routes.map(({ path, surface: { describe } }): [string, Operation] => [
    path,
    { summary: describe.routes ?? path },
  ]);
  return Object.fromEntries([...ofPaths, ...ofRoutes]);
}

function operationJson(path: string, operation: Operation, errors: ErrorForm): object {
  const { summary, bodies: names = [], type = 'application/json' } = operation;
  const [first, ...others] = names;
  const schema = first && (others.length > 0 ? { anyOf: names.map(refTo) } : refTo(first));
  const inPath = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => {
    return { name, in: 'path', required: true, schema: { type: 'string' } };
  });
  const parameters = [...inPath, ...(queries[path] ?? []).map((query) => ({ in: 'query', ...query }))];
  return {
    summary,
    ...(parameters.length > 0 ? { parameters } : {}),
    ...(schema ? { requestBody: { required: true, content: { 'application/json': { schema } } } } : {}),
    responses: {
      200: {
        description: summary,
        content: { [type]: { schema: type === 'application/json' ? {} : { type: 'string' } } },
      },
      default: {
        description: 'An error',
        content: { 'application/json': { schema: refTo(errors.schema.name) } },
      },
    },
  };
}

/** Returns the JSON schema of a body. Seeds are bigints to the check, which JSON schemas have no word for. */
function bodySchema(schema: z.ZodType): object {
  const json = z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' });
  return { ...json, description: 'null is the same as leaving a key out. A key that is not listed is ignored.' };
}
