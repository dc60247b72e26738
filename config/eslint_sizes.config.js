/**
 * How large things may be, so that the next change finds its way: a file 290 lines of code, a function 60, a class 8 fields that change. What
 * is larger stands in larger.js, by file and with its reason, at the size that it has: it may shrink, not grow. And how they are named
 * and described (eslint_words.js).
 */
import tseslint from 'typescript-eslint';
import { time } from './eslint_time.js';
import { words } from './eslint_words.js';
import { larger } from './larger.js';

/** The limits; test/rules/styles.test.ts holds style sheets to that of lines. */
export const MAX = { lines: 290, lineOfFunction: 60, fields: 8 };

/** Fields that are not `readonly`, static ones not counted. */
const fieldsThatChange = {
  meta: {
    type: 'suggestion',
    schema: [{ type: 'integer' }],
    messages: { many: 'class {{name}} has {{count}} fields that change, over {{max}}: divide its state' },
  },
  create(context) {
    const [max] = context.options;
    return {
      ClassBody(node) {
        const count = node.body.filter(
          ({ type, readonly, static: isStatic, value }) =>
            type === 'PropertyDefinition' && !readonly && !isStatic && value?.type !== 'ArrowFunctionExpression',
        ).length;
        if (count <= max) return;
        context.report({ node, messageId: 'many', data: { name: node.parent.id?.name ?? '(none)', count, max } });
      },
    };
  },
};

/** Literals that are spread into a literal, with and without `as const`, or into attributes. */
const hiddenProperties = {
  selector: [
    'ObjectExpression > SpreadElement > ObjectExpression',
    'ObjectExpression > SpreadElement > TSAsExpression > ObjectExpression',
    'JSXSpreadAttribute > ObjectExpression',
  ].join(', '),
  message: 'Write the properties themselves: a literal that is spread into a literal only hides them.',
};

// Comments do not count: what is described better is no larger.
const rules = (max) => ({
  'max-lines': ['error', { max: max.lines, skipComments: true }],
  'max-lines-per-function': ['error', { max: max.lineOfFunction, skipComments: true, IIFEs: true }],
  'sizes/fields-that-change': ['error', max.fields],
});

export default tseslint.config(
  { ignores: ['shared/protocol/generated/', '**/*.d.ts', 'dist/'] },
  {
    files: ['services/**/*.{ts,tsx}', 'shared/**/*.ts', 'kernels/**/*.ts'],
    // AssemblyScript has decorators where TypeScript has none.
    languageOptions: { parser: tseslint.parser, parserOptions: { allowInvalidAST: true } },
    // Directives are of the other configuration.
    linterOptions: { reportUnusedDisableDirectives: 'off' },
    plugins: { sizes: { rules: { 'fields-that-change': fieldsThatChange } }, words },
    rules: { ...rules(MAX), 'words/documented': 'error' },
  },
  {
    files: ['**/*.{ts,tsx}', '**/*.js', '**/*.cjs'],
    languageOptions: { parser: tseslint.parser, parserOptions: { allowInvalidAST: true } },
    linterOptions: { reportUnusedDisableDirectives: 'off' },
    plugins: { words, time },
    // Directives have no power here, so an exception cannot excuse itself.
    rules: {
      'words/gone': 'error',
      'words/sentences': 'error',
      'words/texts': 'error',
      'time/reason': 'error',
      'no-restricted-syntax': ['error', hiddenProperties],
    },
  },
  ...larger.map(({ file, reason, ...max }) => {
    if (!reason) throw new Error(`${file} is larger than others for no reason`);
    return { files: [file], rules: rules({ ...MAX, ...max }) };
  }),
);
