/** Tools of Anthropic's API as tools of a chat. */
import { z } from 'zod';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import type { ChatFields } from '../openai/parameters.ts';
import { MAX_TOOLS, schemaObject, toolName } from '../openai/tools.ts';

const flag = z.boolean().nullish();

/** Schemas of the parameters that messages have for tools. */
export const messageToolFields = {
  tools: z
    .array(
      z.looseObject({
        type: z.string().nullish(),
        name: z.string().nullish(),
        description: z.string().nullish(),
        input_schema: schemaObject.nullish(),
        strict: flag,
      }),
    )
    .max(MAX_TOOLS, `at most ${MAX_TOOLS} tools`)
    .optional(),
  tool_choice: z
    .looseObject({
      type: z.enum(['auto', 'any', 'tool', 'none'], 'auto, any, tool or none'),
      name: z.string().nullish(),
      disable_parallel_tool_use: flag,
    })
    .optional(),
};

type ToolBody = z.infer<z.ZodObject<typeof messageToolFields>>;
type ChatTools = Pick<ChatFields, 'tools' | 'tool_choice' | 'parallel_tool_calls'>;

/**
 * Returns the tools and the choice in a chat's parameters, and names of the tools that are skipped: those that only Anthropic's servers
 * have. @throws ParameterFailure naming what is wrong with a tool or the choice
 */
export function readMessageTools({ tools = [], tool_choice: choice }: ToolBody): {
  readonly chat: ChatTools;
  readonly skipped: string[];
} {
  const own = new Map<string, NonNullable<ChatTools['tools']>[number]>();
  const skipped: string[] = [];
  for (const [index, { type, name, description, input_schema: parameters, strict }] of tools.entries()) {
    if ((type ?? 'custom') !== 'custom') {
      skipped.push(`tools.${index}:${(type ?? '').slice(0, 64)}`);
      continue;
    }
    const path = `tools.${index}`;
    const { data: named } = toolName.safeParse(name);
    if (named === undefined) refuse(`${path}.name`, 'letters, digits and _ . -, at most 64');
    if (own.has(named)) refuse(`${path}.name`, `a tool named ${named} stands before it`);
    if (!parameters) refuse(`${path}.input_schema`, 'a JSON schema of the input');
    const described = { name: named, description: description ?? undefined, parameters, strict: strict ?? undefined };
    own.set(named, { type: 'function', function: described });
  }
  return {
    chat: {
      ...(own.size > 0 ? { tools: [...own.values()] } : {}),
      ...choiceOf(choice, own),
      ...(choice?.disable_parallel_tool_use === true ? { parallel_tool_calls: false } : {}),
    },
    skipped,
  };
}

function choiceOf(choice: ToolBody['tool_choice'], own: ReadonlyMap<string, unknown>): Pick<ChatTools, 'tool_choice'> {
  switch (choice?.type) {
    case 'none':
      return { tool_choice: 'none' };
    case 'any':
      if (own.size === 0) refuse('tool_choice', 'any needs at least one tool with an input_schema in tools');
      return { tool_choice: 'required' };
    case 'tool': {
      const { data: name } = toolName.safeParse(choice.name);
      if (name === undefined || !own.has(name))
        refuse('tool_choice.name', 'the name of a tool with an input_schema in tools');
      return { tool_choice: { type: 'function', function: { name } } };
    }
    case 'auto':
    case undefined:
      return {};
  }
}

function refuse(path: string, what: string): never {
  throw new ParameterFailure(`${path}: ${what}`, path);
}
