/** Tool calls as grammars, in the formats that can be enforced. */
import { anyJsonGrammar, COLON, COMMA } from '../../../shared/grammar/any_json.ts';
import { choice, EMPTY, optional, repeat, sequence, text, GrammarError } from '../../../shared/grammar/grammar.ts';
import type { Expression } from '../../../shared/grammar/grammar.ts';
import { convertSchema } from '../../../shared/grammar/json_schema/convert_schema.ts';
import type { GrammarBuilder } from './grammar_builder.ts';
import { without } from './marked_text.ts';
import { parseSchema } from './schema_text.ts';
import type { CallableTool, CallForm, CallRule } from './text_rule.ts';

interface Form {
  /** Key of a call's arguments. */
  readonly argumentsKey: string;
  /** One call, or several. */
  readonly calls: (call: Expression, isParallel: boolean) => Expression;
  /** Texts that begin a call anywhere in a text, and at its start. */
  readonly markers: readonly string[];
  readonly starts: readonly string[];
}

/** One call; with `isParallel` several, with the separator between them. */
const several = (call: Expression, separator: Expression, isParallel: boolean): Expression =>
  isParallel ? sequence(call, repeat(sequence(separator, call), 0)) : call;

const forms: Readonly<Record<CallForm, Form>> = {
  hermes: {
    argumentsKey: 'arguments',
    calls: (call, isParallel) =>
      several(sequence(text('<tool_call>\n'), call, text('\n</tool_call>')), optional(text('\n')), isParallel),
    markers: ['<tool_call>'],
    starts: [],
  },
  llama3_json: {
    argumentsKey: 'parameters',
    calls: (call, isParallel) => several(call, text('; '), isParallel),
    markers: ['\n{'],
    starts: ['{'],
  },
  json: {
    argumentsKey: 'arguments',
    calls: (call, isParallel) => (isParallel ? sequence(text('['), several(call, COMMA, true), text(']')) : call),
    markers: ['\n{', '\n[', '```json\n'],
    starts: ['{', '[', '```\n'],
  },
};

/** Returns the texts of a rule of calls. `content` is a text without calls; undefined: any. @throws GrammarError naming the tool */
export function callExpression(rule: CallRule, content: Expression | undefined, builder: GrammarBuilder): Expression {
  const { argumentsKey, calls, markers, starts } = forms[rule.form];
  const parts = argumentsOf(rule.tools, builder);
  const call = builder.rule(() =>
    choice(
      ...rule.tools.map(({ name }, i) =>
        sequence(
          text('{"name"'),
          ...[COLON, text(JSON.stringify(name)), COMMA],
          ...[text(JSON.stringify(argumentsKey)), COLON, parts[i] ?? EMPTY, text('}')],
        ),
      ),
    ),
  );
  const all = calls(call, rule.isParallel);
  if (rule.mustCall) return all;
  if (content) return choice(all, content);
  if (starts.length > 0) return choice(all, builder.automaton(without(markers, starts)));
  // Calls stand in a text: any text, a call, any text, and so on.
  const one = calls(call, false);
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
