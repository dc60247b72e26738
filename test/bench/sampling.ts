/**
 * Measures the cost of sampling a token by vocabulary, batch and kind of request: alone, on the device and on the host, and as a share of
 * whole steps of a model against greedy steps of the same run. The kinds take turns, so that noise affects all of them alike.
 */
import type { Device, Executable, LoadOptions, SampleRequest, Segment } from '../../kernels/device.ts';
import { HostRowSampler } from '../../kernels/wasm/row_sampler.ts';
import type { WeightFormat } from '../../kernels/weights/weight_format.ts';
import { Random } from '../../shared/base/random.ts';
import { decoderProgram } from '../../shared/engine/architectures/decoder.ts';
import { LogitAdjustments, SequenceSampling } from '../../shared/engine/sampler.ts';
import { samplingOf, type TestSampling } from '../support/request.ts';
import { peerModel } from './engine.ts';
import { percentile, withReference, type Figure } from './figures.ts';
import { PeerDecoding, type LlamaPeer, type PeerSampling } from './llama_peer.ts';
import { randomWeights } from './random_weights.ts';
import { configOf, shapeOfUniform, shapes } from './uniform_model.ts';
import { kvLayoutFor } from '../support/kv.ts';
import type { Program } from '../../kernels/program.ts';

export interface SamplingBenchOptions {
  readonly device: Device;
  readonly vocabs: readonly number[];
  readonly batches: readonly number[];
  /** Shape of the model for the whole steps. */
  readonly shape: string;
  readonly format: WeightFormat;
  /** Tokens before them. */
  readonly context: number;
  /** Steps of each kind on the device and on the host. */
  readonly numSteps: number;
  /** Peer whose whole steps are measured too, with the same number of threads. */
  readonly peer?: { readonly llama: LlamaPeer; readonly numThreads: number } | undefined;
  readonly print: (line: string) => void;
  readonly onFigure: (figure: Figure) => void;
}

/** Tokens that penalties look at. */
const PENALISED = 32_768;
const BIASED = 1_000;
const BLOCK_SIZE = 32;
const WARM_UP = 3;

/** All of the vocabulary. */
const peerNeutral = { topK: 0, topP: 1, minP: 0, seed: 11 };

/** Sampling parameters as clients send them, by name; `default` is a request without any. */
const kinds: Readonly<Record<string, (vocab: number) => Partial<TestSampling>>> = {
  greedy: () => ({}),
  default: () => ({ temperature: 1 }),
  top_p: () => ({ temperature: 1, topP: 0.9 }),
  'top_k+penalties': () => ({
    temperature: 1,
    topK: 40,
    repetitionPenalty: 1.1,
    presencePenalty: 0.5,
    frequencyPenalty: 0.2,
  }),
  bias: (vocab) => ({
    temperature: 1,
    logitBias: Array.from({ length: BIASED }, (_, i): [number, number] => [(i * 7_919) % vocab, (i % 9) - 4]),
  }),
};

/** The peer's equivalents of the kinds above. */
const peerKinds: Readonly<Record<string, (vocab: number) => PeerSampling>> = {
  greedy: () => ({ temperature: 0 }),
  default: () => ({ ...peerNeutral, temperature: 1 }),
  top_p: () => ({ ...peerNeutral, temperature: 1, topP: 0.9 }),
  'top_k+penalties': (vocab) => ({
    ...peerNeutral,
    temperature: 1,
    topK: 40,
    repeatPenalty: {
      punishTokens: Array.from({ length: PENALISED }, (_, i) => (i * 31) % vocab),
      penalty: 1.1,
      presencePenalty: 0.5,
      frequencyPenalty: 0.2,
    },
  }),
};

interface Kind {
  readonly name: string;
  readonly sampling: SequenceSampling;
  readonly memory: LogitAdjustments;
}

function kindsOf(vocab: number): Kind[] {
  const random = new Random(5);
  const tokens = Array.from({ length: PENALISED }, () => random.below(vocab));
  return Object.entries(kinds).map(([name, params]) => {
    const sampling = samplingOf(params(vocab));
    const context = { tokens, promptLength: PENALISED / 2, stopTokenIds: [] };
    return { name, sampling: new SequenceSampling(sampling), memory: new LogitAdjustments(sampling, context, vocab) };
  });
}

