/**
 * One engine with one model: prefill, decode, and the kernels of a step, next to the limits that its device showed in the same run and,
 * where there is one, next to a peer with the same weights, measured in turns.
 */
import type { Executable, KernelProfile, LoadOptions, Segment } from '../../kernels/device.ts';
import { kvTokenBytes } from '../../kernels/kv_layout.ts';
import { rowBytes, scalesPerRow, type WeightFormat } from '../../kernels/weights/weight_format.ts';
import { SequenceSampling } from '../../shared/engine/sampler.ts';
import { neutralSampling } from '../../shared/protocol/request.ts';
import { percentile, withReference, type Figure } from './figures.ts';
import { isDeltaLayer, type UniformModel } from './uniform_model.ts';
import { keptState } from '../support/states.ts';
import { PeerDecoding, peerPrefillMs, type PeerModel } from './llama_peer.ts';

/** Peak rates of a device: operations per second of each kind, and bytes read per second. */
export interface Limit {
  readonly name: string;
  readonly opsPerS: Readonly<Record<OpKind, number>>;
  readonly bytesPerS: number;
}

type OpKind = NonNullable<KernelProfile['kind']>;

export interface ModelBenchOptions {
  /** `engine/SHAPE/FORMAT`, and the kernel set where there are several. */
  readonly prefix: string;
  readonly format: WeightFormat;
  readonly chunkTokens: number;
  readonly blockSize: number;
  readonly prefillTokens: readonly number[];
  readonly batches: readonly number[];
  readonly contexts: readonly number[];
  /** A figure that would take longer is skipped. */
  readonly budgetMs: number;
  readonly hasProfile: boolean;
  readonly limits: readonly Limit[];
  readonly peer: PeerModel | undefined;
  /** In figures. */
  readonly peerName: string;
  readonly nowMs: () => number;
  readonly print: (line: string) => void;
  readonly onFigure: ((figure: Figure) => void) | undefined;
}

export type Profiled = Executable & {
  profile(batch: readonly Segment[], nowMs: () => number): Promise<KernelProfile[]>;
  numDispatches?(batch: readonly Segment[]): number;
};

/** Decode in turns with a peer: steps of each side in one, as many as take about this long. */
const TURNS = 4;
const TURN_MS = 700;
const MAX_STEPS_A_TURN = 12;
/** Tokens that a sequence may grow by while it is measured. */
export const GROWTH = 224;
const BLOCKS_A_CALL = 16;
/** Blocks and state slot of the first sequence. */
const FIRST = { firstBlock: 0, slot: 0 };

const sampling = {
  greedy: new SequenceSampling(neutralSampling),
  default: new SequenceSampling({ ...neutralSampling, temperature: 1 }),
  top_p: new SequenceSampling({ ...neutralSampling, temperature: 1, topP: 0.9 }),
};

/** Values of all products of one row, and of one sample. */
function productValues(model: UniformModel): { perRow: number; perSample: number } {
  const { hidden, layers, inner, vocabSize } = model;
  let perRow = layers * 3 * hidden * inner;
  for (let layer = 0; layer < layers; layer++) perRow += hidden * mixerWidth(model, layer);
  return { perRow, perSample: hidden * vocabSize };
}

/** Outputs of the products before a layer's attention or recurrence, and inputs of the one after it. */
function mixerWidth(model: UniformModel, layer: number): number {
  const { heads, kvHeads, headDim, delta } = model;
  if (!delta || !isDeltaLayer(model, layer)) return ((delta ? 3 : 2) * heads + 2 * kvHeads) * headDim;
  const { keyHeads, valueHeads, keyDim, valueDim } = delta;
  return 2 * keyHeads * keyDim + 3 * valueHeads * valueDim + 2 * valueHeads;
}

export class ModelBench {
  readonly #executable: Profiled;
  readonly #config: UniformModel;
  readonly #load: LoadOptions;
  readonly #options: ModelBenchOptions;
  readonly #figures: Figure[] = [];

  constructor(executable: Profiled, config: UniformModel, load: LoadOptions, options: ModelBenchOptions) {
    this.#executable = executable;
    this.#config = config;
    this.#load = load;
    this.#options = options;
  }

