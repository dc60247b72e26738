/** Converts rules for texts to grammars. */
import { anyJsonGrammar } from '../../grammar/any_json.ts';
import { checkGrammar } from '../../grammar/check_grammar.ts';
import { charactersOf } from '../../grammar/code_points.ts';
import { toEbnf } from '../../grammar/ebnf.ts';
import { parseGbnf } from '../../grammar/gbnf.ts';
import { choice, GrammarError, NEVER, oneOf, repeat, sequence, text, type Expression } from '../../grammar/grammar.ts';
import { SchemaError } from '../../grammar/json_schema/converted_schema.ts';
import { convertSchema } from '../../grammar/json_schema/convert_schema.ts';
import { pruned } from '../../grammar/prune_grammar.ts';
import { regexGrammar } from '../../grammar/regex.ts';
import { callExpression } from './call_grammar.ts';
import { GrammarBuilder } from './grammar_builder.ts';
import { markerExpression, upTo, without } from './marked_text.ts';
import { parseSchema } from './schema_text.ts';
import type { CallRule, ReasoningBefore, TextRule } from './text_rule.ts';

/** Returns the expression of a marker. */
type Marker = (literal: string) => Expression;

/** Blanks and line ends between reasoning and answer. */
const GAP = repeat(oneOf(charactersOf(' \n')), 0, 4);

/** Returns the EBNF of the texts that a rule allows. @throws GrammarError that says what of the rule cannot be followed */
export function ruleEbnf(rule: TextRule): string {
  const builder = new GrammarBuilder();
  const marker = (literal: string): Expression => markerExpression(literal, rule.specialTokens ?? []);
  const answer = answerOf(rule, marker, builder);
  const whole = rule.reasoning ? afterReasoning(rule.reasoning, answer, marker, builder) : answer;
  const grammar = pruned(builder.grammar(whole));
  if (!grammar) throw new GrammarError('no text can follow it');
  return toEbnf(grammar);
}

function answerOf(rule: TextRule, marker: Marker, builder: GrammarBuilder): Expression {
  const begin = marker(rule.begin ?? '');
  if (rule.kind !== 'calls') return sequence(begin, expressionOf(rule, builder));
  const content = rule.content && answerOf({ ...rule.content, begin: '' }, marker, builder);
  return callExpression(rule, { content, begin }, marker, builder);
}

function expressionOf(rule: Exclude<TextRule, CallRule>, builder: GrammarBuilder): Expression {
  switch (rule.kind) {
    case 'json_object':
      return builder.add(anyJsonGrammar('object'));
    case 'json_schema':
      return schemaExpression(rule.schema, builder);
    case 'regex':
      return builder.add(regexGrammar(rule.pattern));
    case 'choice':
      return choice(...rule.texts.map(text));
    case 'grammar': {
      // Before names are changed and dead parts are left out, since the messages are about the client's text.
      const grammar = parseGbnf(rule.text);
      checkGrammar(grammar);
      return builder.add(grammar);
    }
  }
}

function schemaExpression(schema: string, builder: GrammarBuilder): Expression {
  try {
    return builder.add(convertSchema(parseSchema(schema)).grammar);
  } catch (error) {
    if (!(error instanceof SchemaError) || error.pointer === '') throw error;
    throw new GrammarError(`at ${error.pointer}: ${error.message}`, { cause: error });
  }
}

/** Returns the texts with reasoning before the answer; it may be missing unless the answer begins within it. */
function afterReasoning(
  { open, close, isOpen, barred = [] }: ReasoningBefore,
  answer: Expression,
  marker: Marker,
  builder: GrammarBuilder,
): Expression {
  const body = builder.rule(() => answer);
  const then = sequence(GAP, body);
  const isText = (literal: string): boolean => marker(literal).kind === 'text';
  const texts = close.filter(isText);
  const tokens = close.filter((literal) => !isText(literal)).map(marker);
  // A marker that is written out as text ends the reasoning of a parser, too.
  const never = barred.length > 0 ? barred : close;
  // A rule of its own, so that each state has its name alone.
  const byToken = tokens.length > 0 ? builder.rule(() => sequence(choice(...tokens), then)) : NEVER;
  const inside =
    texts.length > 0
      ? builder.automaton(upTo(texts, never), then, byToken)
      : builder.automaton(without(never), byToken);
  return isOpen ? inside : choice(body, sequence(choice(...open.map(marker)), inside));
}
