/** The thread that converts rules for texts to grammars. */
import { GrammarError } from '../../../shared/grammar/grammar.ts';
import { ruleEbnf } from './rule_grammar.ts';
import type { TextRule } from './text_rule.ts';

/** Methods of the thread. */
export interface RuleConverter {
  /** Answers when the thread has loaded its modules. */
  ready(): void;
  /** Returns the rule as EBNF, or why it cannot be followed. */
  convert(rule: TextRule): { readonly ebnf: string } | { readonly refused: string };
}

/** Entry point of the thread. */
export function start(): RuleConverter {
  return {
    ready: () => undefined,
    convert: (rule) => {
      try {
        return { ebnf: ruleEbnf(rule) };
      } catch (error) {
        if (error instanceof GrammarError) return { refused: error.message };
        throw error;
      }
    },
  };
}
