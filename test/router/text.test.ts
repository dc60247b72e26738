/** Tokens to text, piece by piece. Runs the real tokenizer thread of the harbour model. Budget: 5 s. */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, test } from 'vitest';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { TextCodec, TextStream } from '../../services/router/text.ts';
import { goldenFolder } from '../support/golden.ts';
import { harbour } from '../support/cluster.ts';

const never = new AbortController().signal;
let codec: TextCodec;
beforeAll(async () => {
  codec = await TextCodec.open(readModelFolder(harbour), 2_048, assert.fail);
});
afterAll(async () => {
  await codec.close();
});

async function pieces(text: string, stops: string[]): Promise<{ pieces: string[]; isStopped: boolean }> {
  const stream = new TextStream(codec, [], { stops, isStopIncluded: false, isSkippingSpecial: true });
  const out: string[] = [];
  for (const token of await codec.encode(text, false, never)) out.push(await stream.push(token, true));
  out.push(await stream.flush());
  return { pieces: out, isStopped: stream.stop !== undefined };
}

test('pieces join to the text, and none is half a character', async () => {
  for (const text of ['The Heron came in at 5:07.', 'Zoë’s naïve café 東京 🚢⚓ done', '  spaces   and\n\nlines ']) {
    const { pieces: out } = await pieces(text, []);
    assert.equal(out.join(''), text);
    assert(out.every((piece) => !piece.includes('\uFFFD')));
  }
});

test('a stop string cuts the text before it, wherever tokens split it', async () => {
  const text = 'one two three four five';
  for (let start = 1; start < text.length - 1; start++) {
    for (const length of [1, 3, 6]) {
      const stop = text.slice(start, start + length);
      const { pieces: out, isStopped } = await pieces(text, [stop, 'never there']);
      assert.equal(out.join(''), text.slice(0, text.indexOf(stop)), `stop ${JSON.stringify(stop)}`);
      assert(isStopped);
    }
  }
});

test('what could still become a stop string is held back until it cannot', async () => {
  const { pieces: out } = await pieces('ends with thr', ['three']);
  assert.equal(out.join(''), 'ends with thr');
  assert(out.at(-1)?.endsWith('thr'), 'the last piece brings what was held');
});

test('a folder without a tokenizer serves token ids only, and says so', async () => {
  const none = await TextCodec.open(readModelFolder(goldenFolder('llama-tied')), 512, assert.fail);
  assert.equal(none.hasTokenizer, false);
  assert.deepEqual(await none.decode([[1, 2]], true), ['']);
  await assert.rejects(none.encode('x', true, never), /no tokenizer/);
});

test('text that cannot fit the context is refused before it is tokenised', async () => {
  await assert.rejects(codec.encode('x'.repeat(30_000), true, never), /30000 characters; no more than 26624 can fit/);
});
