/**
 * The tools of `/v1/responses` as tools of a chat: `custom` tools become functions of one text, those of a `namespace` functions with
 * the namespace in their name, and tools of other kinds are left out. A call is told in the words of the request again.
 */
import { z } from 'zod';
import { isObject } from '../../api/neutral_value.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import type { ChatFields } from '../openai/parameters.ts';
import { toolFields } from '../openai/tools.ts';

/** Name of the one parameter of a custom tool's function. */
const CUSTOM_PARAMETER = 'input';

const tools = z.array(z.looseObject({ type: z.string() }));
const choice = z.union(
  [z.enum(['none', 'auto', 'required']), z.looseObject({ type: z.string() })],
  'none, auto, required, or an object such as {"type": "function", "name": …}',
);

/** Parameters of tools, at responses. */
export const responseToolFields = {
  tools: tools.optional(),
  tool_choice: choice.optional(),
  parallel_tool_calls: z.boolean().optional(),
};
type Given = Readonly<Record<string, unknown>>;

/** A tool as a request names it. */
export interface NamedTool {
  readonly name: string;
  readonly namespace?: string;
  readonly isCustom: boolean;
}

/** Tools of a request, in a chat's form. */
export interface ResponseTools {
  readonly fields: Pick<ChatFields, 'tools' | 'tool_choice'>;
  /** The tools as the request names them, by the name of their function. */
  readonly named: Readonly<Record<string, NamedTool>>;
  /** Path of each tool in the body. */
  readonly paths: readonly string[];
  /** Tools that were left out, with their kinds. */
  readonly ignored: readonly string[];
}

interface ReadTool extends NamedTool {
  readonly path: string;
  readonly described: unknown;
}

/** Returns the name of a tool's function. */
export function flatName(name: string, namespace: unknown): string {
  if (typeof namespace !== 'string' || namespace === '') return name;
  return /[_.-]$/.test(namespace) ? namespace + name : `${namespace}.${name}`;
}

/** Returns the arguments of a custom tool's function for a text. */
export function customArguments(input: string): string {
  return JSON.stringify({ [CUSTOM_PARAMETER]: input });
}

/** Returns the text that a custom tool is called with; arguments of another form are that text themselves. */
export function customInput(json: string): string {
  try {
    const values: unknown = JSON.parse(json);
    const input = isObject(values) ? values[CUSTOM_PARAMETER] : undefined;
    return typeof input === 'string' ? input : json;
  } catch {
    return json;
  }
}

/** Returns the tools in a chat's form. @throws ParameterFailure naming what is wrong with them */
export function readResponseTools(
  given: readonly Given[] = [],
  wanted: z.infer<typeof choice> = 'auto',
): ResponseTools {
  const ignored: string[] = [];
  const read = given.flatMap((tool, index) => readTool(tool, `tools.${index}`, undefined, ignored));
  const { mode, names } = readChoice(wanted);
  const wantedNames = names && new Set(names);
  const allowed = wantedNames ? read.filter(({ name, namespace }) => wantedNames.has(flatName(name, namespace))) : read;
  const chosen = allowed.map(({ described }) => described);
  const result = toolFields.tools.safeParse(chosen);
  if (!result.success) {
    const [issue] = result.error.issues;
    const [index, ...rest] = issue?.path ?? [];
    const path = [allowed[Number(index)]?.path ?? 'tools', ...rest.filter((key) => key !== 'function')].join('.');
    throw new ParameterFailure(`${path}: ${issue?.message ?? 'invalid'}`, path);
  }
  return {
    fields: { tools: result.data, tool_choice: mode },
    named: Object.fromEntries(
      allowed.map(({ name, namespace, isCustom }) => [
        flatName(name, namespace),
        { name, ...(namespace === undefined ? {} : { namespace }), isCustom },
      ]),
    ),
    paths: allowed.map(({ path }) => path),
    ignored,
  };
}

function readTool(tool: Given, path: string, namespace: string | undefined, ignored: string[]): ReadTool[] {
  const { type, name, description, parameters, strict } = tool;
  if (type === 'namespace' && namespace === undefined) {
    const { tools: inside } = tool;
    if (typeof name !== 'string') throw new ParameterFailure(`${path}.name: a text`, `${path}.name`);
    const list = tools.safeParse(inside);
    if (!list.success) throw new ParameterFailure(`${path}.tools: a list of tools, each with a type`, `${path}.tools`);
    return list.data.flatMap((one, index) => readTool(one, `${path}.tools.${index}`, name, ignored));
  }
  if (type !== 'function' && type !== 'custom') {
    ignored.push(`${path}.${String(type)}`);
    return [];
  }
  // After its namespace an empty name would be one that is allowed.
  if (typeof name !== 'string' || name === '')
    throw new ParameterFailure(`${path}.name: a text that is not empty`, `${path}.name`);
  const isCustom = type === 'custom';
  const described = {
    name: flatName(name, namespace),
    description,
    ...(isCustom ? { parameters: CUSTOM_PARAMETERS } : { parameters, strict }),
  };
  const named = { name, isCustom, ...(namespace === undefined ? {} : { namespace }) };
  return [{ ...named, path, described: { type: 'function', function: described } }];
}

const CUSTOM_PARAMETERS = {
  type: 'object',
  properties: { [CUSTOM_PARAMETER]: { type: 'string' } },
  required: [CUSTOM_PARAMETER],
};

interface Choice {
  readonly mode: ChatFields['tool_choice'];
  /** Names of the only tools that may be called; undefined: all. */
  readonly names?: readonly string[];
}

function readChoice(wanted: z.infer<typeof choice>): Choice {
  if (typeof wanted === 'string') return { mode: wanted };
  const { type, mode, tools: allowed } = wanted as Given;
  const nameAt = (tool: Given, path: string): string => {
    if (typeof tool['name'] === 'string') return flatName(tool['name'], tool['namespace']);
    throw new ParameterFailure(`${path}.name: is missing`, `${path}.name`);
  };
  if (type === 'function' || type === 'custom')
    return { mode: { type: 'function', function: { name: nameAt(wanted, 'tool_choice') } } };
  if (type !== 'allowed_tools') {
    throw new ParameterFailure(
      `tool_choice.type: ${String(type).slice(0, 64)} is not supported; use function, custom or allowed_tools`,
      'tool_choice.type',
    );
  }
  if ((mode !== 'auto' && mode !== 'required') || !Array.isArray(allowed))
    throw new ParameterFailure('tool_choice: allowed_tools needs mode, auto or required, and tools', 'tool_choice');
  const names = allowed.flatMap((tool: unknown, index) => {
    if (isObject(tool) && tool['type'] !== 'function' && tool['type'] !== 'custom') return [];
    return [nameAt(isObject(tool) ? tool : {}, `tool_choice.tools.${index}`)];
  });
  return { mode, names };
}
