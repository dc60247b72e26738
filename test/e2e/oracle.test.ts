/**
 * The one oracle: tokens out of prefill → transfer → decode equal those of a single-process loop, bit for bit.
 *
 * Real processes, the harbour model, 100 mixed prompts, 200 in the long run, of 1 to 1,500 tokens, shared prefixes, concurrency 8, greedy and seeded;
 * then 60 more while processes are killed, and in the long run 100 under the default policy. Seeds are printed; SEED=n repeats a run, ORACLE_PROMPTS=n makes it longer.
 * Budget: 180 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { Random } from '../../shared/base/random.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import type { LoadedModel } from '../../shared/engine/load_model.ts';
import { toEbnf } from '../../shared/grammar/ebnf.ts';
import { MaskService } from '../../shared/grammar/matcher/mask_service.ts';
import { regexGrammar } from '../../shared/grammar/regex.ts';
import type { TestSampling } from '../support/request.ts';
import { Cluster, harbour, mapConcurrently, runToEnd } from '../support/cluster.ts';
import { longTest, sized } from '../support/long.ts';
import { generate, greedy, loadReference, type ReferenceConstraint } from '../support/reference_loop.ts';

const seed = Number(process.env['SEED'] ?? 20_261_121);
const numPrompts = Number(process.env['ORACLE_PROMPTS'] ?? sized(200, 50));

interface Case {
  readonly prompt: number[];
  readonly maxTokens: number;
  readonly params: TestSampling;
  /** Samples of the prompt; sample i has the seed plus i. */
  readonly numSamples: number;
  /** Regular expression that the text must match. */
  readonly regex: string | undefined;
}

const REGEXES = [
  '(yes|no), [a-z ]{3,40}[.!]',
  '[0-9]{1,3}(\\.[0-9]+)?',
  '"([^"\\\\]|\\\\["n])*"',
  '(é|日本|[à-ü])+ (ok)?',
];

/** Lengths as a service sees them: many short, some long; a third continue a prefix that came before. */
function makeCases(count: number, random: Random): Case[] {
  const token = (): number => 3 + random.below(1_500);
  const prefixes = Array.from({ length: 6 }, (_, i) => Array.from({ length: 120 + 130 * i }, token));
  const lengthOf = [
    (): number => 1 + random.below(40),
    (): number => 40 + random.below(260),
    (): number => 300 + random.below(500),
    (): number => 800 + random.below(701),
  ];
  return Array.from({ length: count }, (_, i): Case => {
    const pick = random.below(100);
    const length = (lengthOf[pick < 12 ? 0 : pick < 62 ? 1 : pick < 90 ? 2 : 3] ?? token)();
    const own = Array.from({ length }, token);
    const prompt = i % 3 === 0 ? [...random.pick(prefixes as [number[], ...number[][]]), ...own].slice(0, 1_500) : own;
    const seeded: Partial<TestSampling> =
      i % 2 === 0
        ? {}
        : { temperature: 0.9, seed: random.below(2 ** 31), ...(i % 4 === 1 ? { topP: 0.9 } : { topK: 40 }) };
    const penalised: Partial<TestSampling> =
      i % 10 === 3 ? { presencePenalty: 0.5, frequencyPenalty: 0.3, repetitionPenalty: 1.2 } : {};
    const numSamples = i % 8 === 5 ? 4 : 1;
    const regex = i % 6 === 1 ? REGEXES[i % REGEXES.length] : undefined;
    const maxTokens = 4 + random.below(24);
    return { prompt, maxTokens, params: { ...greedy, ...seeded, ...penalised }, numSamples, regex };
  });
}

async function ask(cluster: Cluster, { prompt, maxTokens, params, numSamples, regex }: Case): Promise<number[][]> {
  const { choices } = await cluster.completion({
    prompt,
    max_tokens: maxTokens,
    temperature: params.temperature,
    top_p: params.topP,
    top_k: params.topK,
    seed: params.seed,
    n: numSamples,
    regex: regex ?? null,
    presence_penalty: params.presencePenalty,
    frequency_penalty: params.frequencyPenalty,
    repetition_penalty: params.repetitionPenalty,
  });
  return choices.map(({ token_ids: ids }) => [...ids]);
}

let cluster: Cluster;
let reference: LoadedModel;
let masks: MaskService;
const END_TOKENS = [2, 0];

/** Masks of the texts that match, computed anew after each output. With ignore_eos an output ends only where it must. */
function constraintOf(regex: string): ReferenceConstraint {
  const ebnf = toEbnf(regexGrammar(regex));
  return {
    endTokens: END_TOKENS,
    after: async (output) => {
      const mask = await masks.open({ ebnf, endTokens: END_TOKENS }, output);
      const [words, { isComplete }] = [mask.words.slice(), mask];
      mask.close();
      if (!isComplete) for (const end of END_TOKENS) words[end >> 5]! &= ~(1 << (end & 31));
      return { words, isComplete };
    },
  };
}

