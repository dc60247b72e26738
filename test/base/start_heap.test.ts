/** Collecting the garbage of a start: by several threads at once, because flags of V8 are of the process. Budget: 5 s. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { test } from 'vitest';
import { projectPath } from '../support/project.ts';

test('threads that collect at the same time do not hinder one another', async () => {
  const module = JSON.stringify(projectPath('dist/shared/base/start_heap.js'));
  const code = `import(${module}).then(({ collectGarbage }) => { for (let i = 0; i < 40; i++) collectGarbage(); })`;
  const codes = await Promise.all(
    [0, 1, 2].map(async () => {
      const [exitCode] = (await once(new Worker(code, { eval: true }), 'exit')) as [number];
      return exitCode;
    }),
  );
  assert.deepEqual(codes, [0, 0, 0]);
});
