/** The grammars of llama.cpp and xgrammar. */
import { expect, test } from 'vitest';
import { checkGrammar } from '../../shared/grammar/check_grammar.ts';
import { parseGbnf } from '../../shared/grammar/gbnf.ts';
import { GrammarError } from '../../shared/grammar/grammar.ts';
import { matches } from './naive_match.ts';

const chess = `
# Chess moves, as llama.cpp has them.
root ::= (
    # it must start with the characters "1. "
    "1. " move " " move "\\n"
    ([1-9] [0-9]? ". " move " " move "\\n")+
)
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
`;
const json = `
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\\"" (
    [^"\\\\\\x7F\\x00-\\x1F] |
    "\\\\" (["\\\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\\n" [ \\t]{0,20}
`;

test.each([
  [chess, ['1. e4 e5\n2. Nf3 Nc6\n', '1. O-O O-O-O\n12. exd8=Q Kb1+\n'], ['1. e4 e5\n', '1. e9 e5\n2. e4 e5\n']],
  [json, ['{"a": [1, 2.5e3, "é\\n\\u00e9"], "b":{}}', '{}'], ['[1]', '{"a":01}', '{"a":1,}', '{"a":"\u0001"}']],
  ['root ::= "a" | b\nb ::= "x"{2,3} c?\nc::=[^a-z]+', ['a', 'xx', 'xxxAé日'], ['x', 'xxxx', 'xxa']],
  ['root ::= . "\\x41b" "\\u00e9" "\\U0001F600"', ['日Abé😀'], ['Ab']],
  ['root ::= [à-ü日\\-\\]^]{,2}', ['', 'é日', '-]', '^'], ['ééé', 'a']],
  ['root ::= item ("," item)*\nitem ::= [0-9]+ | "true"', ['1,true,22'], ['1,', '']],
  ['first ::= "a" second\nsecond ::= "b"', ['ab'], ['b']],
  ['a-b ::= "x" a.c\na.c ::= "y" (= "z")\n', ['xy'], ['x']],
  ['root ::= "a"|"b"   # comment ::= "c"\n  | "d"\n', ['a', 'd'], ['c']],
])('%.30s', (grammar, matching, others) => {
  const parsed = parseGbnf(grammar);
  checkGrammar(parsed);
  for (const one of matching) expect(matches(parsed, one), one).toBe(true);
  for (const one of others) expect(matches(parsed, one), one).toBe(false);
});

test.each([
  ['root ::= "a', /line 1, column 10 .* not closed/],
  ['root ::= "a"\nb ::= [a', /line 2, column 7 .* not closed/],
  ['root ::= ("a"', /column 10.*not closed/],
  ['root = "a"', /expected ::=/],
  ['root ::= "a" )', /column 14.*found "\)"/],
  ['root ::= "a"{2,1}', /column 13.*must not be larger/],
  ['root ::= "a"{}', /repetition/],
  ['root ::= [z-a]', /backwards/],
  ['root ::= [\\d]', /\\d is not known/],
  ['root ::= "\\q"', /escape \\q/],
  ['root ::= "\\u12"', /4 hexadecimal/],
  ['root ::= "a"\nroot ::= "b"', /line 2, column 1 .*twice/],
  ['root ::= <think>', /tokens in/],
  ['start: "a" | b', /Lark's "start: …" is not supported/],
  ['?start: "a"', /Lark's prefixes/],
  ['', /no rule/],
  [`root ::= ${'('.repeat(2000)}`, /parentheses/],
  ['x'.repeat(2_000_000), /2000000 characters/],
])('an error has its line and column: %.30s', (grammar, message) => {
  expect(() => parseGbnf(grammar)).toThrow(GrammarError);
  expect(() => parseGbnf(grammar)).toThrow(message);
});

test('a rule may have very many alternatives', () => {
  const parsed = parseGbnf(`root ::= ${'"a" | '.repeat(150_000)}[b]`);
  checkGrammar(parsed);
  expect(matches(parsed, 'b')).toBe(true);
});

test.each([
  ['root ::= root "a" | "a"', /"root" begins with itself/],
  ['root ::= a\na ::= b "x"\nb ::= a | "y"', /"a" begins with itself through "b"/],
  ['root ::= e root | "a"\ne ::= "x"?', /"root" begins with itself/],
  ['root ::= "a" b', /uses "b", which is not defined/],
  ['root ::= "a" root', /can never end/],
  ['root ::= "x"\nb ::= "a" b', /"b" can never end/],
  ['root ::= "a"{0,100000}', /repeats 100000 times/],
  [Array.from({ length: 60_000 }, (_, i) => `r${i} ::= "a"`).join('\n'), /60000 rules/],
])('the grammar is refused by the name of its rule: %.40s', (grammar, message) => {
  expect(() => checkGrammar(parseGbnf(grammar))).toThrow(message);
});
