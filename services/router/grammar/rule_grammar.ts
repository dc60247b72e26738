/** Converts rules for texts to grammars. */
import { toEbnf } from '../../../shared/grammar/ebnf.ts';
import { parseGbnf } from '../../../shared/grammar/gbnf.ts';
import { choice, GrammarError, text, type Grammar } from '../../../shared/grammar/grammar.ts';
import { regexGrammar } from '../../../shared/grammar/regex.ts';
import type { TextRule } from './text_rule.ts';

/** Returns the EBNF of the texts that a rule allows. @throws GrammarError that says what of the rule cannot be followed */
export function ruleEbnf(rule: TextRule): string {
  return toEbnf(grammarOf(rule));
}

function grammarOf(rule: TextRule): Grammar {
  switch (rule.kind) {
    case 'json_object':
    case 'json_schema':
      throw new GrammarError('JSON is not there yet');
    case 'regex':
      return regexGrammar(rule.pattern);
    case 'choice':
      return { root: 'root', rules: new Map([['root', choice(...rule.texts.map(text))]]) };
    case 'grammar':
      return parseGbnf(rule.text);
  }
}
