/** Generated traces: repeatable, at the rate and with the sharing that their kind promises, and written whole. Budget: 10 s. */
import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'vitest';
import { BlockNumbering } from '../../services/replay/block_numbering.ts';
import { cacheHits } from '../../services/replay/cache_arithmetic.ts';
import { generateTrace, generatorHelp, parseGenerator } from '../../services/replay/trace_generators.ts';
import { readTrace } from '../../shared/trace/trace_reader.ts';
import { writeTrace } from '../../services/replay/trace_writer.ts';
import { checkWritable, writeWhole } from '../../shared/report/whole_file.ts';
import type { Trace } from '../../shared/trace/trace.ts';
import { failsWith } from '../support/failures.ts';
import { withFile } from './traces.ts';

const kinds = ['multi-turn', 'shared-prefix', 'bursts', 'zipf', 'agents'];
const made = (text: string): Trace => generateTrace(parseGenerator(text));
const reuse = (text: string): number => cacheHits(made(text), Infinity).tokenShare;

async function inFolder(use: (folder: string) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'replay-'));
  await use(folder).finally(() => rm(folder, { recursive: true }));
}

describe.each(kinds)('%s', (kind) => {
  test('has as many requests as asked for, at the asked rate', () => {
    const trace = made(`${kind}:requests=2000,rate=5`);
    assert.equal(trace.numRequests, 2_000);
    assert(Math.abs(trace.requestsPerSecond - 5) < 1, String(trace.requestsPerSecond));
  });

  test('is the same for the same seed and another for another one', () => {
    assert.deepEqual(made(`${kind}:requests=50,seed=7`).columns, made(`${kind}:requests=50,seed=7`).columns);
    assert.notDeepEqual(made(`${kind}:requests=50,seed=7`).columns, made(`${kind}:requests=50,seed=8`).columns);
  });

  test('is, written and read again, the same trace', async () => {
    const trace = made(`${kind}:requests=100,block=64`);
    await inFolder(async (folder) => {
      const path = join(folder, 't.jsonl');
      await writeTrace(trace, path);
      const again = await readTrace(path, { blockTokens: 64 });
      assert.deepEqual(again.columns, trace.columns);
    });
  });

  test('keeps prompt and answer within the context', () => {
    const { inputTokens, outputTokens } = made(`${kind}:requests=300,context=1000`).columns;
    for (let i = 0; i < 300; i++) assert(inputTokens[i]! + outputTokens[i]! <= 1_000 && inputTokens[i]! > 0);
  });
});

test('kinds share what they are named for', () => {
  // Turns repeat what came before them; the first turns of chats share their system prompt only.
  assert(reuse('multi-turn:turns=8') > 0.5);
  assert(reuse('multi-turn:turns=1') < reuse('multi-turn:turns=8') - 0.2);
  assert(reuse('agents') > 0.8);
  // The more uneven, the fewer documents are asked about at all.
  assert(reuse('zipf:zipf=2') > reuse('zipf:zipf=0') + 0.1);
  assert(reuse('shared-prefix:prefixes=2') > reuse('shared-prefix:prefixes=400') + 0.1);
  // Two of about six blocks are the system prompt.
  assert(reuse('bursts') > 0.2 && reuse('bursts:system=0') === 0);
});

test('bursts have arrivals within them only', () => {
  const trace = made('bursts:on_s=2,off_s=8,rate=4');
  const { arrivalMs } = trace.columns;
  const pauses = arrivalMs.slice(1).map((ms, i) => ms - arrivalMs[i]!);
  assert(pauses.filter((ms) => ms >= 8_000).length > 10);
  assert(
    pauses.every((ms) => ms < 1_500 || ms >= 8_000),
    'nothing arrives in the pauses',
  );
});

test('blocks are equal when their parts and all before them are', () => {
  const numbering = new BlockNumbering(4);
  const a = { id: 0, tokens: 6 };
  assert.deepEqual(numbering.idsOf([a]), [0, 1]);
  // The partial block of the first prompt is a whole one here.
  assert.deepEqual(numbering.idsOf([a, { id: 1, tokens: 3 }]), [0, 2, 3]);
  assert.deepEqual(numbering.idsOf([a, { id: 1, tokens: 2 }]), [0, 2]);
  assert.deepEqual(numbering.idsOf([a, { id: 2, tokens: 2 }]), [0, 4]);
  assert.deepEqual(numbering.idsOf([{ id: 1, tokens: 4 }]), [5]);
});

describe('refused', () => {
  test.each([
    ['chats', /there is no generated trace "chats": use multi-turn, shared-prefix, bursts, zipf, agents/],
    ['__proto__', /there is no generated trace/],
    ['zipf:turns=3', /zipf: "turns=3": use KEY=NUMBER with requests, rate, .*documents/],
    ['zipf:rate', /zipf: rate= is not allowed: a number from 0.001 to 10000/],
    ['zipf:rate=0', /zipf: rate=0 is not allowed/],
    ['zipf:requests=1.5', /zipf: requests=1.5 is not allowed: a whole number from 1 to 1000000/],
    ['zipf:requests=2000000', /zipf: requests=2000000 is not allowed/],
    ['zipf:seed=x', /zipf: seed=x is not allowed/],
  ])('%s', (text, message) => {
    assert.throws(() => parseGenerator(text), message);
  });

  test('sessions that would take all memory', () => {
    assert.throws(
      () => made('agents:requests=1000000,turns=200,input=1,output=1,think_s=1000000'),
      failsWith('invalid_request', /agents: sessions are too long to generate/),
    );
  });
});

test('the help names every kind and value', () => {
  for (const word of [...kinds, 'requests=1000', 'think_s=20', 'documents=200'])
    assert(generatorHelp().includes(word), word);
});

describe('a file is written whole or not at all', () => {
  test('a failure within it leaves the old file, and nothing else', async () => {
    await withFile('old.txt', 'old', async (path) => {
      function* texts(): Generator<string> {
        yield 'x'.repeat(2 ** 20);
        throw new Error('the source broke');
      }
      await assert.rejects(
        writeWhole(path, texts()),
        failsWith('invalid_request', /old\.txt cannot be written: the source broke/),
      );
      assert.equal(await readFile(path, 'utf8'), 'old');
      assert.deepEqual(await readdir(join(path, '..')), ['old.txt']);
      await writeWhole(path, ['new', ' text']);
      assert.equal(await readFile(path, 'utf8'), 'new text');
      assert.deepEqual(await readdir(join(path, '..')), ['old.txt']);
    });
  });

  test('what cannot be written is said before, and a link keeps its target', async () => {
    await inFolder(async (folder) => {
      const [file, link] = [join(folder, 'file'), join(folder, 'link')];
      await writeFile(file, 'old');
      await symlink(file, link);
      await checkWritable(link);
      assert.equal(await readFile(file, 'utf8'), 'old');
      await writeWhole(link, ['new']);
      assert.equal(await readFile(file, 'utf8'), 'new');
      assert.deepEqual((await readdir(folder)).toSorted(), ['file', 'link']);
      const refused = (path: string, message: RegExp): Promise<void> =>
        assert.rejects(checkWritable(path), failsWith('invalid_request', message));
      await refused(join(folder, 'none', 'file'), /none\/file cannot be written: ENOENT/);
      await refused(folder, /cannot be written: it is no regular file/);
      await refused('/dev/null', /\/dev\/null cannot be written: it is no regular file/);
    });
  });
});
