/** The tools of a chat request: what the client may define and choose, and what it wishes of calls. */
import { z } from 'zod';
import { withoutNulls } from '../../../../shared/base/without_nulls.ts';
import type { ToolSchemas } from '../../../../shared/text/output/call_writer.ts';
import type { ToolDefinition } from '../../../../shared/text/template_input.ts';
import { exactTextOf } from '../../api/exact_texts.ts';
import { isObject } from '../../api/neutral_value.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';

/** Upper bound of the tools of one request: each is part of the prompt. */
export const MAX_TOOLS = 128;

/** Schema of a tool's name. */
export const toolName = z.string().regex(/^[\w.-]{1,64}$/, 'letters, digits and _ . -, at most 64');

/** A JSON schema, as the very object that was parsed. */
export const schemaObject = z.custom<Record<string, unknown>>(isObject, 'an object');

const functionSchema = z.looseObject({
  name: toolName,
  description: z.string().nullish(),
  parameters: schemaObject.nullish(),
  strict: z.boolean().nullish(),
});

const toolSchema = z.looseObject({
  type: z.literal('function', 'only tools of type "function" are supported'),
  function: functionSchema,
});

/** Schemas of the parameters that chats have for tools. */
export const toolFields = {
  // An empty text is what some clients send for no tools.
  tools: z
    .preprocess(
      (value) => (value === '' ? [] : value),
      z.array(toolSchema).max(MAX_TOOLS, `at most ${MAX_TOOLS} tools`),
    )
    .optional(),
  tool_choice: z
    .union(
      [
        z.enum(['none', 'auto', 'required']),
        z.object({ type: z.literal('function'), function: z.object({ name: toolName }) }),
      ],
      'none, auto, required, or {"type": "function", "function": {"name": …}}',
    )
    .optional(),
  parallel_tool_calls: z.boolean().optional(),
};

/** Whether and how the model is to call tools: as it likes, not at all, some tool, or the named one. */
type ToolChoice = 'auto' | 'none' | 'required' | { readonly name: string };

/** The tools of a request, and what it wishes of calls. */
export interface ToolWish {
  /** Empty when the request has none, or wants none to be called. */
  readonly tools: readonly ToolDefinition[];
  readonly choice: ToolChoice;
  /** Whether an answer may have several calls. */
  readonly isParallel: boolean;
}

/** A request without tools. */
export const NO_TOOLS: ToolWish = { tools: [], choice: 'none', isParallel: true };

type ToolBody = z.infer<z.ZodObject<typeof toolFields>>;

/** Reads the tools of a body. @throws ParameterFailure for two tools of one name, and for a choice of a tool that is not there */
export function readTools({
  tools = [],
  tool_choice: choice = 'auto',
  parallel_tool_calls: isParallel = true,
}: ToolBody): ToolWish {
  const names = new Set<string>();
  for (const [index, { function: described }] of tools.entries()) {
    const path = `tools.${index}.function.name`;
    if (names.has(described.name))
      throw new ParameterFailure(`${path}: a tool named ${described.name} stands before it`, path);
    names.add(described.name);
  }
  if (choice === 'required' && tools.length === 0)
    throw new ParameterFailure('tool_choice: required needs at least one tool in tools', 'tool_choice');
  const named = typeof choice === 'string' ? undefined : choice.function.name;
  if (named !== undefined && !names.has(named)) {
    const path = 'tool_choice.function.name';
    throw new ParameterFailure(`${path}: there is no tool named ${named} in tools`, path);
  }
  return {
    tools: choice === 'none' ? [] : tools.map(definitionOf),
    choice: named === undefined ? (choice as ToolChoice) : { name: named },
    isParallel,
  };
}

/** Returns a tool without keys that are null, which a template of Python would print as `None`. */
function definitionOf(tool: z.infer<typeof toolSchema>): ToolDefinition {
  const described = withoutNulls(tool.function);
  const exactParameters = exactTextOf(tool.function.parameters);
  // A client's own key of this name says nothing.
  const more = Object.fromEntries(Object.entries(tool).filter(([key]) => key !== 'exactParameters'));
  return {
    ...more,
    type: 'function',
    function: { ...described, name: tool.function.name },
    ...(exactParameters === undefined ? {} : { exactParameters }),
  };
}

/** Returns the schemas of the tools' parameters, by name. */
export function schemasOf({ tools }: ToolWish): ToolSchemas {
  return new Map(tools.map(({ function: { name: own, parameters } }) => [own, parameters]));
}