/** A page of the device for what each kind remembers. */
function pagesOf(executable: Executable, all: readonly Kind[]): Map<string, Partial<SampleRequest['sample']>> {
  let page = 0;
  return new Map(
    all.map(({ name, memory }) => {
      const put = (values: Int32Array<ArrayBuffer> | Uint32Array<ArrayBuffer> | undefined): number | undefined => {
        if (values) executable.writeSamplerPage(page, 0, values);
        return values && page++;
      };
      const [biasPage, countsPage] = [put(memory.bias), put(memory.counts)];
      const pages = {
        ...(biasPage === undefined ? {} : { biasPage }),
        ...(countsPage === undefined ? {} : { countsPage }),
      };
      return [name, pages];
    }),
  );
}

const MAX_PAGES = 4;

/** Logits as models have them: a few that stand out, a tail that falls. */
function logitsOf(vocab: number, random: Random): Float32Array {
  const unit = (): number => random.u32() / 2 ** 32;
  const row = Float32Array.from({ length: vocab }, () => (unit() + unit() + unit() - 1.5) * 5 - 2);
  for (let i = 0; i < 30; i++) row[random.below(vocab)] = 8 + unit() * 8;
  return row;
}

/** `ms` by name, in turns; medians. */
async function inTurns(
  names: readonly string[],
  numTurns: number,
  run: (name: string, turn: number) => Promise<unknown> | number,
): Promise<Map<string, number>> {
  const times = new Map(names.map((name) => [name, [] as number[]]));
  for (let turn = 0; turn < numTurns + WARM_UP; turn++) {
    for (const name of names) {
      const start = performance.now();
      await run(name, turn);
      if (turn >= WARM_UP) times.get(name)!.push(performance.now() - start);
    }
  }
  return new Map([...times].map(([name, ms]) => [name, percentile(ms, 0.5)]));
}

export async function benchSampling(options: SamplingBenchOptions): Promise<Figure[]> {
  const figures: Figure[] = [];
  const push = (figure: Figure): void => {
    figures.push(figure);
    options.onFigure(figure);
  };
  for (const vocab of options.vocabs) {
    await benchRows(vocab, options, push);
    await benchHost(vocab, options, push);
  }
  await benchSteps(options, push);
  await benchPeer(options, push);
  return figures;
}

/** Samples alone: rows that lie there already. */
async function benchRows(
  vocab: number,
  { device, batches, numSteps }: SamplingBenchOptions,
  push: (figure: Figure) => void,
): Promise<void> {
  const most = Math.max(...batches);
  const executable = await device.load(
    {
      operations: [
        { kind: 'gather_samples', x: 'x', out: 'logits' },
        { kind: 'sample', logits: 'logits', vocab },
      ],
      buffers: { x: { rows: 'rows', width: vocab }, logits: { rows: 'samples', width: vocab } },
      weights: {},
      kv: [],
      rope: {},
    },
    {
      slices: () => ({
        [Symbol.asyncIterator]: () => ({ next: () => Promise.resolve({ done: true, value: undefined }) }),
      }),
    },
    { ...loadOf({ kv: [] }, 'f32', most, 1), maxRows: most, samplerPages: MAX_PAGES },
  );
  const random = new Random(3);
  const rows = new Float32Array(most * vocab);
  for (let row = 0; row < most; row++) rows.set(logitsOf(vocab, random), row * vocab);
  await executable.write('x', rows);
  const all = kindsOf(vocab);
  const pages = pagesOf(executable, all);
  const run = (batch: number, sampling: SequenceSampling | undefined, name: string, turn: number): Promise<unknown> =>
    executable.run(
      Array.from({ length: batch }, (_, slot): Segment => ({
        tokens: [0],
        start: 0,
        blockTable: [0],
        samples: [
          {
            row: 0,
            numCandidates: 0,
            askedTokens: [],
            isFullRowWanted: false,
            ...(sampling ? { sample: { ...sampling.at(turn * most + slot), ...pages.get(name), slot } } : {}),
          },
        ],
      })),
    );
  for (const batch of batches) {
    const turns = Math.max(3, Math.ceil(numSteps / batch));
    const times = await inTurns(['nothing', ...all.map(({ name }) => name)], turns, (name, turn) =>
      run(batch, all.find((kind) => kind.name === name)?.sampling, name, turn),
    );
    const nothing = times.get('nothing')!;
    for (const { name } of all)
      push({
        name: `sampling/vocab${vocab}/batch${batch}/${name}`,
        value: Math.max(0, times.get(name)! - nothing) / batch,
        unit: 'ms/token',
      });
  }
  await executable.close();
}

