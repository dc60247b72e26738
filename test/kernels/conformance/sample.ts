import assert from 'node:assert/strict';
import {
  fromSlot,
  type DeviceSampleParams,
  type Executable,
  type SampleRequest,
  type Segment,
} from '../../../kernels/device.ts';
import {
  Sampler,
  FORBIDDEN,
  IN_PROMPT,
  minWeightOf,
  NO_TOKEN,
  penaltiesOf,
  scaleOf,
  fixedLogitOf,
  type SampleParams,
} from '../../../kernels/sampling.ts';
import { Random } from '../../../shared/base/random.ts';
import { casesOf, loaded, type Conformance } from './suite.ts';
import { sized } from '../../support/long.ts';

const numPages = 8;

/** A row, how it is sampled from, and what the pages and the mask hold. */
interface Case {
  readonly logits: Float32Array;
  readonly sample: SampleParams;
  readonly bias: Int32Array<ArrayBuffer> | undefined;
  readonly counts: Uint32Array<ArrayBuffer> | undefined;
  readonly allowed: Uint32Array | undefined;
}

/** Every kind of row and of sample, and every mixture of them. */
export function caseOf(random: Random, vocab: number): Case {
  const unit = (): number => random.u32() / 2 ** 32;
  const pick = <T>(...values: readonly T[]): T => values[random.below(values.length)]!;
  const spread = pick(0, 0.5, 4, 20, 300, 3_000);
  const grain = pick(0, 0, 0.25, 1);
  const logits = Float32Array.from({ length: vocab }, () => {
    const value = (unit() + unit() + unit() - 1.5) * spread;
    return grain > 0 ? Math.round(value / grain) * grain : value;
  });
  const put = (value: number, count: number): void => {
    for (let i = 0; i < count; i++) logits[random.below(vocab)] = value;
  };
  const kind = random.below(20);
  if (kind === 0) put(-Infinity, vocab);
  if (kind === 1) put(Infinity, 1 + random.below(3));
  if (kind === 2) put(NaN, 1);
  if (kind === 3) logits.fill(-Infinity);
  if (kind === 3) put(pick(1, -2_000, -Infinity, 0), 1);
  if (kind === 4) put(pick(50, -0, 1_022.9, 1_023), 2);
  const isGreedy = random.below(5) === 0;
  const sparse = (value: () => number): number => (random.below(10) === 0 ? value() : 0);
  const sample: SampleParams = {
    log2Scale: isGreedy ? undefined : scaleOf(Math.LOG2E / pick(1, 1, 0.7, 0.01, 2, 1e-7, 300, unit() + 0.1)),
    minWeight: minWeightOf(pick(0, 0, 0, 0.05, 0.9, 1)),
    topK: pick(0, 0, 1, 2, 40, vocab - 1, vocab, 2 ** 31 - 1, 1 + random.below(vocab)),
    topP: pick(0, 0, Math.round(0.9 * 2 ** 32), 1, 2 ** 32 - 1, random.u32()),
    random: [pick(random.u32(), random.u32(), 0, 0xffffffff), pick(random.u32(), 0xffffffff)],
    penalties:
      random.below(3) === 0
        ? penaltiesOf(pick(1, 1.1, 0.5, 10, 0.001, 1e-12), pick(0, 0.5, -2), pick(0, 0.3, -0.1, 2, 1e-4))
        : undefined,
  };
  return {
    logits,
    sample,
    bias:
      random.below(3) === 0
        ? Int32Array.from({ length: vocab }, () =>
            sparse(() => pick(fixedLogitOf(100), fixedLogitOf(-3.3), fixedLogitOf(-2_000), FORBIDDEN)),
          )
        : undefined,
    counts:
      random.below(3) === 0
        ? Uint32Array.from({ length: vocab }, () => sparse(() => pick(1, 3, 5_000, IN_PROMPT, IN_PROMPT + 2)))
        : undefined,
    allowed:
      random.below(4) === 0
        ? Uint32Array.from({ length: Math.ceil(vocab / 32) }, () => pick(random.u32(), 0xffffffff, 0, 1))
        : undefined,
  };
}

const wanted = (sample: DeviceSampleParams): SampleRequest => ({
  row: 0,
  numCandidates: 0,
  askedTokens: [],
  isFullRowWanted: false,
  sample,
});

