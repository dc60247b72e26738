/** Checks the rule about literals that are spread into literals. The limits of sizes are those of eslint. Budget: 10 s. */
import assert from 'node:assert/strict';
import { ESLint } from 'eslint';
import { test } from 'vitest';
import { projectPath } from '../support/project.ts';

const eslint = new ESLint({
  cwd: projectPath('.'),
  overrideConfigFile: projectPath('config/eslint_sizes.config.js'),
  allowInlineConfig: false,
});

/** Returns the columns at which the rule finds something in a file of one line. */
async function found(path: string, code: string): Promise<number[]> {
  const results = await eslint.lintText(code, { filePath: projectPath(path) });
  return results.flatMap(({ messages }) =>
    messages.filter(({ ruleId }) => ruleId === 'no-restricted-syntax').map(({ column }) => column),
  );
}

test.each(['shared/x.ts', 'services/dashboard/x.tsx', 'kernels/wasm/as/x.as.ts', 'test/x.test.ts', 'config/x.js'])(
  'a literal is not spread into a literal in %s',
  async (path) => {
    assert.deepEqual(await found(path, 'f({ ...{ a, b } });'), [8]);
    assert.deepEqual(await found(path, 'f({ c, ...{ a, d: { ...{ b } } } });'), [11, 24]);
  },
);

test('neither as a constant, nor as attributes', async () => {
  assert.deepEqual(await found('shared/x.ts', 'f({ ...({ a } as const) });'), [9]);
  assert.deepEqual(await found('services/dashboard/x.tsx', 'f(<input {...{ a, b }} />);'), [14]);
});

test.each([
  'f({ ...(c ? { a } : {}) });',
  'f({ ...a, ...b() });',
  'f({ a: { b } });',
  'f([...[a, b]]);',
  'f({ ...common, ...(a ?? { b }) });',
  'f({ ...(c ? { a } : ({ b } as const)) });',
])('nothing in: %s', async (code) => {
  assert.deepEqual(await found('shared/x.ts', code), []);
});
