/** Tool calls as grammars, in the formats that can be enforced. */
import { anyJsonGrammar } from '../../grammar/any_json.ts';
import { choice, EMPTY, optional, sequence, text, GrammarError } from '../../grammar/grammar.ts';
import type { Expression } from '../../grammar/grammar.ts';
import { convertSchema } from '../../grammar/json_schema/convert_schema.ts';
import { callForms } from './call_forms.ts';
import type { GrammarBuilder } from './grammar_builder.ts';
import { without } from './marked_text.ts';
import { parseSchema } from './schema_text.ts';
import type { CallableTool, CallRule } from './text_rule.ts';

/** The text of an answer that is no call. */
export interface PlainAnswer {
  /** Rule for it; undefined: any text. */
  readonly content: Expression | undefined;
  /** The marker before it. */
  readonly begin: Expression;
}

/** Returns the texts of a rule of calls. @throws GrammarError naming the tool */
export function callExpression(
  rule: CallRule,
  { content, begin }: PlainAnswer,
  marker: (literal: string) => Expression,
  builder: GrammarBuilder,
): Expression {
  const form = callForms[rule.form];
  const { markers, starts } = form;
  const parts = argumentsOf(rule.tools, builder);
  const call = builder.rule(() =>
    choice(...rule.tools.map(({ name }, i) => form.call(name, parts[i] ?? EMPTY, marker))),
  );
  const all = form.calls(call, rule.isParallel, marker);
  if (rule.mustCall) return all;
  if (content) return choice(all, sequence(begin, content));
  if (form.isAlone) return choice(all, sequence(begin, builder.automaton(without(markers, starts))));
  // Calls stand in a text: any text, a call, any text, and so on.
  const one = form.calls(call, rule.isParallel && form.isList === true, marker);
  return builder.rule((self) =>
    builder.automaton(
      without(markers),
      optional(sequence(one, rule.isParallel ? self : builder.automaton(without(markers)))),
    ),
  );
}

function argumentsOf(tools: readonly CallableTool[], builder: GrammarBuilder): Expression[] {
  let anyObject: Expression | undefined;
  return tools.map(({ schema, isStrict, param }) => {
    if (schema === undefined) return text('{}');
    try {
      return builder.add(convertSchema(parseSchema(schema)).grammar);
    } catch (error) {
      if (!(error instanceof GrammarError)) throw error;
      if (isStrict) throw new GrammarError(`${param}: ${error.message}`, { cause: error });
      return (anyObject ??= builder.add(anyJsonGrammar('object')));
    }
  });
}