export function samplerConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, sampling: plan = everySample } = device;
  const maxSamples = 8;
  const load = (vocab: number): Promise<Executable> =>
    loaded(
      device,
      {
        operations: [
          { kind: 'gather_samples', x: 'x', out: 'logits' },
          { kind: 'sample', logits: 'logits', vocab },
        ],
        buffers: { x: { rows: 'rows', width: vocab }, logits: { rows: 'samples', width: vocab } },
      },
      {},
      { maxRows: maxSamples, maxSamples, samplerPages: numPages },
    );

  for (const { vocab, cases } of plan) {
    test(`${name}: of ${vocab} logits ${cases} samples of every kind give the tokens of the definition`, async () => {
      const random = new Random(vocab);
      const executable = await load(vocab);
      const sampler = new Sampler(vocab);
      let numSampled = 0;
      for (let done = 0; done < cases; done += maxSamples) {
        const batch = Array.from({ length: Math.min(maxSamples, cases - done) }, () => caseOf(random, vocab));
        const x = new Float32Array(batch.length * vocab);
        batch.forEach(({ logits }, row) => x.set(logits, row * vocab));
        await executable.write('x', x);
        let page = 0;
        const segments = batch.map(({ sample, bias, counts, allowed }, slot): Segment => {
          const write = (
            values: Int32Array<ArrayBuffer> | Uint32Array<ArrayBuffer> | undefined,
          ): number | undefined => {
            if (!values || page === numPages) return undefined;
            executable.writeSamplerPage(page, 0, values);
            return page++;
          };
          const [biasPage, countsPage] = [write(bias), write(counts)];
          const request: DeviceSampleParams = {
            ...sample,
            slot,
            ...(biasPage === undefined ? {} : { biasPage }),
            ...(countsPage === undefined ? {} : { countsPage }),
            ...(allowed ? { allowedTokens: allowed } : {}),
          };
          return { tokens: [0], start: 0, blockTable: [0], samples: [wanted(request)] };
        });
        const results = await executable.run(segments);
        results.forEach(({ token }, row) => {
          const { logits, sample, bias, counts, allowed } = batch[row]!;
          const request = segments[row]!.samples![0]!.sample!;
          const state = {
            bias: request.biasPage === undefined ? undefined : bias,
            counts: request.countsPage === undefined ? undefined : counts,
            allowed,
          };
          const expected = sampler.sample(logits, sample, state);
          if (expected !== NO_TOKEN) numSampled++;
          assert.equal(token, expected, `case ${done + row}: ${JSON.stringify(sample)}`);
        });
      }
      assert(numSampled > cases / 2, 'most rows have something to sample');
      await executable.close();
    });
  }

  // The sampling kernels are the same in every set, so a device without sampling cases skips them.
  if (plan.length === 0) return;
  test(`${name}: a sampled token is the next step's, and its count the next sample's, without the caller between`, async () => {
    const vocab = 40;
    const random = new Random(3);
    const table = Float32Array.from({ length: vocab * vocab }, () => random.u32() / 2 ** 29);
    const executable = await loaded(
      device,
      {
        operations: [
          { kind: 'embed', table: 'table', out: 'x' },
          { kind: 'gather_samples', x: 'x', out: 'logits' },
          { kind: 'sample', logits: 'logits', vocab },
        ],
        buffers: { x: { rows: 'rows', width: vocab }, logits: { rows: 'samples', width: vocab } },
        weights: { table: { outputs: vocab, inner: vocab, parts: [{ tensor: 'table', outputs: vocab }] } },
      },
      { table },
      { maxRows: 8, maxSamples: 4, samplerPages: 2 },
    );
    const sampler = new Sampler(vocab);
    const penalties = penaltiesOf(1.3, 0.5, 0.7);
    const step = (slot: number, position: number): SampleParams => ({
      log2Scale: slot === 3 ? undefined : scaleOf(Math.LOG2E),
      minWeight: 1,
      topK: 0,
      topP: 0,
      random: [random.u32(), position],
      penalties: slot === 1 ? undefined : penalties,
    });
    // Slot 1 has no penalties; slots 2 and 3 have a page each.
    const pages = new Map([2, 3].map((slot, page) => [slot, { page, counts: new Uint32Array(vocab) }]));
    for (const { page, counts } of pages.values()) {
      counts[7] = IN_PROMPT;
      executable.writeSamplerPage(page, 0, counts);
    }
    const expected = new Map([1, 2, 3].map((slot) => [slot, 7]));
    for (let position = 0; position < 30; position++) {
      const sampling = new Map([...expected.keys()].map((slot) => [slot, step(slot, position)]));
      const runs = await executable.run(
        [...sampling].map(([slot, sample]): Segment => {
          const page = pages.get(slot)?.page;
          const request = wanted({ ...sample, slot, ...(page === undefined ? {} : { countsPage: page }) });
          const token = position === 0 ? 7 : fromSlot(slot);
          return { tokens: [token], start: 0, blockTable: [slot], samples: [request] };
        }),
      );
      [...sampling].forEach(([slot, sample], i) => {
        const row = table.subarray(expected.get(slot)! * vocab, (expected.get(slot)! + 1) * vocab);
        const counts = pages.get(slot)?.counts;
        const token = sampler.sample(row, sample, { counts });
        assert.equal(runs[i]!.token, token, `slot ${slot} at ${position}`);
        expected.set(slot, token);
        if (counts) counts[token]!++;
      });
    }
    await executable.close();
  });
}

/** Ten thousand in the long run. */
const everySample = [
  { vocab: 5, cases: sized(1_000, 200) },
  { vocab: 1_500, cases: sized(7_800, 400) },
  { vocab: 6_001, cases: sized(1_100, 200) },
  { vocab: 49_152, cases: 60 },
  { vocab: 128_256, cases: 24 },
  { vocab: 256_000, cases: 16 },
];
