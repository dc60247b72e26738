/** Many sequences and large vocabularies: what a token costs the engine's heap, and a thousand sequences at once. Budget: 30 s. */
import assert from 'node:assert/strict';
import type { HeapProfiler } from 'node:inspector';
import { Session } from 'node:inspector/promises';
import { expect, test } from 'vitest';
import type { Executable } from '../../kernels/device.ts';
import type { Program } from '../../kernels/program.ts';
import { createWasmDevice } from '../../kernels/wasm/wasm_device.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { Engine } from '../../shared/engine/engine.ts';
import { sequenceRequest, type TestSampling } from '../support/request.ts';
import type { Digest } from '../../shared/kv/block_key.ts';
import { randomWeights } from '../bench/random_weights.ts';
import { kvLayoutOf, kvSpecOf } from '../../shared/engine/program_kv.ts';

const INNER = 8;
const BLOCK_SIZE = 32;
const CHUNK_TOKENS = 4_096;

/** A model of an embedding and a head: every part of a step but attention. */
function programOf(vocab: number): Program {
  return {
    operations: [
      { kind: 'embed', table: 'table', out: 'x' },
      { kind: 'gather_samples', x: 'x', out: 'last' },
      { kind: 'linear', x: 'last', weight: 'head', out: 'logits', accumulate: false },
      { kind: 'candidates', logits: 'logits', vocab },
      { kind: 'sample', logits: 'logits', vocab },
    ],
    buffers: {
      x: { rows: 'rows', width: INNER },
      last: { rows: 'samples', width: INNER },
      logits: { rows: 'samples', width: vocab },
    },
    weights: {
      table: { outputs: vocab, inner: INNER, parts: [{ tensor: 'table', outputs: vocab }] },
      head: { outputs: vocab, inner: INNER, parts: [{ tensor: 'head', outputs: vocab }] },
    },
    kv: [],
    rope: {},
  };
}

async function engineOf(
  vocab: number,
  numSeqs: number,
  numBlocks: number,
): Promise<{ engine: Engine; executable: Executable; numTokens: Map<number, number> }> {
  const program = programOf(vocab);
  const spec = kvSpecOf(program, [], { blockSize: BLOCK_SIZE, valueType: 'f32' });
  const executable = await createWasmDevice(1).load(program, randomWeights(program, 1), {
    maxRows: CHUNK_TOKENS,
    maxSamples: numSeqs,
    maxBlocksPerSequence: 1_100,
    weightFormat: 'f32',
    kv: kvLayoutOf(spec),
    numBlocks: { min: numBlocks, max: numBlocks },
    samplerPages: 2 * numSeqs,
  });
  const numTokens = new Map<number, number>();
  const engine = new Engine(
    executable,
    {
      spec,
      numBlocks,
      chunkTokens: CHUNK_TOKENS,
      maxNumSeqs: numSeqs,
      maxWaiting: 2_000,
      stepMs: 100_000,
      emit: (event) => {
        if (event.kind === 'token') numTokens.set(event.id, (numTokens.get(event.id) ?? 0) + 1);
        else if (event.kind === 'refused') assert.fail(`${event.id}: ${event.message}`);
      },
    },
    systemClock,
  );
  return { engine, executable, numTokens };
}

function submit(engine: Engine, id: number, numPrompt: number, numNew: number, sampling: Partial<TestSampling>): void {
  const tokens = Array.from({ length: numPrompt }, (_, i) => (i * 7 + id) % 1_000);
  const root = '0'.repeat(32) as Digest;
  engine.submit(sequenceRequest({ id, root, tokens, maxLength: numPrompt + numNew, sampling }));
}

/** Bytes that were allocated on the heap meanwhile, those that were collected included. */
async function allocated(run: () => Promise<void>): Promise<number> {
  const session = new Session();
  session.connect();
  await session.post('HeapProfiler.startSampling', {
    samplingInterval: 256,
    includeObjectsCollectedByMajorGC: true,
    includeObjectsCollectedByMinorGC: true,
  } as never);
  await run();
  const { profile } = await session.post('HeapProfiler.stopSampling');
  session.disconnect();
  const sizeOf = ({ selfSize, children }: HeapProfiler.SamplingHeapProfileNode): number =>
    children.reduce((sum, child) => sum + sizeOf(child), selfSize);
  return sizeOf(profile.head);
}

test.each([
  ['greedy', 1_000, 100, 16, {}],
  ['default', 256_000, 100, 8, { temperature: 1 }],
  [
    'everything',
    128_256,
    30_000,
    8,
    { temperature: 1, topK: 40, topP: 0.9, minP: 0.01, repetitionPenalty: 1.1, presencePenalty: 0.2 },
  ],
] as const)(
  '%s, a vocabulary of %i, %i tokens before: at most 4 KB of heap a token',
  async (_, vocab, context, numSeqs, sampling) => {
    const { engine, executable, numTokens } = await engineOf(vocab, numSeqs, 8_000);
    for (let id = 1; id <= numSeqs; id++) submit(engine, id, context, 900, sampling);
    // Until all have their first tokens, and the compiler has made fast code of the step: slow code allocates every number.
    while ((numTokens.get(numSeqs) ?? 0) < 300) await engine.step();
    const count = (): number => [...numTokens.values()].reduce((sum, one) => sum + one, 0);
    // The least of five: the compiler may still be at work in some, and what the step itself allocates is in all of them.
    let perToken = Infinity;
    for (let i = 0; i < 5; i++) {
      const before = count();
      const bytes = await allocated(async () => {
        for (let step = 0; step < 15; step++) await engine.step();
      });
      expect(count() - before).toBe(15 * numSeqs);
      perToken = Math.min(perToken, bytes / (count() - before));
    }
    console.log(`${perToken.toFixed(0)} bytes of heap a token`);
    expect(perToken).toBeGreaterThan(0);
    expect(perToken).toBeLessThan(4_096);
    await executable.close();
  },
);

test('a thousand and twenty-four sequences in one step, of every kind', async () => {
  const { engine, executable, numTokens } = await engineOf(500, 1_024, 4_096);
  const kinds: Partial<TestSampling>[] = [
    ...[{}, { temperature: 1 }, { temperature: 0.7, topP: 0.9 }, { temperature: 1, topK: 5, minP: 0.1 }],
    ...[
      { temperature: 1, frequencyPenalty: 0.5 },
      { repetitionPenalty: 1.2, logitBias: [[3, 1]] as const },
    ],
    ...[{ numLogprobs: 2, temperature: 1 }],
  ];
  for (let id = 1; id <= 1_100; id++) submit(engine, id, 1 + (id % 3), 6, { ...kinds[id % kinds.length], seed: id });
  let most = 0;
  while (await engine.step()) {
    most = Math.max(most, engine.load.numRunning);
    engine.pool.checkIntegrity();
  }
  assert.equal(most, 1_024);
  assert.equal(numTokens.size, 1_100);
  for (const [id, count] of numTokens) assert.equal(count, 6, `${id}`);
  assert.equal(engine.pool.numAvailable, 4_096);
  await executable.close();
});
