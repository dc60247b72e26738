/**
 * Clusters with webgpu engines, under the software Vulkan driver or on a real GPU: the oracle on the deterministic set, pairs of a webgpu and a wasm
 * engine, devices that are lost while requests run.
 * Not covered: a real GPU, whose driver has its own bits. PROMPTS=n makes the pairs longer.
 * Budget: 150 s.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { Random } from '../../shared/base/random.ts';
import type { LoadedModel } from '../../shared/engine/load_model.ts';
import type { TemplateInput } from '../../shared/text/template_input.ts';
import { TextCodec } from '../../shared/text/text.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { Cluster, harbour, mapConcurrently, runToEnd } from '../support/cluster.ts';
import { isSoftware, testDevice as gpu } from '../kernels/software_gpu.ts';
import { generate, greedy, loadReference } from '../support/reference_loop.ts';
import { halfOf, sized } from '../support/long.ts';
import { until } from '../support/until.ts';

const seed = Number(process.env['SEED'] ?? 20_261_121);

/** Splits every prompt of more than a few tokens, which the default policy does only where it is sooner done. */
const split = ['--policy', 'longest_prefix', '--local-prefill-tokens', '8'];

interface Case {
  readonly prompt: number[];
  readonly maxTokens: number;
}

const ask = async (cluster: Cluster, { prompt, maxTokens }: Case, ignoresEos = true): Promise<number[]> =>
  (await cluster.completion({ prompt, max_tokens: maxTokens, ignore_eos: ignoresEos })).choices[0]?.token_ids ?? [];

/** Bit for bit what one process with one sequence at a time gives on the same device. */
async function expectReference(cases: readonly Case[], actual: readonly number[][]): Promise<void> {
  const { executable, device } = await loadReference(harbour, 'f16', 256, { device: gpu, weightFormat: 'f16' });
  for (const [i, { prompt, maxTokens }] of cases.entries()) {
    const want = await generate(executable, prompt, greedy, maxTokens);
    const tokens = want.map(({ token }) => token);
    assert.deepEqual(actual[i], tokens, `prompt ${i} of ${prompt.length} tokens, SEED=${seed}`);
  }
  await executable.close();
  device.destroy();
}

test('the oracle: prompts of up to 200 tokens give the tokens of a single-process loop on the same device', async () => {
  console.log(`webgpu oracle: SEED=${seed}`);
  const random = new Random(seed);
  const common = Array.from({ length: 96 }, () => 3 + random.below(1_500));
  const cases = Array.from({ length: sized(12, 4) }, (_, i): Case => {
    const own = Array.from({ length: 1 + random.below(104) }, () => 3 + random.below(1_500));
    return { prompt: i % 3 === 0 ? own : [...common, ...own], maxTokens: 4 + random.below(12) };
  });
  const cluster = await Cluster.up(...['--device', gpu, ...split, '--chunk-tokens', '64']);
  try {
    const actual = await mapConcurrently(cases, 6, (one) => ask(cluster, one));
    const elsewhere = (await cluster.requests()).filter(({ tokens }) => tokens.fetched > 0).length;
    console.log(`webgpu oracle: ${elsewhere} of ${cases.length} were prefilled elsewhere and fetched`);
    expect(elsewhere).toBeGreaterThanOrEqual(sized(5, 2));
    await expectReference(cases, actual);
  } finally {
    await cluster.close();
  }
});

/** Returns the template input that the router renders for these messages. */
function templateOf(messages: Example['messages']): TemplateInput {
  return {
    messages: messages.map((message) => ({ ...message })),
    addGenerationPrompt: true,
    continueFinalMessage: false,
    addSpecialTokens: false,
    kwargs: {},
  };
}

interface Example {
  readonly messages: { role: string; content: string }[];
}

