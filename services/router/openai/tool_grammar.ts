/** Constraints that a request puts on tool calls: the one place where `required`, a named tool and `strict` become a grammar. */
import type { FormatChoice } from '../output/output_format.ts';
import { ParameterFailure } from './parameter_failure.ts';
import type { ToolDefinition, ToolWish } from './tools.ts';

/** Tool calls that an answer has to have, or may have only in one form. */
export interface ToolConstraint {
  /** Parameter that asks for it. */
  readonly param: string;
  /** `call`: the answer is a call, or several; `strict`: calls that the model makes have arguments by their tool's schema. */
  readonly kind: 'call' | 'strict';
  /** Tools that may be called. */
  readonly tools: readonly ToolDefinition[];
  readonly isParallel: boolean;
  /** Format in which the model writes calls and reasoning. */
  readonly format: FormatChoice;
}

/** Returns what a request asks to be enforced; undefined when the model is free. */
export function toolConstraint(
  { tools, choice, isParallel }: ToolWish,
  format: FormatChoice,
): ToolConstraint | undefined {
  if (typeof choice !== 'string') {
    const named = tools.filter(({ function: { name } }) => name === choice.name);
    return { param: 'tool_choice', kind: 'call', tools: named, isParallel, format };
  }
  if (choice === 'required') return { param: 'tool_choice', kind: 'call', tools, isParallel, format };
  const strict = tools.findIndex(({ function: described }) => described.strict === true);
  if (strict < 0) return undefined;
  return { param: `tools.${strict}.function.strict`, kind: 'strict', tools, isParallel, format };
}

/** Refuses a constraint. @throws ParameterFailure always: calls are not enforced yet */
export function refuseConstraint({ param, kind }: ToolConstraint): never {
  const instead = kind === 'call' ? 'set it to auto or none' : 'leave it out or set it to false';
  throw new ParameterFailure(`${param}: calls cannot be enforced yet; ${instead}`, param);
}
