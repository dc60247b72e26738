/** Long texts in parts: ids are those of the whole text, wherever it is cut and whoever encodes which part. Budget: 20 s. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { afterEach, describe, expect, test } from 'vitest';
import { FastEncoder } from '../../shared/text/encoder/fast_encoder.ts';
import { openLibrary } from '../../shared/text/encoder/library.ts';
import {
  PartedText,
  serveEncoding,
  type EncodedSpan,
  type ChunkEncoder,
} from '../../shared/text/encoder/parallel_encoding.ts';
import type { start } from '../../shared/text/tokenizer_worker.ts';
import { Random } from '../../shared/base/random.ts';
import { linkEnds, ThreadLink } from '../../shared/base/thread_link.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { readTextFiles } from '../../shared/model/text_files.ts';
import { goldenFolder } from '../support/golden.ts';
import { vocabulariesFolder } from '../support/downloads.ts';
import { projectPath } from '../support/project.ts';
import { until } from '../support/until.ts';

const folders = [
  ...readdirSync(goldenFolder('tokenizers')).map((kind) => [kind, goldenFolder(`tokenizers/${kind}`)] as const),
  ...(existsSync(vocabulariesFolder) ? readdirSync(vocabulariesFolder) : [])
    .filter((name) => existsSync(`${vocabulariesFolder}/${name}/tokenizer.json`))
    .map((name) => [name, `${vocabulariesFolder}/${name}`] as const),
];

const prose = ['README.md', 'test/bench/RESULTS.md', 'services/router/router.ts', 'kernels/device.ts']
  .map((path) => readFileSync(projectPath(path), 'utf8'))
  .join('\n');

/** Prose with spaces, letters of everywhere, a word without an end, and what a tokenizer has added. */
function longText(random: Random, added: readonly string[], length: number): string {
  const parts: string[] = [];
  for (let sum = 0; sum < length; sum += parts.at(-1)?.length ?? 0) {
    const from = random.below(prose.length);
    const kinds = [
      () => prose.slice(from, from + random.below(20_000)),
      () => prose.slice(from, from + random.below(20_000)),
      () => 'naïve 你好世界 мир 한국어 e\u0301 👩‍👩‍👧 \u00a0 ½ '.repeat(random.below(60)),
      () => ['\n', ' ', 'a', '\r\n\t'][random.below(4)]!.repeat(random.below(random.below(8) === 0 ? 20_000 : 200)),
      () => added[random.below(added.length)] ?? '',
    ];
    parts.push(kinds[random.below(kinds.length)]!());
  }
  return parts.join('');
}

const links: ThreadLink<never, never>[] = [];
afterEach(() => {
  for (const link of links.splice(0)) link.close();
});

/** Nobody is at the other end. */
function alone(): PartedText {
  const [end] = linkEnds();
  links.push(new ThreadLink(end));
  return new PartedText(new ThreadLink(end));
}

describe.each(folders)('%s', (_name, folder) => {
  const { tokenizer, config } = readTextFiles(folder);
  const library = openLibrary(JSON.parse(tokenizer), JSON.parse(config));
  const added = library.tokenizer.added_tokens.slice(0, 40).map(({ content }) => content);
  const whole = FastEncoder.create(library);
  assert(whole);

  test('in parts and whole, and again with something after', () => {
    const random = new Random(3);
    for (let turn = 0; turn < 3; turn++) {
      const parted = FastEncoder.create(library)!;
      parted.partWith(alone());
      const text = longText(random, turn === 0 ? [] : added, 90_000 + random.below(60_000));
      assert.deepEqual([...parted.encode(text, true)], [...whole.encode(text, true)]);
      const more = `${text} and more of it`;
      assert.deepEqual([...parted.encode(more, false)], [...whole.encode(more, false)]);
    }
  });

  test('a text is cut where no pretoken ends, and has its ids all the same', () => {
    const random = new Random(7);
    const text = longText(random, [], 80_000);
    for (const kind of ['plain', 'uncut'] as const) {
      const badly: ChunkEncoder = {
        chunk: (of, all, from, cut) => whole.chunk(of, all, from, cut),
        cutAfter: (_of, _all, at) => at + random.below(40),
      };
      const cutWell = alone().chunks(whole, kind, text, 0);
      const cutBadly = alone().chunks(badly, kind, text, 0);
      const idsOf = (chunks: typeof cutWell, end: number): number[] => {
        const ids: number[] = [];
        let at = 0;
        for (const chunk of chunks) {
          if (at + chunk.length > end) break;
          ids.push(...chunk.ids);
          at += chunk.length;
        }
        return ids;
      };
      const [a, b] = [cutWell, cutBadly].map((all) => idsOf(all, 40_000)) as [number[], number[]];
      const count = Math.min(a.length, b.length);
      assert.deepEqual(a.slice(0, count), b.slice(0, count), kind);
    }
  });
});