/** The examples of the model, and longer ones: their logs joined, with the question of the last. */
async function pairCases(): Promise<Case[]> {
  const { cases } = JSON.parse(readFileSync(`${harbour}/examples.json`, 'utf8')) as { cases: Example[] };
  const head = 'You keep the harbour log.\n';
  const logOf = ({ messages }: Example): string => messages[0]!.content.replace(head, '');
  const joined = Array.from({ length: 60 }, (_, i): Example => {
    const count = 2 + (i % 3);
    const own = Array.from({ length: count }, (_unused, k) => cases[(i * 7 + k * 11) % cases.length]!);
    const question = own.at(-1)!.messages[1]!;
    return { messages: [{ role: 'system', content: head + own.map(logOf).join('\n') }, question] };
  });
  const codec = await TextCodec.open(await openModel(harbour), 2_048, workerThreads, assert.fail);
  const numWanted = Number(process.env['PROMPTS'] ?? (isSoftware ? sized(12, 6) : 100));
  // Short ones and long ones.
  const stride = Math.max(1, (cases.length + joined.length) / numWanted);
  const all = [...cases, ...joined].filter((_, i) => i % stride < 1);
  const prompts = await Promise.all(
    all.map(async ({ messages }) => (await codec.chatPrompt(templateOf(messages), 0, new AbortController())).ids),
  );
  await codec.close();
  return prompts.map((prompt) => ({ prompt: Array.from(prompt), maxTokens: 24 }));
}

/** Largest difference of two devices' logits that is no error, of the best logit: f16 KV and sums in another order. */
const TOLERANCE = 1e-3;

/** The reference's greedy tokens, and the first position whose two best logits are closer than twice the tolerance. */
async function expected(
  { executable, folder }: LoadedModel,
  { prompt, maxTokens }: Case,
): Promise<{ tokens: number[]; firstClose: number }> {
  const tokens: number[] = [];
  let firstClose = Infinity;
  const blockTable = Array.from({ length: Math.ceil((prompt.length + maxTokens) / 32) }, (_, i) => i);
  const sample = { numCandidates: 2, askedTokens: [], isFullRowWanted: false };
  for (let next = prompt, start = 0; tokens.length < maxTokens;) {
    const [result] = await executable.run([
      { tokens: next, start, blockTable, samples: [{ ...sample, row: next.length - 1 }] },
    ]);
    const [best = NaN, second = NaN] = result?.candidateLogits ?? [];
    if (best - second < 2 * TOLERANCE * Math.abs(best)) firstClose = Math.min(firstClose, tokens.length);
    const token = result?.candidateIds[0] ?? NaN;
    tokens.push(token);
    if (folder.eosTokenIds.includes(token)) break;
    start += next.length;
    next = [token];
  }
  return { tokens, firstClose };
}

test.each(
  halfOf([
    ['webgpu', gpu, 'wasm'],
    ['wasm', 'wasm', gpu],
  ] as const),
)(
  'a pair with prefill on %s and the other on decode gives the tokens of one device',
  async (_name, prefill, decode) => {
    const cases = await pairCases();
    const cluster = await Cluster.up(
      ...['--prefill-device', prefill, '--decode-device', decode, '--weights', 'f16'],
      ...[...split, '--chunk-tokens', '256'],
    );
    try {
      const actual = await mapConcurrently(cases, 8, (one) => ask(cluster, one, false));
      const reference = await loadReference(harbour, 'f16', 1_024, { weightFormat: 'f16' });
      let numClose = 0;
      for (const [i, one] of cases.entries()) {
        const { tokens, firstClose } = await expected(reference, one);
        if (firstClose < tokens.length) numClose++;
        assert.deepEqual(
          actual[i]?.slice(0, firstClose),
          tokens.slice(0, firstClose),
          `prompt ${i} of ${one.prompt.length} tokens`,
        );
      }
      await reference.executable.close();
      const elsewhere = (await cluster.requests()).filter(({ tokens }) => tokens.fetched > 0).length;
      console.log(
        `pair ${prefill} to ${decode}: ${elsewhere} of ${cases.length} fetched, ${numClose} with a close position`,
      );
      expect(elsewhere).toBeGreaterThan(cases.length / 2);
      expect(numClose).toBeLessThanOrEqual(2);
    } finally {
      await cluster.close();
    }
  },
);

