/**
 * Each failure with real processes and kill -9, and the proof that it struck the phase it names: a process is stopped
 * (SIGSTOP) in that phase, looked at, then killed. Output is compared with an undisturbed run of the same seed.
 * Budget: 120 s.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { closeSync, openSync, readdirSync, statSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { Random } from '../../shared/base/random.ts';
import { chainOf, type BlockHash, type Digest } from '../../shared/kv/block_key.ts';
import { sealRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import type { BlockSource } from '../../shared/net/block_source.ts';
import { createFetchHandlers } from '../../shared/net/fetch/fetch_server.ts';
import { copySource, offerOf } from '../support/borrowing.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { askOnce } from '../../shared/net/network.ts';
import { Cluster, harbour, temporaryFolder, type RequestView } from '../support/cluster.ts';
import { generate, greedy, loadReference } from '../support/reference_loop.ts';
import { stoppedIn, type Stopped } from '../support/stopped_in.ts';
import { streamTokens } from '../support/token_stream.ts';
import { longTest } from '../support/long.ts';
import { assertNoneMatches } from '../support/no_lines.ts';
import { evenSpec } from '../support/kv.ts';
import { NEVER_SILENT, patientCall, until } from '../support/until.ts';

const random = new Random(23);
const promptOf = (length: number): number[] => Array.from({ length }, () => 3 + random.below(1_500));

let cluster: Cluster | undefined;
afterEach(async () => {
  await cluster?.close();
  cluster = undefined;
});

/** The newest request, while it runs or after. */
async function newest(of: Cluster): Promise<RequestView | undefined> {
  return (await of.requests(1))[0];
}

/** The tokens of a single-process loop. */
async function undisturbed(prompt: readonly number[], count: number): Promise<number[]> {
  const { executable } = await loadReference(harbour, 'f16');
  const output = await generate(executable, prompt, greedy, count);
  await executable.close();
  return output.map(({ token }) => token);
}

/** Prompts are computed elsewhere than answers, whatever that costs: the failures are of the way between. */
const SPLIT = ['--policy', 'longest_prefix'];
/** Prompts of more than 64 tokens are computed elsewhere, in steps that are short enough to be struck. */
const SMALL_STEPS = ['--local-prefill-tokens', '64', '--chunk-tokens', '64'];

test('a prefill instance killed mid-prompt: the request completes on the other one', async () => {
  cluster = await Cluster.up(...SPLIT, '--prefill', '2', '--decode', '1', '--store', '1', ...SMALL_STEPS);
  const { prompt, answer, view: stopped, victim } = await stoppedMidPrompt(cluster);
  cluster.kill(victim, 'SIGKILL');
  const { choices } = await answer;
  const done = await newest(cluster);
  expect(done?.attempts[0]?.prefills.map(({ prefill }) => prefill)).toHaveLength(2);
  // Cancelled when the decode instance reports the missing blocks before the router sees that the connection broke.
  expect(done?.attempts[0]?.prefills[0]?.outcome).toMatch(/^failed|^cancelled/);
  expect(done?.notes.join()).toContain('misses blocks');
  assert.deepEqual(choices[0]?.token_ids, await undisturbed(prompt, 8));
  expect(done?.tokens.cached).toBeLessThan(1_900 - (stopped.attempts[0]?.prefills[0]?.ready_tokens ?? 0) + 64);
  await cluster.idle();
});

longTest('the only prefill instance goes silent without dying: the request completes on decode alone', async () => {
  cluster = await Cluster.up(...SPLIT, '--prefill', '1', '--decode', '1', '--store', '0', ...SMALL_STEPS);
  const { prompt, answer } = await stoppedMidPrompt(cluster);
  const { choices } = await answer;
  assert.deepEqual(choices[0]?.token_ids, await undisturbed(prompt, 8));
  assert(!(await cluster.pool()).some(({ name }) => name === 'prefill-1'), 'it was dropped');
  const done = await newest(cluster);
  expect(done?.attempts[0]?.prefills[0]?.outcome).not.toBe('finished');
  expect((done?.attempts[0]?.report?.computed_tokens ?? 0) + (done?.attempts[0]?.report?.fetched_tokens ?? 0)).toBe(
    prompt.length,
  );
  cluster.kill('prefill-1', 'SIGCONT');
  await until('it is taken back when it speaks again', async () =>
    (await (cluster as Cluster).pool()).some(({ name }) => name === 'prefill-1'),
  );
});

