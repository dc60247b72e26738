/** Tool calls that a request wants enforced, as a rule for the text: `required`, a named tool, `strict`, and tools with a format. */
import type { CallableTool, CallForm, CallRule, TextRule } from '../../../../shared/text/grammar/text_rule.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import type { ToolDefinition } from '../../../../shared/text/template_input.ts';
import type { ToolWish } from './tools.ts';

/**
 * Returns the rule for an answer with tools; undefined when they ask for none. `stated` is the rule that the request states: a
 * `response_format` is for a text without calls, any other rule for the whole text. `own` is the form of the model's own calls; without
 * one, calls that must come are JSON, and `strict` alone does not change how the model writes. @throws ParameterFailure when a call must
 * come, and the whole text has another rule
 */
export function toolRule(
  { tools, choice, isParallel }: ToolWish,
  own: CallForm | undefined,
  stated: TextRule | undefined,
): (TextRule & CallRule) | undefined {
  const rule = { kind: 'calls', form: own ?? 'json', isParallel } as const;
  const content = stated?.param.startsWith('response_format') === true ? stated : undefined;
  if (stated && !content) {
    if (choice === 'auto' || choice === 'none') return undefined;
    throw new ParameterFailure(`tool_choice and ${stated.param}: choose one constraint for the text`, 'tool_choice');
  }
  if (choice === 'required') return { ...rule, param: 'tool_choice', mustCall: true, tools: tools.map(callable) };
  if (typeof choice !== 'string') {
    const named = tools.flatMap((tool, i) => (tool.function.name === choice.name ? [callable(tool, i)] : []));
    return { ...rule, param: 'tool_choice', mustCall: true, isParallel: false, tools: named };
  }
  if (tools.length === 0) return undefined;
  if (content) return { ...rule, param: content.param, mustCall: false, tools: tools.map(callable), content };
  const strict = tools.findIndex(({ function: described }) => described.strict === true);
  if (strict < 0 || own === undefined) return undefined;
  return { ...rule, param: `tools.${strict}.function.strict`, mustCall: false, tools: tools.map(callable) };
}

function callable({ function: { name, parameters, strict } }: ToolDefinition, i: number): CallableTool {
  return {
    name,
    schema: parameters && JSON.stringify(parameters),
    isStrict: strict === true,
    param: `tools.${i}.function.parameters`,
  };
}