test('a helper whose encoder fails, and a part that is too long for it: it says that it has nothing', async () => {
  const [lent, taken] = linkEnds();
  links.push(new ThreadLink(lent));
  let numAsked = 0;
  const failing: ChunkEncoder = {
    chunk: () => {
      numAsked++;
      throw new RangeError('Maximum call stack size exceeded');
    },
    cutAfter: () => undefined,
  };
  serveEncoding(new ThreadLink(lent), () => failing);
  const cells = new Int32Array(new SharedArrayBuffer(8));
  const cuts = [0, 16_384, 32_768, 99_000];
  taken.postMessage({ id: 99, kind: 'plain', text: prose.slice(0, 100_000), cuts, cells });
  await until('all parts are there', () => Atomics.load(cells, 1) === 3);
  const parts = [...new ThreadLink<never, EncodedSpan>(taken).arrived()];
  assert.deepEqual(
    parts,
    [0, 1, 2].map((index) => ({ id: 99, index, chunks: [] })),
  );
  expect(numAsked).toBe(2);
});

test('another thread takes its share, between what else it does', async () => {
  const texts = readTextFiles(goldenFolder('tokenizers/llama3'));
  const library = openLibrary(JSON.parse(texts.tokenizer), JSON.parse(texts.config));
  const helper = workerThreads.spawn<typeof start>(
    { url: pathToFileURL(projectPath('dist/shared/text/tokenizer_worker.js')) },
    texts,
    { onDeath: assert.fail },
  );
  try {
    await helper.call('delimiters', undefined);
    const [lent, taken] = linkEnds();
    helper.notify('helpEncoding', lent, [lent]);
    const [whole, parted] = [FastEncoder.create(library)!, FastEncoder.create(library)!];
    const hand = new PartedText(new ThreadLink(taken));
    parted.partWith(hand);
    const random = new Random(11);
    for (let turn = 0; turn < 6; turn++) {
      const text = longText(random, [], 400_000);
      const short = helper.call('encode', { text: 'short', addSpecialTokens: false, maxCharacters: 100 });
      assert.deepEqual([...parted.encode(text, true)], [...whole.encode(text, true)]);
      assert.deepEqual([...(await short)], [...whole.encode('short', false)]);
    }
    expect(hand.numTaken).toBeGreaterThan(0);
    // A pretoken that no call stack holds, and one that would take long: whoever asks hears of it, the helper goes on, and quickly.
    for (const pretoken of ['='.repeat(1_200_000), 'a'.repeat(2_000_000)]) {
      const text = `${longText(random, [], 50_000)}${pretoken}${longText(random, [], 50_000)}`;
      const started = helper.call('encode', { text: 'short', addSpecialTokens: false, maxCharacters: 100 });
      assert.deepEqual([...parted.encode(text, true)], [...whole.encode(text, true)]);
      assert.deepEqual([...(await started)], [...whole.encode('short', false)]);
    }
    // The helper dies in the middle; its part of the text is then encoded here.
    const text = longText(random, [], 400_000);
    void helper.close();
    assert.deepEqual([...parted.encode(text, true)], [...whole.encode(text, true)]);
    taken.close();
  } finally {
    await helper.close();
  }
});
