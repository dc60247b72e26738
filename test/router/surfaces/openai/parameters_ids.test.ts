/** Long lists of ids at the endpoints that take them: as the short ones. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { readCompletionBody, readDetokenizeBody } from '../../../../services/router/surfaces/openai/parameters.ts';

const limits = { vocabSize: 1_000, maxModelLen: 500, isStrict: false };
const ids = Array.from({ length: 300 }, (_, i) => i);
const bytes = (value: object): Buffer => Buffer.from(JSON.stringify(value));

test('completions and detokenize read hundreds of ids, and name the first that is none', () => {
  assert.deepEqual([...(readCompletionBody(bytes({ prompt: ids }), limits).prompts[0] as Uint32Array)], ids);
  assert.deepEqual([...readDetokenizeBody(bytes({ tokens: ids }), limits).tokens], ids);
  const outside = [...ids.slice(0, 100), 1_000, 5, 9_000];
  assert.throws(() => readCompletionBody(bytes({ prompt: outside }), limits), /prompt\.100: token id 1000 is outside/);
  assert.throws(() => readDetokenizeBody(bytes({ tokens: outside }), limits), /tokens\.100: token id 1000 is outside/);
  const long = Array.from({ length: 501 }, () => 1);
  assert.throws(() => readCompletionBody(bytes({ prompt: long }), limits), /maximum context length is 500/);
  assert.throws(
    () => readCompletionBody(Buffer.from(`{"prompt": ${JSON.stringify(ids)}, "x": }`), limits),
    /not JSON: Unexpected token '?}'?/,
  );
});