/** Begins completions of 8 tokens until the instance that computes the prompt of one is stopped in the middle of it. */
async function stoppedMidPrompt(
  up: Cluster,
): Promise<Stopped<ReturnType<Cluster['completion']>> & { readonly prompt: readonly number[] }> {
  let prompt: number[] = [];
  const stopped = await stoppedIn(up, 'prompt', () => {
    prompt = promptOf(1_900);
    return up.completion({ prompt, max_tokens: 8 });
  });
  return { ...stopped, prompt };
}

/** Begins streams until the decode instance of one is stopped while it decodes. */
function stoppedMidStream(
  up: Cluster,
  body: Record<string, unknown>,
): Promise<Stopped<ReturnType<typeof streamTokens>>> {
  return stoppedIn(up, 'answer', () => streamTokens(up, body));
}

test('a decode instance killed mid-stream: the stream continues on the other one, each token once and in order (R1)', async () => {
  cluster = await Cluster.up(...SPLIT, '--prefill', '1', '--decode', '2', '--store', '1');
  const body = { prompt: promptOf(300), max_tokens: 1_500, temperature: 0.8, seed: 5 };
  const want = await streamTokens(cluster, body);
  expect(want.tokens).toHaveLength(1_500);
  const { answer: stream, victim } = await stoppedMidStream(cluster, body);
  cluster.kill(victim, 'SIGKILL');
  const { tokens, error, isDone } = await stream;
  assert.equal(error, undefined);
  assert(isDone);
  assert.deepEqual(tokens, want.tokens);
  const done = await newest(cluster);
  expect(new Set(done?.attempts.map(({ decode }) => decode)).size).toBe(2);
  await cluster.idle();
});

longTest(
  'the only decode instance killed mid-stream, and not coming back: the stream ends with an error object',
  async () => {
    cluster = await Cluster.up(
      ...SPLIT,
      '--prefill',
      '0',
      '--decode',
      '1',
      '--store',
      '0',
      // eslint-disable-next-line time/speed -- nobody answers it: its own limit ends it
      ...['--request-timeout-ms', '8000'],
    );
    const { answer: stream } = await stoppedMidStream(cluster, { prompt: promptOf(40), max_tokens: 1_900 });
    // Stopped first, so that the supervisor's restarts cannot serve the request: each is killed as it appears.
    let isOver = false;
    const killing = (async () => {
      await until('the stream has ended', () => {
        try {
          cluster?.kill('decode-1');
        } catch {
          // Not there at the moment.
        }
        return isOver;
      });
    })();
    const { tokens, error, isDone } = await stream;
    isOver = true;
    await killing;
    expect(tokens.length).toBeGreaterThan(20);
    expect(error).toBeDefined();
    expect(isDone).toBe(false);
    const failed = (await cluster.requests()).find(({ phase }) => phase === 'failed');
    expect(failed?.output_tokens).toBe(tokens.length);
  },
);

test('a store killed while it is fetched from: nothing fails', async () => {
  const up = await Cluster.up(
    ...SPLIT,
    // Stopped, it says nothing; it is there until it is killed.
    ...NEVER_SILENT,
    '--prefill',
    '1',
    '--decode',
    '1',
    '--store',
    '1',
    '--local-prefill-tokens',
    '64',
  );
  cluster = up;
  const prompts = Array.from({ length: 4 }, () => promptOf(700));
  const want = await Promise.all(prompts.map((prompt) => up.completion({ prompt, max_tokens: 6 })));
  await until('the store has it all', async () => ((await up.node('store-1')).tiers['disk']?.blocks ?? 0) >= 4 * 21);
  // Now only the store has it.
  await up.killAndAwait(['prefill-1', 'decode-1']);
  up.kill('store-1', 'SIGSTOP');
  const answers = prompts.map((prompt) => up.completion({ prompt, max_tokens: 6 }));
  const views = await until('all four wait for blocks of the store', async () => {
    const waiting = (await up.requests(4)).filter(
      ({ phase, reason }) => phase === 'loading' && reason.includes('21 of 21 blocks held'),
    );
    return waiting.length === 4 && waiting;
  });
  assert(
    views.every(({ attempts }) => attempts[0]?.prefills.length === 0),
    'nobody computes them meanwhile',
  );
  up.kill('store-1', 'SIGKILL');
  const again = await Promise.all(answers);
  assert.deepEqual(
    again.map(({ choices }) => choices[0]?.token_ids),
    want.map(({ choices }) => choices[0]?.token_ids),
  );
  const done = await up.requests(4);
  assert.deepEqual(
    done.map(({ phase }) => phase),
    prompts.map(() => 'finished'),
  );
  for (const { notes } of done) assert.match(notes.join(), /misses blocks/);
});