test('where the two kinds differ in bits, the default policy generates on the decode instance alone, though the other is idle and faster (E2)', async () => {
  const [one] = await pairCases();
  assert(one);
  const cluster = await Cluster.up(...['--prefill-device', 'wasm', '--decode-device', gpu, '--weights', 'f16']);
  try {
    const answers = await mapConcurrently(
      Array.from({ length: 4 }, () => one),
      4,
      (same) => ask(cluster, same, false),
    );
    const reference = await loadReference(harbour, 'f16', 1_024, { weightFormat: 'f16' });
    const { tokens, firstClose } = await expected(reference, one);
    await reference.executable.close();
    for (const answer of answers) assert.deepEqual(answer.slice(0, firstClose), tokens.slice(0, firstClose));
    const generated = (await cluster.requests()).flatMap(({ attempts }) => attempts.map(({ decode }) => decode));
    assert.deepEqual([generated.length, ...new Set(generated)], [4, 'decode-1']);
  } finally {
    await cluster.close();
  }
});

test('a device that is lost takes no request with it: they go on elsewhere, and the instance comes back with a fresh one', async () => {
  const random = new Random(seed + 1);
  const cases = Array.from({ length: sized(16, 5) }, (): Case => ({
    prompt: Array.from({ length: 20 + random.below(100) }, () => 3 + random.below(1_500)),
    maxTokens: sized(24, 12),
  }));
  const cluster = await Cluster.up(
    ...['--device', gpu, '--decode', '2', '--chunk-tokens', '64', '--lose-device-after-steps', String(sized(25, 11))],
  );
  try {
    const actual = await mapConcurrently(cases, 4, (one) => ask(cluster, one));
    const numLosses = (): number => cluster.errors.filter((line) => /ended with code 1/.test(line)).length;
    // One instance may have had most of the work: it goes on until a second device is lost.
    await until('two devices are lost', async () => {
      if (numLosses() < 2) await mapConcurrently(cases, 4, (one) => ask(cluster, one));
      return numLosses() >= 2;
    });
    console.log(`devices lost: ${numLosses()}`);
    assert(cluster.errors.some((line) => /the device was lost|the GPU was lost/.test(line)));
    await until('an instance is back', () => cluster.errors.some((line) => /decode-\d is back/.test(line)));
    await expectReference(cases, actual);
  } finally {
    await cluster.close();
  }
});

test('SIGTERM ends an engine that computes after its step, with code 0 and not with an abort', async () => {
  const cluster = await Cluster.up(
    ...['--device', gpu, '--prefill', '0', '--store', '0', '--chunk-tokens', '256'],
    // eslint-disable-next-line time/speed -- it ends in the middle of its work, however long that takes
    ...['--drain-timeout-ms', '300'],
  );
  try {
    const prompt = Array.from({ length: 1_500 }, (_, i) => 3 + ((i * 31) % 1_500));
    const patience = new AbortController();
    const request = cluster.completion({ prompt, max_tokens: 400 }, patience.signal).catch(() => undefined);
    await until('it computes', async () => (await cluster.node('decode-1')).running > 0);
    cluster.kill('decode-1', 'SIGTERM');
    const line = await until('it ended', () => cluster.errors.find((text) => /decode-1 (ended|was killed)/.test(text)));
    assert.match(line, /decode-1 ended with code 0/);
    patience.abort();
    await request;
  } finally {
    await cluster.close();
  }
});

test('a pair without a common weight format is refused with what to do', async () => {
  const { code, errors } = await runToEnd(['up', '--prefill-device', gpu, '--decode-device', 'wasm']);
  assert.equal(code, 2);
  assert.match(errors, /need one weight format: add --weights f16/);
});
