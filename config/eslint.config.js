import js from '@eslint/js';
import { fileURLToPath } from 'node:url';
import tseslint from 'typescript-eslint';
import { time } from './eslint_time.js';

const root = fileURLToPath(new URL('..', import.meta.url));

export default tseslint.config(
  { ignores: ['dist/', 'shared/protocol/generated/', '**/*.as.ts', '**/*.d.ts', 'config/'] },
  js.configs.recommended,
  ...tseslint.configs.strictTypeChecked,
  // One program for the whole run: the service, which editors need, opens each file anew.
  {
    languageOptions: {
      parserOptions: {
        project: ['./tsconfig.json', './services/dashboard/tsconfig.json'],
        tsconfigRootDir: root,
      },
    },
  },
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
      // A call handler is an async generator, even when it never waits, never yields or only fails.
      '@typescript-eslint/require-await': 'off',
      'require-yield': 'off',
      // `for (;;)` reads better than `while (true)`, and a flag set by a callback is not constant.
      '@typescript-eslint/no-unnecessary-condition': ['error', { allowConstantLoopConditions: true }],
    },
  },
  {
    // A process is a function of its host: time, chance, threads and processes are arguments. Excepted are the command that builds
    // the host, drivers (gRPC, LMDB's process) and what begins a thread of its own.
    files: ['services/**/*.{ts,tsx}', 'shared/**/*.ts'],
    ignores: [
      'shared/base/**',
      'shared/net/grpc/**',
      'shared/net/transfer_thread/{transfer_methods,tcp_sockets}.ts',
      'services/cli/**',
      'services/store/disk_{thread,child,process}.ts',
      // Keys and nonces come from the system alone: no seed may give them again.
      'services/store/{key_list,sealed_box}.ts',
      'shared/engine/engine_worker.ts',
      'services/dashboard/browser.ts',
    ],
    rules: {
      '@typescript-eslint/no-restricted-imports': [
        'error',
        {
          paths: [
            { name: 'node:timers', message: 'Take a Clock.' },
            { name: 'node:timers/promises', message: 'Take a Clock.' },
            { name: 'node:perf_hooks', message: 'Take a Clock.' },
            { name: 'node:worker_threads', message: 'Take Threads.' },
            { name: 'node:child_process', message: 'Take Threads.' },
            { name: 'node:net', message: 'Take a Network.', allowTypeImports: true },
            { name: 'node:http', message: 'Take a Network.', allowTypeImports: true },
            { name: 'node:crypto', importNames: ['randomBytes', 'randomInt', 'randomUUID'], message: 'Take a Random.' },
          ],
          patterns: [
            { group: ['**/base/clock.ts'], importNames: ['systemClock'], message: 'Take a Clock.' },
            { group: ['**/base/random.ts'], importNames: ['entropySeed'], message: 'Take a Random.' },
            { group: ['**/base/identity.ts'], message: 'Take newId from the host.' },
            { group: ['**/base/worker_threads.ts'], message: 'Take Threads.' },
            { group: ['**/base/log.ts'], importNames: ['createLog'], message: 'Take a Log.' },
          ],
        },
      ],
      'no-restricted-globals': [
        'error',
        { name: 'setTimeout', message: 'Take a Clock.' },
        { name: 'setInterval', message: 'Take a Clock.' },
        { name: 'setImmediate', message: 'Take a Clock.' },
        { name: 'queueMicrotask', message: 'Take a Clock.' },
        { name: 'performance', message: 'Take a Clock.' },
        { name: 'fetch', message: 'Take a Network.' },
      ],
      'no-restricted-properties': [
        'error',
        { object: 'Date', property: 'now', message: 'Take a Clock.' },
        { object: 'Math', property: 'random', message: 'Take a Random.' },
        { object: 'process', property: 'pid', message: 'Take the identity of the host.' },
        { object: 'process', property: 'kill', message: 'Take it from the host.' },
        { object: 'process', property: 'exit', message: 'Take fail of the context.' },
        { object: 'process', property: 'nextTick', message: 'Take a Clock.' },
        { object: 'AbortSignal', property: 'timeout', message: 'Take a Clock.' },
      ],
    },
  },
  {
    // Index arithmetic: `x[i]!` says the index was computed, not found.
    files: [
      ...[
        'kernels/**/*.ts',
        'shared/engine/**/*.ts',
        'shared/placement/prefix_index/*.ts',
        'shared/base/non_negative_solve.ts',
        'shared/base/decayed_sums.ts',
        'services/replay/*.ts',
        'shared/trace/*.ts',
        'shared/base/event_heap.ts',
        'shared/model/quantised_rows.ts',
        'services/router/observe/block_tree.ts',
        'services/router/record/gone_keys.ts',
        'services/router/record/prompt_scopes.ts',
        'services/router/observe/tree_shape.ts',
        'services/router/api/json_ids.ts',
        'shared/text/encoder/*.ts',
      ],
      'test/**/*.ts',
    ],
    rules: { '@typescript-eslint/no-non-null-assertion': 'off' },
  },
  {
    plugins: { time },
    linterOptions: { reportUnusedDisableDirectives: 'error' },
  },
  {
    // Tests do not depend on how fast the machine is. Excepted are those that measure, what plays time, and what is run by hand.
    files: ['test/**/*.ts'],
    ignores: ['test/{alone,bench,gpu,sim}/**', 'test/**/main.ts', 'test/support/until.ts'],
    rules: { 'time/speed': 'error' },
  },
  {
    // Clients still send what the API calls deprecated, so tests do.
    files: ['test/**/*.ts'],
    rules: { '@typescript-eslint/no-deprecated': 'off' },
  },
);
