/**
 * The webgpu suites on this machine's GPU, the full set: `npm run test:gpu [-- ADAPTER]`, where ADAPTER is an index or part of a name
 * from `penstock devices`; without one the first hardware adapter.
 */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const [adapter = ''] = process.argv.slice(2);
const suites = ['kernels/webgpu', 'kernels/webgpu_models', 'e2e/webgpu', 'alone/idle'].map(
  (name) => `test/${name}.test.ts`,
);
const { status } = spawnSync(
  process.execPath,
  [
    fileURLToPath(new URL('../node_modules/vitest/vitest.mjs', import.meta.url)),
    'run',
    '--config',
    'config/vitest.config.js',
    ...suites,
  ],
  { stdio: 'inherit', env: { ...process.env, TEST_ADAPTER: adapter } },
);
process.exit(status ?? 1);
