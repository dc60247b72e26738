/** The thread that converts rules for texts to grammars. */
import type { TextRule } from './text_rule.ts';

/** Methods of the thread. */
export interface RuleConverter {
  /** Returns the rule as EBNF, or why it cannot be followed. */
  convert(rule: TextRule): { readonly ebnf: string } | { readonly refused: string };
}

/** Entry point of the thread. */
export function start(): RuleConverter {
  return { convert: ({ kind }) => ({ refused: `${kind} is not there yet` }) };
}