test('the router killed and restarted: instances are back, the index refills, the next request hits', async () => {
  cluster = await Cluster.up(
    ...SPLIT,
    '--prefill',
    '1',
    '--decode',
    '1',
    '--store',
    '1',
    '--local-prefill-tokens',
    '64',
  );
  const prompt = promptOf(1_000);
  await cluster.completion({ prompt, max_tokens: 2 });
  const before = cluster.pidOf('router');
  cluster.kill('router');
  const pid = await until('the router is back', () => {
    const now = (cluster as Cluster).pidOf('router');
    return now !== before && now;
  });
  assert.notEqual(pid, before);
  await until('all three have registered', async () => (await (cluster as Cluster).pool()).length === 3);
  await until('the index is full again', async () => {
    const pool = (await (await fetch(`${(cluster as Cluster).url}/api/pool`)).json()) as { index_keys: number };
    return pool.index_keys >= 31;
  });
  const { usage } = await cluster.completion({ prompt, max_tokens: 2 });
  expect(usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(936);
});

test('SIGTERM to the router while a stream runs: the stream is finished, a new request is refused', async () => {
  cluster = await Cluster.up(...SPLIT, '--prefill', '0', '--decode', '1', '--store', '0', ...NEVER_SILENT);
  const up = cluster;
  const { answer: stream, victim } = await stoppedMidStream(up, { prompt: promptOf(40), max_tokens: 1_500 });
  up.kill('router', 'SIGTERM');
  const refused = await until('it drains', async () => {
    // One that comes before the router drains waits for the instance that is stopped, and is asked again.
    const response = await fetch(`${up.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ prompt: [1, 2, 3], max_tokens: 1 }),
      // eslint-disable-next-line time/speed -- as said above
      signal: AbortSignal.timeout(1_000),
    }).catch(() => undefined);
    return response?.status === 503 && (await response.text());
  });
  assert.match(refused, /draining/);
  up.kill(victim, 'SIGCONT');
  const { tokens, error, isDone } = await stream;
  assert.equal(error, undefined);
  assert(isDone);
  expect(tokens).toHaveLength(1_500);
});

test('a client that disconnects frees everything at once, while prefilling and while decoding (R2)', async () => {
  cluster = await Cluster.up(
    ...SPLIT,
    '--prefill',
    '1',
    '--decode',
    '1',
    '--store',
    '1',
    '--local-prefill-tokens',
    '64',
    '--chunk-tokens',
    '32',
  );
  for (const [phase, body] of [
    ['prefilling', { prompt: promptOf(1_900), max_tokens: 8 }],
    ['decoding', { prompt: promptOf(50), max_tokens: 1_900 }],
    ['decoding', { prompt: promptOf(50), max_tokens: 1_900, stream: true }],
  ] as const) {
    const client = new AbortController();
    const answer: Promise<string> = cluster.completion(body, client.signal).then(
      () => 'answered',
      () => 'aborted',
    );
    await until(`it is ${phase}`, async () => (await newest(cluster as Cluster))?.phase === phase);
    client.abort();
    assert.equal(await answer, 'aborted');
    await until('the request is closed', async () => (await newest(cluster as Cluster))?.phase === 'cancelled');
    await cluster.idle();
  }
});

longTest(
  'requests at once, half of them given up at random moments: the others are answered, and nothing is left (R2)',
  async () => {
    const up = await Cluster.up(...SPLIT, '--prefill', '1', '--decode', '2', '--store', '1', ...SMALL_STEPS);
    cluster = up;
    // Clients leave after so many answers, some at once: however fast the machine is, many leave before theirs.
    const leaving: { readonly client: AbortController; readonly afterAnswers: number }[] = [];
    let numAnswered = 0;
    const leave = (): void => {
      for (const { client, afterAnswers } of leaving) if (numAnswered >= afterAnswers) client.abort();
    };
    const outcomes = await Promise.all(
      Array.from({ length: 80 }, async (_, i) => {
        const client = new AbortController();
        const prompt = promptOf(50 + ((i * 37) % 700));
        if (i % 2 === 1) leaving.push({ client, afterAnswers: random.below(40) });
        try {
          const answer = up.completion({ prompt, max_tokens: 12 }, client.signal);
          leave();
          const { choices } = await answer;
          numAnswered++;
          leave();
          return choices[0]?.token_ids.length === 12 ? 'answered' : 'short';
        } catch {
          return client.signal.aborted ? 'given up' : 'failed';
        }
      }),
    );
    expect(outcomes.filter((outcome) => outcome === 'answered').length).toBeGreaterThanOrEqual(40);
    expect(outcomes.filter((outcome) => outcome === 'given up').length).toBeGreaterThan(5);
    expect(outcomes.filter((outcome) => outcome === 'failed' || outcome === 'short')).toEqual([]);
    await up.idle();
    assertNoneMatches(up.errors, /Warning/);
  },
);

test('a corrupt record on disk: a recompute, the same tokens, and the record is dropped', async () => {
  cluster = await Cluster.up(
    ...SPLIT,
    '--prefill',
    '1',
    '--decode',
    '1',
    '--store',
    '1',
    '--local-prefill-tokens',
    '64',
  );
  const prompt = promptOf(1_000);
  const want = await cluster.completion({ prompt, max_tokens: 8 });
  await until(
    'the blocks are durable',
    async () => ((await cluster?.node('store-1'))?.tiers['disk']?.blocks ?? 0) >= 31,
  );
  const folder = cluster.dataFolder;
  await cluster.killAndAwait(['store-1'], () => {
    corrupt(folder);
  });
  await cluster.killAndAwait(['prefill-1', 'decode-1']);
  await until('the store announces', async () => ((await cluster?.node('store-1'))?.tiers['disk']?.blocks ?? 0) > 0);
  const again = await cluster.completion({ prompt, max_tokens: 8 });
  assert.deepEqual(again.choices[0]?.token_ids, want.choices[0]?.token_ids);
  await until('the store has noticed', () => cluster?.errors.some((line) => line.includes('unusable')));
});

/** Flips a bit in every fourth page of record payload. */
function corrupt(folder: string): void {
  const path = join(folder, readdirSync(folder).find((name) => name.startsWith('store')) ?? '', 'lmdb', 'records');
  const file = openSync(path, 'r+');
  const { size } = statSync(path);
  // The odd offset is inside a payload, whatever page it falls on.
  for (let at = 1_001; at < size; at += 4 * 4_096) writeSync(file, Buffer.from([0xa5, 0x5a, 0xa5]), 0, 3, at);
  closeSync(file);
}

longTest('a full disk tier: evictions, no failure', async () => {
  cluster = await Cluster.up(
    ...SPLIT,
    '--prefill',
    '1',
    '--decode',
    '1',
    '--store',
    '1',
    '--local-prefill-tokens',
    '64',
    '--disk-bytes',
    '1MiB',
    '--dram-bytes',
    '2MiB',
  );
  const prompts = Array.from({ length: 6 }, () => promptOf(600));
  const up = cluster;
  const want = await Promise.all(prompts.map((prompt) => up.completion({ prompt, max_tokens: 4 })));
  await until('the disk tier has evicted', async () => ((await up.node('store-1')).tiers['disk']?.evictions ?? 0) > 0);
  await up.killAndAwait(['prefill-1', 'decode-1']);
  const again = await Promise.all(prompts.map((prompt) => up.completion({ prompt, max_tokens: 4 })));
  assert.deepEqual(
    again.map(({ choices }) => choices[0]?.token_ids),
    want.map(({ choices }) => choices[0]?.token_ids),
  );
  const disk = (await up.node('store-1')).tiers['disk'];
  expect(disk?.bytes).toBeLessThanOrEqual(2 ** 20);
  const last = await up.requests(6);
  expect(last.some(({ tokens }) => tokens.computed > 300)).toBe(true);
});

/** A disk of 4 MiB; mounting one needs root, as CI has it. */
function mountSmallDisk(path: string): boolean {
  return spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', path]).status === 0;
}

longTest('a disk that is really full: nothing fails, and the store starts again', async ({ skip }) => {
  const disk = temporaryFolder();
  if (!mountSmallDisk(disk.path)) {
    disk.remove();
    skip('mounting a small disk needs root');
  }
  try {
    cluster = await Cluster.up(
      '--prefill',
      '1',
      '--decode',
      '1',
      '--store',
      '1',
      '--local-prefill-tokens',
      '64',
      '--data-dir',
      disk.path,
    );
    const up = cluster;
    const prompts = Array.from({ length: 6 }, () => promptOf(700));
    const want = await Promise.all(prompts.map((prompt) => up.completion({ prompt, max_tokens: 4 })));
    await until('the store could not store', () => up.errors.some((line) => line.includes('could not store blocks')));
    await up.killAndAwait(['store-1', 'prefill-1', 'decode-1']);
    const again = await Promise.all(prompts.map((prompt) => up.completion({ prompt, max_tokens: 4 })));
    assert.deepEqual(
      again.map(({ choices }) => choices[0]?.token_ids),
      want.map(({ choices }) => choices[0]?.token_ids),
    );
  } finally {
    await cluster?.close();
    cluster = undefined;
    spawnSync('umount', [disk.path]);
    disk.remove();
  }
});

longTest('a store that holds another block under the same key: a recompute, the right tokens', async () => {
  const token = 'collision-test';
  cluster = await Cluster.up(...SPLIT, '--prefill', '0', '--decode', '1', '--store', '1', '--cluster-token', token);
  const prompt = promptOf(200);
  const { model } = (await (await fetch(`${cluster.url}/api/pool`)).json()) as { model: { digest: Digest } };
  const chain = chainOf(model.digest, 32, prompt);
  // The right keys over wrong digests and payloads, as a collision would have them.
  const colliding = chain.map((hash, i) => ({ ...hash, digest: i.toString(16).padStart(32, '0') as Digest }));
  const holder = await serveRecords(token, model.digest, colliding);
  const network = new GrpcNetwork(token, systemClock);
  const store = await cluster.node('store-1');
  const { stored } = await askOnce(
    network,
    store.address,
    'offer',
    offerOf(model.digest, colliding, { recordBytes: holder.recordBytes, source: holder.address }),
    patientCall,
  );
  network.close();
  await holder.close();
  assert.equal(stored, chain.length);
  await until('the router knows them', async () => {
    const pool = (await (await fetch(`${(cluster as Cluster).url}/api/pool`)).json()) as { index_keys: number };
    return pool.index_keys === chain.length;
  });
  const { choices } = await cluster.completion({ prompt, max_tokens: 8 });
  assert.deepEqual(choices[0]?.token_ids, await undisturbed(prompt, 8));
  const view = await newest(cluster);
  expect(view?.reason).toContain('6 of 6 blocks held');
  expect(view?.tokens.computed).toBe(200);
});

/** A holder of its own, whose every record is sound in itself. */
async function serveRecords(
  token: string,
  format: Digest,
  hashes: readonly BlockHash[],
): Promise<{ address: string; recordBytes: number; close: () => Promise<void> }> {
  const layout: RecordLayout = {
    format,
    numericsClass: 'wasm/simd128/mul-add/w-f32',
    spec: evenSpec({ numLayers: 4, blockSize: 32, payloadBytes: 65_536 }),
  };
  const records = new Map(
    hashes.map((hash) => {
      const record = new Uint8Array(layout.spec.slotBytes).fill(0x2b);
      sealRecord(record, layout, hash);
      return [hash.digest, Buffer.from(record)];
    }),
  );
  const source: BlockSource = {
    wanted: new WantedKeys(),
    ...copySource(({ digest }) => Promise.resolve(records.get(digest))),
    snapshot: () => ({ epoch: '', sequence: 0, tiers: [] }),
  };
  const { fetch: serveFetch, snapshot } = createFetchHandlers(() => source, { maxStreams: 64 });
  const listener = await new GrpcNetwork(token, systemClock).listen('127.0.0.1:0', { fetch: serveFetch, snapshot });
  return { address: listener.address, recordBytes: layout.spec.slotBytes, close: () => listener.close(100) };
}