beforeAll(async () => {
  console.log(`oracle: SEED=${seed}`);
  reference = await loadReference(harbour, 'f16');
  const vocabulary = { kind: 'model', path: harbour, vocabSize: reference.folder.config.vocabSize } as const;
  masks = new MaskService({ threads: workerThreads, clock: systemClock, vocabulary });
  cluster = await Cluster.up(
    '--prefill',
    '2',
    '--decode',
    '2',
    '--store',
    '1',
    // Prompts are computed elsewhere than answers, whatever that costs.
    ...['--policy', 'longest_prefix', '--local-prefill-tokens', '8'],
    '--chunk-tokens',
    '128',
  );
});
afterAll(async () => {
  await cluster.close();
  await reference.executable.close();
  await masks.close();
});

async function expectOracle(cases: readonly Case[], actual: readonly number[][][]): Promise<void> {
  for (const [i, { prompt, maxTokens, params, numSamples, regex }] of cases.entries()) {
    const constraint = regex === undefined ? undefined : constraintOf(regex);
    const want: number[][] = [];
    for (let sample = 0; sample < numSamples; sample++) {
      const own = { ...params, seed: Number(params.seed) + sample };
      const tokens = await generate(reference.executable, prompt, own, maxTokens, [], constraint);
      want.push(tokens.map(({ token }) => token));
    }
    assert.deepEqual(actual[i], want, `prompt ${i} of ${prompt.length} tokens, SEED=${seed}`);
  }
}

test(`${numPrompts} mixed prompts give the tokens of a single-process loop, most of them prefilled elsewhere`, async () => {
  const cases = makeCases(numPrompts, new Random(seed));
  const actual = await mapConcurrently(cases, 8, (one) => ask(cluster, one));
  await expectOracle(cases, actual);
  const requests = (await cluster.requests()).filter(({ sample_of: of }) => of === null);
  expect(requests.length).toBe(numPrompts);
  const elsewhere = requests.filter(({ attempts }) =>
    attempts.some(({ prefills, report }) => prefills.length > 0 && (report?.fetched_tokens ?? 0) > 0),
  );
  console.log(`oracle: ${elsewhere.length} of ${numPrompts} were prefilled elsewhere and fetched`);
  expect(elsewhere.length).toBeGreaterThanOrEqual(numPrompts / 2);
  for (const { ttft_ms: ttft, ttft_parts_ms: parts } of requests) {
    const sum = Object.values(parts ?? {}).reduce((a, b) => a + b, 0);
    assert(Math.abs(sum - (ttft ?? NaN)) < 0.01, `the parts of a TTFT add up: ${sum} and ${ttft}`);
    // The remainder is transport: negative would mean that somebody claimed time that was not spent.
    for (const [part, ms] of Object.entries(parts ?? {})) assert(ms > -0.5, `${part} took ${ms} ms`);
  }
});

test('60 prompts give them while prefill, decode and store processes are killed', async () => {
  const random = new Random(seed + 1);
  const cases = makeCases(60, random);
  const killed: string[] = [];
  const victims = ['prefill-1', 'decode-1', 'store-1', 'decode-2', 'prefill-2'];
  let numAnswered = 0;
  // One for each eight answers: a fast machine has as many kills, and a slow one answers somebody between two of them.
  const strike = (): void => {
    const name = victims[killed.length % victims.length] ?? '';
    try {
      cluster.kill(name);
      killed.push(name);
    } catch {
      // The process is being restarted; the next answer kills it.
    }
  };
  const actual = await mapConcurrently(cases, 8, async (one) => {
    const answer = await ask(cluster, one);
    numAnswered++;
    if (numAnswered >= (killed.length + 1) * 8) strike();
    return answer;
  });
  console.log(`oracle: killed ${killed.join(', ')}`);
  expect(killed.length).toBeGreaterThan(2);
  const struck = (await cluster.requests())
    .slice(0, 60)
    .filter(
      ({ attempts, notes }) =>
        attempts.length > 1 ||
        notes.length > 0 ||
        attempts.some(({ prefills }) => prefills.some(({ outcome }) => outcome.startsWith('failed'))),
    );
  console.log(`oracle: ${struck.length} of 60 were struck and went on elsewhere`);
  expect(struck.length).toBeGreaterThan(0);
  await expectOracle(cases, actual);
});

longTest('100 prompts give them under the default policy, by which any instance does any part', async () => {
  const { code, errors } = await runToEnd(['policy', 'auto', '--router', cluster.hub]);
  assert.equal(code, 0, errors);
  const cases = makeCases(100, new Random(seed + 2));
  const actual = await mapConcurrently(cases, 8, (one) => ask(cluster, one));
  const requests = (await cluster.requests(512)).filter(({ sample_of: of }) => of === null).slice(0, 100);
  const generated = new Set(requests.flatMap(({ attempts }) => attempts.map(({ decode }) => decode)));
  console.log(`oracle: ${[...generated].sort().join(', ')} generated under the default policy`);
  expect(generated.size).toBe(4);
  await expectOracle(cases, actual);
});