/** Rows that the host samples from. */
async function benchHost(
  vocab: number,
  { numSteps }: SamplingBenchOptions,
  push: (figure: Figure) => void,
): Promise<void> {
  const sampler = new HostRowSampler(vocab);
  const logits = logitsOf(vocab, new Random(3));
  const all = kindsOf(vocab);
  const times = await inTurns(
    all.map(({ name }) => name),
    numSteps,
    (name, turn) => {
      const kind = all.find((one) => one.name === name)!;
      return sampler.sample(logits, kind.sampling.at(turn), kind.memory);
    },
  );
  for (const [name, value] of times) push({ name: `sampling/vocab${vocab}/host/${name}`, value, unit: 'ms/token' });
}

/** Whole steps of a model, each kind's against greedy ones. */
async function benchSteps(
  { device, batches, shape, format, context, numSteps }: SamplingBenchOptions,
  push: (figure: Figure) => void,
): Promise<void> {
  const known = shapes[shape];
  if (!known) throw new Error(`no shape ${shape}`);
  const config = configOf(known, context + 1);
  const program = decoderProgram(shapeOfUniform(config), context + 1);
  const perSequence = Math.ceil((context + 1) / BLOCK_SIZE);
  const most = Math.min(8, Math.max(...batches));
  const load = { ...loadOf(program, format, most, perSequence), maxRows: 64, samplerPages: MAX_PAGES };
  const executable = await device.load(program, randomWeights(program, 7), load);
  const all = kindsOf(config.vocabSize);
  const pages = pagesOf(executable, all);
  for (const batch of batches.filter((one) => one <= most)) {
    const times = await inTurns(
      all.map(({ name }) => name),
      numSteps,
      (name, turn) =>
        executable.run(
          Array.from({ length: batch }, (_, slot): Segment => {
            const sample = { ...all.find((kind) => kind.name === name)!.sampling.at(turn), ...pages.get(name), slot };
            return {
              tokens: [slot + 3],
              start: context,
              blockTable: Array.from({ length: perSequence }, (__, i) => slot * perSequence + i),
              samples: [{ row: 0, numCandidates: 0, askedTokens: [], isFullRowWanted: false, sample }],
            };
          }),
        ),
    );
    for (const [name, ms] of times)
      push(
        withReference(
          `sampling/${shape}/${format}/step/batch${batch}/${name}`,
          ms,
          'ms',
          'greedy',
          times.get('greedy')!,
        ),
      );
  }
  await executable.close();
}

/** Measures whole steps of the peer with the same weights, by kind, against its own greedy steps. */
async function benchPeer(
  { peer, batches, shape, format, context, numSteps, print }: SamplingBenchOptions,
  push: (figure: Figure) => void,
): Promise<void> {
  const known = shapes[shape];
  if (!peer || !known) return;
  const config = configOf(known, context + 1);
  const weights = randomWeights(decoderProgram(shapeOfUniform(config), context + 1), 7);
  const model = await peerModel(peer.llama, peer.numThreads, { shape, format }, config, weights, print);
  if (!model) return;
  const prompt = Array.from({ length: context }, (_, i) => 3 + ((i * 7) % (config.vocabSize - 3)));
  const names = Object.keys(peerKinds);
  for (const batch of batches.filter((one) => one <= 8)) {
    await model.withSequences(names.length * batch, context + numSteps + 2 * WARM_UP, async (sequences) => {
      const decodings = new Map<string, PeerDecoding>();
      for (const [i, name] of names.entries()) {
        const its = sequences.slice(i * batch, (i + 1) * batch);
        decodings.set(name, await PeerDecoding.start(its, prompt, peerKinds[name]?.(config.vocabSize)));
      }
      const times = await inTurns(names, numSteps, (name) => decodings.get(name)!.step(batch));
      for (const decoding of decodings.values()) await decoding.end();
      for (const [name, ms] of times)
        push(
          withReference(
            ...([`sampling/${shape}/${format}/llama.cpp/batch${batch}/${name}`, ms, 'ms'] as const),
            ...(["llama.cpp's greedy", times.get('greedy')!] as const),
          ),
        );
    });
  }
  await model.close();
}

function loadOf(
  { kv }: Pick<Program, 'kv'>,
  weightFormat: WeightFormat,
  maxSamples: number,
  blocksEach: number,
): LoadOptions {
  const numBlocks = maxSamples * blocksEach;
  return {
    maxRows: maxSamples,
    maxSamples,
    maxBlocksPerSequence: blocksEach,
    weightFormat,
    kv: kvLayoutFor(kv, 'f16', BLOCK_SIZE),
    numBlocks: { min: numBlocks, max: numBlocks },
  };
}