  async run(): Promise<Figure[]> {
    const { prefillTokens, batches, contexts, prefix } = this.#options;
    await this.#fillBlocks();
    let tokensPerMs: number | undefined;
    for (const numTokens of prefillTokens) tokensPerMs = await this.#prefill(numTokens, tokensPerMs);
    for (const context of contexts) await this.#decodeAt(context, tokensPerMs);
    for (const context of contexts) {
      const rate = (batch: number): number | undefined =>
        this.#figures.find(({ name }) => name === `${prefix}/decode/batch${batch}/context${context}`)?.value;
      const one = rate(1);
      const most = Math.max(...batches);
      const many = rate(most);
      if (one === undefined || many === undefined || most === 1) continue;
      this.#push({ name: `${prefix}/decode/batch${most}/context${context}/over-batch1`, value: many / one, unit: '×' });
    }
    return this.#figures;
  }

  /** KV that was never written would be one page of zeros, which no memory is read for. */
  async #fillBlocks(): Promise<void> {
    const { numBlocks } = this.#executable;
    const halves = new Uint16Array(this.#executable.blockBytes / 2);
    for (let i = 0; i < halves.length; i++) halves[i] = 0x2c00 + ((i * 2_654_435_761) % 2_048) + (i % 2) * 0x8000;
    const payload = new Uint8Array(halves.buffer);
    for (let first = 0; first < numBlocks; first += BLOCKS_A_CALL) {
      const blocks = Array.from({ length: Math.min(BLOCKS_A_CALL, numBlocks - first) }, (_, i) => first + i);
      await this.#executable.importBlocks(
        blocks,
        blocks.map(() => payload),
      );
    }
  }

  #tokens(count: number, start: number): number[] {
    return Array.from({ length: count }, (_, i) => 3 + ((start + i * 7) % (this.#config.vocabSize - 3)));
  }

  #segment(count: number, start: number, sequence: { firstBlock: number; slot: number }, isSampled: boolean): Segment {
    const numBlocks = Math.ceil((start + count) / this.#options.blockSize);
    return {
      tokens: this.#tokens(count, start),
      start,
      blockTable: Array.from({ length: numBlocks }, (_, i) => sequence.firstBlock + i),
      ...keptState(this.#executable, start, count, sequence.slot),
      ...(isSampled
        ? { samples: [{ row: count - 1, numCandidates: 1, askedTokens: [], isFullRowWanted: false }] }
        : {}),
    };
  }

  async #timed(batch: readonly Segment[]): Promise<number> {
    const { nowMs } = this.#options;
    const start = nowMs();
    await this.#executable.run(batch);
    return nowMs() - start;
  }

  async #promptMs(numTokens: number): Promise<number> {
    const { chunkTokens } = this.#options;
    let ms = 0;
    for (let start = 0; start < numTokens; start += chunkTokens) {
      const count = Math.min(chunkTokens, numTokens - start);
      ms += await this.#timed([this.#segment(count, start, FIRST, start + count === numTokens)]);
    }
    return ms;
  }

  /** Best of up to three, of each side in turns. Returns tokens per ms, which predicts the next one's time. */
  async #prefill(numTokens: number, tokensPerMs: number | undefined): Promise<number | undefined> {
    const { prefix, budgetMs, peer, chunkTokens, nowMs } = this.#options;
    const name = `${prefix}/prefill/${numTokens}`;
    let rate = tokensPerMs;
    if (rate === undefined) {
      // The first step compiles; a small second one says whether the whole is within the budget.
      const probe = Math.min(64, numTokens);
      await this.#timed([this.#segment(probe, 0, FIRST, true)]);
      rate = probe / (await this.#timed([this.#segment(probe, 0, FIRST, true)]));
    }
    if (this.#isTooLong(name, numTokens / rate)) return rate;
    const measure = async (peerMs: () => Promise<number>): Promise<[number, number]> => {
      let [ours, theirs] = [Infinity, Infinity];
      const untilMs = nowMs() + budgetMs;
      for (let turn = 0; turn < 3 && (turn === 0 || nowMs() + ours < untilMs); turn++) {
        ours = Math.min(ours, await this.#promptMs(numTokens));
        theirs = Math.min(theirs, await peerMs());
      }
      return [ours, theirs];
    };
    const [ms, peerMs] = peer
      ? await peer.withSequences(1, numTokens + 1, ([sequence]) =>
          measure(() => peerPrefillMs(sequence!, this.#tokens(numTokens, 0), nowMs)),
        )
      : await measure(() => Promise.resolve(Infinity));
    this.#pushRate(name, numTokens, ms, peerMs);
    const { perRow, perSample } = productValues(this.#config);
    const { format } = this.#options;
    const kind = format === 'f16' ? 'f32' : format === 'int8' ? 'int8' : 'int4';
    this.#pushOps(`${name}/products`, (2 * (numTokens * perRow + perSample)) / (ms / 1_000), kind);
    if (numTokens <= chunkTokens) await this.#profile(name, [this.#segment(numTokens, 0, FIRST, true)], ms);
    return numTokens / ms;
  }

  async #decodeAt(context: number, tokensPerMs: number | undefined): Promise<void> {
    const { batches, peer, budgetMs, print, prefix } = this.#options;
    const numSequences = Math.max(...batches);
    // The peer has to compute what is in its KV; it does so about as fast.
    const peerMs = (numSequences * context) / (tokensPerMs ?? 1);
    if (!peer) {
      for (const batch of batches) await this.#decode(batch, context, undefined);
    } else if (peerMs > 4 * budgetMs) {
      print(`${prefix}/decode at context ${context}: without the peer, whose prompts would take ${toS(peerMs)} s`);
      for (const batch of batches) await this.#decode(batch, context, undefined);
    } else {
      await peer.withSequences(numSequences, context + GROWTH, async (sequences) => {
        const prompt = this.#tokens(context, 0);
        const decoding = await PeerDecoding.start(sequences, prompt);
        for (const batch of batches) await this.#decode(batch, context, decoding);
        await decoding.end();
      });
    }
  }

  async #decode(batch: number, context: number, peer: PeerDecoding | undefined): Promise<void> {
    const { prefix, blockSize, nowMs } = this.#options;
    const name = `${prefix}/decode/batch${batch}/context${context}`;
    const perSequence = Math.ceil((context + GROWTH) / blockSize);
    // The peer's sequences grow, so ours are as long as they are.
    const segments = (): Segment[] =>
      Array.from({ length: batch }, (_, i) =>
        this.#segment(1, context + (peer?.numTokens[i] ?? 0), { firstBlock: i * perSequence, slot: i }, true),
      );
    await this.#timed(segments());
    const probe = await this.#timed(segments());
    const stepsATurn = Math.max(2, Math.min(MAX_STEPS_A_TURN, Math.floor(TURN_MS / probe)));
    if (this.#isTooLong(name, TURNS * stepsATurn * probe)) return;
    const [times, peerTimes]: [number[], number[]] = [[], []];
    if (peer) await peer.step(batch);
    for (let turn = 0; turn < TURNS; turn++) {
      for (let step = 0; step < stepsATurn; step++) times.push(await this.#timed(segments()));
      for (let step = 0; peer && step < stepsATurn; step++) {
        const start = nowMs();
        await peer.step(batch);
        peerTimes.push(nowMs() - start);
      }
    }
    const ms = percentile(times, 0.5);
    this.#pushRate(name, batch, ms, peer ? percentile(peerTimes, 0.5) : Infinity);
    this.#pushBytes(`${name}/read`, this.#stepBytes(batch, context) / (ms / 1_000));
    const numDispatches = this.#executable.numDispatches?.(segments());
    if (numDispatches !== undefined) {
      this.#push({ name: `${name}/dispatches`, value: numDispatches, unit: 'per step' });
      this.#push({ name: `${name}/per-dispatch`, value: (ms * 1_000) / numDispatches, unit: 'µs' });
    }
    await this.#sampled(name, segments, probe);
    await this.#profile(name, segments(), ms);
  }

  /** Measures the cost of sampling: each kind of sampling takes turns with greedy steps. */
  async #sampled(name: string, segments: () => Segment[], probeMs: number): Promise<void> {
    const numTurns = TURNS * Math.max(1, Math.min(MAX_STEPS_A_TURN, Math.floor(TURN_MS / probeMs / 3)));
    if (this.#isTooLong(`${name}/sampling`, 3 * numTurns * probeMs)) return;
    const times = new Map(Object.keys(sampling).map((kind) => [kind, [] as number[]]));
    for (let turn = 0; turn < numTurns; turn++) {
      for (const [kind, sample] of Object.entries(sampling)) {
        const batch = segments().map((segment, slot): Segment => ({
          ...segment,
          samples: [
            {
              row: segment.tokens.length - 1,
              numCandidates: 0,
              askedTokens: [],
              isFullRowWanted: false,
              sample: { ...sample.at(turn), slot },
            },
          ],
        }));
        times.get(kind)!.push(await this.#timed(batch));
      }
    }
    const greedyMs = percentile(times.get('greedy')!, 0.5);
    for (const kind of Object.keys(sampling).filter((one) => one !== 'greedy')) {
      const ms = percentile(times.get(kind)!, 0.5);
      this.#push(withReference(`${name}/sampling/${kind}`, ms, 'ms', 'greedy', greedyMs));
    }
  }

  /** Weights once, every sequence's KV, and its recurrent state, which is read and written. */
  #stepBytes(batch: number, context: number): number {
    const { format } = this.#options;
    const { hidden } = this.#config;
    const { perRow, perSample } = productValues(this.#config);
    const perValue = (rowBytes(format, hidden) + 2 * scalesPerRow(format, hidden)) / hidden;
    const kvBytes = this.#load.kv.layers.reduce((sum, _, layer) => sum + kvTokenBytes(this.#load.kv, layer), 0);
    const stateBytes = 2 * (this.#load.state?.slotBytes ?? 0);
    return (perRow + perSample) * perValue + batch * (context * kvBytes + stateBytes);
  }

  /** Kernels of a step, equal ones together: time, and bandwidth or arithmetic rate where the work is known. */
  async #profile(name: string, batch: readonly Segment[], stepMs: number): Promise<void> {
    if (!this.#options.hasProfile) return;
    // On webgpu each kernel runs once to warm up, once alone, and three times.
    if (this.#isTooLong(`${name}/kernel`, 5 * stepMs)) return;
    const { nowMs } = this.#options;
    const profiles = await this.#executable.profile(batch, nowMs);
    const wholeMs = profiles.reduce((sum, { ms }) => sum + ms, 0);
    const numRows = batch.reduce((sum, { tokens }) => sum + tokens.length, 0);
    for (const { label, numLaunches, ms, bytes, flops, kind = 'f32' } of profiles) {
      const kernel = `${name}/kernel/${label.replaceAll(' ', '-')}`;
      this.#push({ name: kernel, value: ms, unit: `ms in ${numLaunches}` });
      if (ms <= 0) continue;
      if (bytes > 0) this.#pushBytes(`${kernel}/read`, bytes / (ms / 1_000));
      if (flops > 0) this.#pushOps(`${kernel}/products`, flops / (ms / 1_000), kind);
      if (label !== 'delta_rule') continue;
      this.#push({ name: `${kernel}/per-row`, value: (ms * 1_000) / numRows / numLaunches, unit: 'µs in a layer' });
      this.#push({ name: `${kernel}/share`, value: ms / wholeMs, unit: 'of all kernels' });
    }
  }

  #push(figure: Figure): void {
    this.#figures.push(figure);
    this.#options.onFigure?.(figure);
  }

  /** Tokens per second, next to the peer's; Infinity: there is none. */
  #pushRate(name: string, numTokens: number, ms: number, peerMs: number): void {
    const [value, theirs] = [(numTokens / ms) * 1_000, (numTokens / peerMs) * 1_000];
    const compared =
      peerMs === Infinity ? {} : { reference: { name: this.#options.peerName, value: theirs }, ratio: value / theirs };
    this.#push({ name, value, unit: 'tokens/s', ...compared });
  }

  #pushOps(name: string, perS: number, kind: OpKind): void {
    const unit = kind === 'f32' ? 'GFLOP/s' : 'GOP/s';
    this.#pushShares(name, perS, unit, ({ opsPerS }) => opsPerS[kind], `${kind} peak`);
  }

  #pushBytes(name: string, perS: number): void {
    this.#pushShares(name, perS, 'GB/s', ({ bytesPerS }) => bytesPerS, 'read peak');
  }

  /** With its share of every limit; of the first under its own name. */
  #pushShares(name: string, perS: number, unit: string, of: (limit: Limit) => number, what: string): void {
    const { limits } = this.#options;
    if (limits.length === 0) this.#push({ name, value: perS / 1e9, unit });
    limits.forEach((limit, i) => {
      this.#push({
        name: i === 0 ? name : `${name}/${limit.name}`,
        value: perS / 1e9,
        unit,
        reference: { name: `${limit.name} ${what}`, value: of(limit) / 1e9 },
        ratio: perS / of(limit),
      });
    });
  }

  #isTooLong(name: string, ms: number): boolean {
    const { budgetMs, print } = this.#options;
    if (ms <= budgetMs) return false;
    print(`${name}: skipped, it would take about ${toS(ms)} s (--budget ${toS(budgetMs)})`);
    return true;
  }
}

function toS(ms: number): string {
  return (ms / 1_000).toFixed(0);
}
