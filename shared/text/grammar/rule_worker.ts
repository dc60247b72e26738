/** The thread that converts rules for texts to grammars. */
import { ruleEbnf } from './rule_grammar.ts';
import type { TextRule } from './text_rule.ts';

/** Methods of the thread. */
export interface RuleConverter {
  /** Answers when the thread has loaded its modules. */
  ready(): void;
  /** Returns the rule as EBNF. @throws GrammarError that says why it cannot be followed */
  convert(rule: TextRule): string;
}

/** Entry point of the thread. */
export function start(): RuleConverter {
  return { ready: () => undefined, convert: ruleEbnf };
}
