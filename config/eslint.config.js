import js from '@eslint/js';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  { ignores: ['dist/', 'shared/protocol/generated/', '**/*.as.ts', '**/*.d.ts', 'config/'] },
  js.configs.recommended,
  ...tseslint.configs.strictTypeChecked,
  { languageOptions: { parserOptions: { projectService: true } } },
  {
    rules: {
      // Numbers and booleans in log lines are fine; objects are not.
      '@typescript-eslint/restrict-template-expressions': [
        'error',
        { allowNumber: true, allowBoolean: true, allowNullish: true },
      ],
      // `() => set.delete(x)` is a fine callback.
      '@typescript-eslint/no-confusing-void-expression': [
        'error',
        { ignoreArrowShorthand: true, ignoreVoidReturningFunctions: true },
      ],
      // A new message kind must break every switch that has not heard of it.
      '@typescript-eslint/switch-exhaustiveness-check': 'error',
      '@typescript-eslint/consistent-type-imports': 'error',
      '@typescript-eslint/prefer-readonly': 'error',
      '@typescript-eslint/explicit-module-boundary-types': 'error',
      // Closures that run later may name what is assigned below them.
      'prefer-const': ['error', { ignoreReadBeforeAssign: true }],
      // Who serves a call is an async generator, whether it waits, yields or only fails.
      '@typescript-eslint/require-await': 'off',
      'require-yield': 'off',
      // `for (;;)` reads better than `while (true)`, and a flag set by a callback is not constant.
      '@typescript-eslint/no-unnecessary-condition': ['error', { allowConstantLoopConditions: true }],
    },
  },
  {
    // Time and chance are inputs. They enter through shared/base and the mains.
    files: ['services/**/*.ts', 'shared/**/*.ts'],
    ignores: ['shared/base/**', 'services/*/main.ts'],
    rules: {
      'no-restricted-globals': [
        'error',
        { name: 'setTimeout', message: 'Take a Clock.' },
        { name: 'setInterval', message: 'Take a Clock.' },
        { name: 'performance', message: 'Take a Clock.' },
      ],
      'no-restricted-properties': [
        'error',
        { object: 'Date', property: 'now', message: 'Take a Clock.' },
        { object: 'Math', property: 'random', message: 'Take a Random.' },
      ],
    },
  },
  {
    // Index arithmetic: `x[i]!` says the index was computed, not found.
    files: ['kernels/**/*.ts', 'shared/engine/**/*.ts', 'test/**/*.ts'],
    rules: { '@typescript-eslint/no-non-null-assertion': 'off' },
  },
  {
    // Clients still send what the API calls deprecated, so tests do.
    files: ['test/**/*.ts'],
    rules: { '@typescript-eslint/no-deprecated': 'off' },
  },
);
