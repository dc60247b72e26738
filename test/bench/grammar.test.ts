/** The benchmark of grammars, small: with the vocabulary of the repository's model. Budget: 10 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { projectPath } from '../support/project.ts';
import { benchGrammar } from './grammar.ts';

test('grammar reports every figure it promises', async () => {
  const figures = await benchGrammar({
    folder: projectPath('config/models/harbour'),
    vocabSize: 1_536,
    numDocuments: 8,
    numGrammars: 2,
    onFigure: () => undefined,
  });
  assert.deepEqual(
    figures.map(({ name }) => name),
    [
      ...['token table', 'first output', 'compile, eight fields'],
      ...[1, 8].flatMap((rows) => [`mask, ${rows} rows, p50`, `mask, ${rows} rows, p99`]),
      ...[1, 2].map((threads) => `longest gap with compiles, ${threads} threads`),
      ...['refusal, thread replaced', 'memory after 2 refusals more'],
    ].map((name) => `grammar/${name}`),
  );
  for (const { name, value } of figures) assert(Number.isFinite(value), `${name}: ${value}`);
  assert(figures.every(({ name, value }) => value > 0 || name.includes('memory')));
});
