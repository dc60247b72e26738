/**
 * A device that cannot be fooled: the KV of a token is a hash of its whole prefix, and a step reads the KV of every position through
 * the block table and folds it into the logits. A wrong, torn, stale or foreign block changes the tokens. So does a wrong state of its
 * recurrent layer, if the run's model has one: a hash of all tokens so far, which is in no block.
 */
import assert from 'node:assert/strict';
import {
  hiddenRowsOf,
  MAX_FULL_ROWS,
  SLOT_BIT,
  type Executable,
  type RunOptions,
  type SampleRequest,
  type SampleResult,
  type Segment,
  type StepExport,
  type RowSampler,
} from '../../kernels/device.ts';
import { Sampler, NO_TOKEN } from '../../kernels/sampling.ts';
import { HostRowSampler } from '../../kernels/wasm/row_sampler.ts';
import type { Clock } from '../../shared/base/clock.ts';
import { LogitAdjustments, SequenceSampling, numCandidatesOf, sampledToken } from '../../shared/engine/sampler.ts';
import { kvSpec, type KvSpec, type LayerKv, type LayerSpan } from '../../shared/kv/kv_spec.ts';
import type { SampledMessage, TokenConstraintMessage } from '../../shared/protocol/messages.ts';
import { allowedAfter, maskOf } from '../support/constraints.ts';
import { samplingOf, type TestSampling } from '../support/request.ts';

/** Layers that keep KV: one per half of it, so that each half has a checksum of its own. */
const SIM_LAYERS = 2;
export const SIM_VOCAB = 61;
/** Values of a hidden state. */
const SIM_HIDDEN = 4;

/** Tokens that rows see of each layer, their own included; 0: all. At least two: a token's KV follows from the one before. */
let windows: readonly [low: number, high: number] = [0, 0];

/** Sets the attention windows of this run's two layers, in tokens; 0 means all tokens. */
export function windowLayers(of: readonly [low: number, high: number]): void {
  windows = of;
}

/** Whether this run's model has a recurrent layer. */
let isHybrid = false;

/** Sets whether this run's model has a recurrent layer, whose state is folded into the logits. */
export function makeHybrid(has: boolean): void {
  isHybrid = has;
}

/** The state of the recurrent layer after a token. */
function stateAfter(state: number, token: number): number {
  const mixed = Math.imul(state ^ (token + 1), 0x9e3779b1);
  return Math.imul(mixed ^ (mixed >>> 15), 0xc2b2ae35) >>> 0;
}

/** State at a sequence's beginning. */
const NO_STATE = 0;
/** State that a slot has before anything was saved in it, so that its use shows. */
const UNWRITTEN_STATE = 0xbadc0de;

/** Returns the KV layout of this run's model. With `hasState`, a recurrent layer without blocks lies between its two layers. */
export function simSpec(blockSize: number, minFrameBytes: number, hasState: boolean): KvSpec {
  const layers = windows.map((window): LayerKv => ({ kind: window > 0 ? 'window' : 'paged', planes: [WORDS], window }));
  const state: LayerKv = { kind: 'state', planes: [WORDS], window: 0 };
  const [low, high] = layers as [LayerKv, LayerKv];
  return kvSpec(hasState ? [low, state, high] : [low, high], { blockSize, valueType: 'f32', minFrameBytes });
}

/** The first position that the row at this one sees. */
function firstSeen(layer: 0 | 1, position: number): number {
  return windows[layer] === 0 ? 0 : Math.max(0, position - windows[layer] + 1);
}

/** Words (u32) of a token in each layer: its value, and seven that follow from it, so that no word changes unnoticed. */
const WORDS = 8;

/** A block's KV as it leaves the device: its layers, each after the other. */
function writePayload(out: Uint8Array, layers: readonly Uint32Array[]): void {
  const words = new DataView(out.buffer, out.byteOffset, out.byteLength);
  layers.forEach((values, layer) => {
    values.forEach((value, token) => {
      for (let i = 0; i < WORDS; i++) {
        words.setUint32(4 * (WORDS * (layer * values.length + token) + i), Math.imul(value, 2 * i + 1), true);
      }
    });
  });
}

/** Returns the values of a payload, one array per layer. A word that does not follow from the first one alters its token's value. */
export function readPayload(payload: Uint8Array, blockSize: number): Uint32Array[] {
  const words = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  return Array.from({ length: payload.byteLength / (4 * WORDS * blockSize) }, (_, layer) =>
    Uint32Array.from({ length: blockSize }, (__, token) => {
      const at = (i: number): number => words.getUint32(4 * (WORDS * (layer * blockSize + token) + i), true);
      const value = at(0);
      for (let i = 1; i < WORDS; i++) if (at(i) !== Math.imul(value, 2 * i + 1) >>> 0) return value ^ 0x5bd1e995;
      return value;
    }),
  );
}

/** Returns the state in the payload of a state record. */
export function readState(payload: Uint8Array): number {
  return readPayload(payload, 1)[0]?.[0] ?? UNWRITTEN_STATE;
}

/** [low, high] of the KV at a position, from that of the position before. */
function kvAfter(low: number, high: number, token: number, position: number): [low: number, high: number] {
  let a = Math.imul(low ^ token, 0x9e3779b1) + position;
  let b = Math.imul(high ^ Math.imul(token + 1, 0x85ebca6b), 0xc2b2ae35) ^ a;
  a = Math.imul(a ^ (a >>> 15) ^ b, 0x27d4eb2f);
  b = Math.imul(b ^ (b >>> 13), 0x165667b1) + a;
  return [a >>> 0, b >>> 0];
}

const FIRST: readonly [low: number, high: number] = [0x243f6a88, 0x85a308d3];
const fold = (hash: number, low: number, high: number): number =>
  Math.imul(Math.imul(hash ^ low, 0x01000193) ^ high, 0x85ebca6b) >>> 0;

/** Returns a hash of the KV that the row at `position` sees. */
function foldSeen(position: number, low: (position: number) => number, high: (position: number) => number): number {
  let hash = 0x811c9dc5;
  if (windows[0] === windows[1]) {
    for (let at = firstSeen(0, position); at <= position; at++) hash = fold(hash, low(at), high(at));
    return hash;
  }
  for (let at = firstSeen(0, position); at <= position; at++) hash = fold(hash, low(at), 0);
  for (let at = firstSeen(1, position); at <= position; at++) hash = fold(hash, 0, high(at));
  return hash;
}

/** Folds the state of the recurrent layer in, if the model has one. */
function withState(hash: number, state: number): number {
  return isHybrid ? fold(hash, state, ~state) : hash;
}

/** Every logit, from what was folded. */
function logitsOf(hash: number): Float32Array {
  return Float32Array.from({ length: SIM_VOCAB }, (_, token) => {
    const mixed = Math.imul(hash ^ Math.imul(token + 1, 0x9e3779b1), 0x85ebca6b);
    return ((mixed ^ (mixed >>> 15)) >>> 0) / 2 ** 29;
  });
}

/** The hidden state, from what was folded: values from -1 to 1. */
function hiddenStateOf(hash: number): Float32Array {
  return Float32Array.from({ length: SIM_HIDDEN }, (_, i) => {
    const mixed = Math.imul(hash ^ Math.imul(i + 1, 0xc2b2ae35), 0x27d4eb2f);
    return (mixed ^ (mixed >>> 13)) / 2 ** 31;
  });
}

/** Returns the result of one row of logits, all but the sampled token. */
function resultOf(logits: Float32Array, request: Pick<SampleRequest, 'numCandidates' | 'askedTokens'>): SampleResult {
  const isListed = request.numCandidates > 0;
  const best = isListed
    ? [...logits.keys()].sort((a, b) => logits[b]! - logits[a]! || a - b).slice(0, request.numCandidates)
    : [];
  return {
    token: NO_TOKEN,
    tokenLogit: NaN,
    candidateIds: Uint32Array.from(best),
    candidateLogits: Float32Array.from(best, (token) => logits[token]!),
    logSumExp: isListed ? Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit), 0)) : NaN,
    askedLogits: Float32Array.from(request.askedTokens, (token) => logits[token]!),
  };
}

const sampler = new Sampler(SIM_VOCAB);

export interface PlainRequest {
  readonly tokens: readonly number[];
  readonly maxLength: number;
  readonly stopTokenIds: readonly number[];
  readonly sampling: TestSampling;
  readonly constraint?: TokenConstraintMessage | undefined;
}

export interface PlainRun {
  /** Tokens that the request must emit. */
  readonly sampled: readonly SampledMessage[];
  /** KV of every position of prompt and output but the last, as [low, high]. */
  readonly kv: readonly (readonly [low: number, high: number])[];
  /** State of the recurrent layer after each of these positions. */
  readonly states: readonly number[];
  /** ln p of each token of the prompt but the first, by position. */
  readonly promptLogprobs: ReadonlyMap<number, number>;
}

/** A request without blocks, batches or machines. */
export function plainRun({ tokens, maxLength, stopTokenIds, sampling: wish, constraint }: PlainRequest): PlainRun {
  const sampling = samplingOf(wish);
  const all = [...tokens];
  const sampled: SampledMessage[] = [];
  const kv: [number, number][] = [];
  const states: number[] = [];
  const promptLogprobs = new Map<number, number>();
  const sequenceSampling = new SequenceSampling(sampling);
  const memory = new LogitAdjustments(sampling, { tokens, promptLength: tokens.length, stopTokenIds }, SIM_VOCAB);
  let [low, high] = FIRST;
  for (let position = 0; all.length < maxLength; position++) {
    [low, high] = kvAfter(low, high, all[position]!, position);
    kv.push([low, high]);
    const state = stateAfter(states.at(-1) ?? NO_STATE, all[position]!);
    states.push(state);
    const seen = foldSeen(
      position,
      (at) => kv[at]![0],
      (at) => kv[at]![1],
    );
    const hash = withState(seen, state);
    if (position < tokens.length - 1) {
      const next = tokens[position + 1]!;
      const { askedLogits, logSumExp } = resultOf(logitsOf(hash), { numCandidates: 1, askedTokens: [next] });
      promptLogprobs.set(position + 1, askedLogits[0]! - logSumExp);
    }
    if (position < all.length - 1) continue;
    const logits = logitsOf(hash);
    const allowedNow = constraint && allowedAfter(constraint, all.slice(tokens.length), stopTokenIds);
    memory.changesAt(all.length, allowedNow?.isComplete === true);
    const { bias, counts } = memory;
    const allowed = allowedNow && maskOf(allowedNow, SIM_VOCAB);
    const token = sampler.sample(logits, sequenceSampling.at(all.length), { bias, counts, allowed });
    memory.count(token);
    const result = resultOf(logits, { numCandidates: numCandidatesOf(sampling), askedTokens: [] });
    const one = sampledToken(sampling, all.length, token, logits[token]!, result);
    assert(
      sampled.length >= sampling.minTokens || !stopTokenIds.includes(one.token) || allowedNow?.isComplete,
      'a stop token came before the least number of tokens',
    );
    const isPlain = sampling.temperature === 0 && !bias && !counts && !allowedNow;
    assert(!isPlain || logits.every((logit) => logit <= logits[one.token]!), 'greedy is not the best');
    sampled.push(one);
    all.push(one.token);
    if (stopTokenIds.includes(one.token) || (constraint?.grammar && constraint.endTokens.includes(one.token))) break;
  }
  return { sampled, kv, states, promptLogprobs };
}

/** The embedding of a prompt, and the KV of all its positions. */
export interface PlainEmbedding extends Pick<PlainRun, 'sampled' | 'kv' | 'states'> {
  /** A vector of length 1. */
  readonly values: Float32Array;
}

/** The embedding of a prompt without blocks, batches or machines. */
export function plainEmbedding(tokens: readonly number[], isMean: boolean): PlainEmbedding {
  const kv: [number, number][] = [];
  const states: number[] = [];
  const sum = new Float64Array(SIM_HIDDEN);
  let [low, high] = FIRST;
  tokens.forEach((token, position) => {
    [low, high] = kvAfter(low, high, token, position);
    kv.push([low, high]);
    const state = stateAfter(states.at(-1) ?? NO_STATE, token);
    states.push(state);
    if (!isMean && position < tokens.length - 1) return;
    const seen = foldSeen(
      position,
      (at) => kv[at]![0],
      (at) => kv[at]![1],
    );
    const hash = withState(seen, state);
    hiddenStateOf(hash).forEach((value, i) => (sum[i]! += value));
  });
  const length = Math.sqrt(sum.reduce((all, value) => all + value * value, 0));
  return { values: Float32Array.from(sum, (value) => value / length), kv, states, sampled: [] };
}

export interface SimDeviceOptions {
  readonly spec: KvSpec;
  readonly numBlocks: number;
  /** Slots for states of the recurrent layer; 0 where the model has none. */
  readonly numStateSlots: number;
  readonly clock: Clock;
  /** Milliseconds of a step; `rowMs` is added for each row in it. */
  readonly stepMs: number;
  readonly rowMs: number;
  /** Steps that it takes while one runs. */
  readonly numAhead: number;
  /** With too few of them the host samples. */
  readonly numPages: number;
  /** Blocks that a step may give away while it runs. */
  readonly numExportable: number;
}

export class SimExecutable implements Executable {
  readonly blockBytes: number;
  readonly numBlocks: number;
  readonly maxRowsNow = Infinity;
  readonly numAhead: number;
  readonly numExportable: number;
  readonly sampling: Executable['sampling'];
  readonly hiddenWidth = SIM_HIDDEN;
  readonly numStateSlots: number;
  readonly #options: SimDeviceOptions;
  /** The step that was computed in part, and what it saw of layers then. */
  #begun: { readonly until: number; readonly seen: readonly Uint32Array[] } | undefined;
  /** End of the operation submitted last. Operations run in the order of submission. */
  #last: Promise<unknown> = Promise.resolve();
  /** Blocks of each step that it was given and has not returned. */
  readonly #given = new Set<readonly number[]>();
  /** State slots that a step which was not returned reads or writes, by step. */
  readonly #givenStates = new Set<readonly number[]>();
  readonly #states: Uint32Array;
  /** Token sampled last into each sampler slot; and the sampler pages, one value per token of the vocabulary. */
  readonly #slots: number[] = [];
  readonly #pages: readonly Int32Array<ArrayBuffer>[];
  /** KV values of the two layers, one per token position of every block. */
  readonly #layers: readonly [low: Uint32Array, high: Uint32Array];
  readonly #blockSize: number;
  /** The model's layers that keep KV, in the order of `#layers`. */
  readonly #stored: readonly number[];
  readonly #low: Uint32Array;
  readonly #high: Uint32Array;
  #isLost = false;
  #isHanging = false;
  #isCopyHanging = false;
  /** Steps that it was given. */
  numRuns = 0;

  constructor(options: SimDeviceOptions) {
    this.#options = options;
    this.numBlocks = options.numBlocks;
    this.numStateSlots = options.numStateSlots;
    this.#states = new Uint32Array(options.numStateSlots).fill(UNWRITTEN_STATE);
    this.numAhead = options.numAhead;
    this.numExportable = options.numExportable;
    this.sampling = { vocab: SIM_VOCAB, numPages: options.numPages };
    // Unwritten pages forbid every token and count each as seen often, so that their use shows.
    this.#pages = Array.from({ length: options.numPages }, () => new Int32Array(SIM_VOCAB).fill(-(2 ** 31)));
    const { blockSize, payloadBytes, layers } = options.spec;
    this.#blockSize = blockSize;
    this.blockBytes = payloadBytes;
    this.#stored = layers.flatMap(({ bytes }, layer) => (bytes > 0 ? [layer] : []));
    assert.equal(this.#stored.length, SIM_LAYERS);
    // Unwritten KV is not zero, so that a block that is used before it is written shows.
    this.#low = new Uint32Array(options.numBlocks * blockSize).fill(0xdeadbeef);
    this.#high = new Uint32Array(options.numBlocks * blockSize).fill(0xfeedface);
    this.#layers = [this.#low, this.#high];
  }

  /** Returns the values of a block's tokens: those of the low layer, then those of the high one. */
  contentHashOfBlock(block: number): Uint32Array {
    const blockSize = this.#blockSize;
    const [from, to] = [block * blockSize, (block + 1) * blockSize];
    return Uint32Array.of(...this.#low.subarray(from, to), ...this.#high.subarray(from, to));
  }

  /** Returns the state in a slot, as {@link readState} gives it. */
  stateIn(slot: number): number {
    return this.#states[slot]!;
  }

  /** State slots that a step may read or write, by step. */
  get touchedStates(): Iterable<readonly number[]> {
    return this.#givenStates;
  }

  /** Blocks that a step may read or write, by step. */
  get touched(): Iterable<readonly number[]> {
    return this.#given;
  }

  /** The device is gone: what runs, and what comes, fails. */
  lose(): void {
    this.#isLost = true;
  }

  /** Whether no step ends any more. */
  get isHanging(): boolean {
    return this.#isHanging;
  }

  /** Stops all answers. With `copies`, steps go on and only copies of blocks never end. */
  hang(what: 'all' | 'copies' = 'all'): void {
    if (what === 'all') this.#isHanging = true;
    this.#isCopyHanging = true;
  }

  /** After a wait on the device: whether it is still there. */
  async #alive(): Promise<void> {
    if (this.#isHanging) await new Promise<never>(() => undefined);
    if (this.#isLost) throw new Error('the device was lost');
  }

  /** After what it was given before. */
  #inOrder<T>(doIt: () => Promise<T>): Promise<T> {
    const done = this.#last.then(doIt);
    this.#last = done.catch(() => undefined);
    return done;
  }

  run(batch: readonly Segment[], { exports, section }: RunOptions = {}): Promise<SampleResult[]> {
    const { clock, stepMs, rowMs } = this.#options;
    this.numRuns++;
    const numRows = batch.reduce((sum, { tokens }) => sum + tokens.length, 0);
    // A copy of the batch as it is now: the caller may change it later.
    const given = batch.map((segment) => ({
      ...segment,
      tokens: Array.from(segment.tokens),
      blockTable: Array.from(segment.blockTable),
    }));
    const numFull = batch.reduce(
      (sum, { samples = [] }) => sum + samples.filter(({ isFullRowWanted }) => isFullRowWanted).length,
      0,
    );
    assert(numFull <= MAX_FULL_ROWS, 'more full rows than a step gives');
    hiddenRowsOf(batch, SIM_HIDDEN);
    const blockSize = this.#blockSize;
    // Blocks before every window are seen by no row, and may be reused during the step.
    const touched = given.flatMap(({ start, blockTable }) =>
      blockTable.slice(Math.floor(Math.min(firstSeen(0, start), firstSeen(1, start)) / blockSize)),
    );
    this.#given.add(touched);
    const touchedStates = given.flatMap(({ state }) =>
      state ? [...(state.from === undefined ? [] : [state.from]), ...state.saves.map(({ slot }) => slot)] : [],
    );
    this.#givenStates.add(touchedStates);
    this.#checkStates(given);
    assert(this.#given.size <= this.numAhead + 1, `${this.#given.size} steps at a time`);
    return this.#inOrder(async () => {
      // Half before, half after: whoever changes blocks while a step runs is caught either way.
      await clock.sleep((stepMs + rowMs * numRows) / 2);
      await this.#alive();
      this.#checkPart(given, section?.from);
      const results = section?.until === undefined ? given.flatMap((segment) => this.#compute(segment)) : [];
      this.#begun =
        section?.until === undefined ? undefined : { until: section.until, seen: this.#seen(given, section.until) };
      await this.#giveAway(exports, (stepMs + rowMs * numRows) / 2);
      this.#given.delete(touched);
      this.#givenStates.delete(touchedStates);
      return results;
    });
  }

  /** Asserts that segments say where their states are, and that no two touch one slot which one of them writes. */
  #checkStates(given: readonly Segment[]): void {
    if (this.numStateSlots === 0) return;
    const written = new Map<number, number>();
    given.forEach(({ state, tokens }, segment) => {
      assert(state, 'a segment without a state');
      let last = 0;
      for (const { rows, slot } of state.saves) {
        assert(rows > last && rows <= tokens.length, 'states are saved in the order of rows');
        assert(!written.has(slot), `two states are saved in slot ${slot}`);
        written.set(slot, segment);
        last = rows;
      }
    });
    given.forEach(({ state }, segment) => {
      const writer = state?.from === undefined ? undefined : written.get(state.from);
      assert(writer === undefined || writer === segment, 'a segment begins with a slot that another one writes');
    });
  }

  /** A range of layers after the other, while the rest of the step runs. */
  async #giveAway(exports: StepExport | undefined, ms: number): Promise<void> {
    const { clock, stepMs, spec } = this.#options;
    assert((exports?.blocks.length ?? 0) <= this.numExportable, 'more blocks leave with a step than may');
    const frames = exports ? spec.frames : [];
    for (const [i, frame] of frames.entries()) {
      // Long enough that much happens between one and the next.
      await clock.sleep(Math.max(ms / (frames.length + 1), stepMs));
      await this.#alive();
      const { offset, rawBytes } = frame;
      exports?.blocks.forEach((block, b) => {
        const layers = this.#layersOf(block).filter((_, i) => isIn(frame, this.#stored[i]!));
        const out = exports.outs[b]!.subarray(offset, offset + rawBytes);
        assert(out.length === rawBytes && layers[0]?.length === this.#blockSize, 'all of the frame');
        writePayload(out, layers);
      });
      exports?.onRange(i);
    }
    await clock.sleep(ms / (frames.length + 1));
    await this.#alive();
  }

  #layersOf(block: number): Uint32Array[] {
    const blockSize = this.#blockSize;
    return this.#layers.map((values) => values.slice(block * blockSize, (block + 1) * blockSize));
  }

  /** Returns the values of earlier tokens that the segments' rows see, one array per segment and layer before `until`. */
  #seen(given: readonly Segment[], until: number): Uint32Array[] {
    const blockSize = this.#blockSize;
    return given.flatMap(({ start, blockTable }) =>
      this.#layers
        .filter((_, i) => this.#stored[i]! < until)
        .map((values, layer) => {
          const first = start === 0 ? 0 : firstSeen(layer === 0 ? 0 : 1, start);
          return Uint32Array.from({ length: start - first }, (_, i) => {
            const position = first + i;
            return values[blockTable[Math.floor(position / blockSize)]! * blockSize + (position % blockSize)]!;
          });
        }),
    );
  }

  /** Asserts that the part before ended at layer `from`, and that the values it saw have not changed since. */
  #checkPart(given: readonly Segment[], from: number | undefined): void {
    if (from === undefined) return;
    assert(this.#begun?.until === from, `the part before ended at layer ${this.#begun?.until}, not ${from}`);
    const now = this.#seen(given, from);
    const isSame = now.every((values, i) => values.every((value, at) => value === this.#begun?.seen[i]?.[at]));
    assert(isSame, 'a part was computed before its layers were there');
  }

  rowSampler(): RowSampler {
    return new HostRowSampler(this.sampling.vocab);
  }

  writeSamplerPage(page: number, first: number, values: Int32Array | Uint32Array): void {
    const written = Int32Array.from(values);
    this.#inOrder(() => {
      this.#pages[page]!.set(written, first);
      return Promise.resolve();
    }).catch(() => undefined);
  }

  #compute({ tokens, start, blockTable, samples = [], hidden, state: recurrent }: Segment): SampleResult[] {
    const blockSize = this.#blockSize;
    const at = (position: number): number => {
      const block = blockTable[Math.floor(position / blockSize)];
      assert(block !== undefined, `position ${position} has no block`);
      return block * blockSize + (position % blockSize);
    };
    assert(!recurrent || (recurrent.from === undefined) === (start === 0), 'a state belongs to the rows before');
    let state = recurrent?.from === undefined ? NO_STATE : this.#states[recurrent.from]!;
    const states: number[] = [];
    for (let i = 0; i < tokens.length; i++) {
      const position = start + i;
      const before = position === 0 ? undefined : at(position - 1);
      const [low, high] = before === undefined ? FIRST : [this.#low[before]!, this.#high[before]!];
      const slot = at(position);
      const named = tokens[i]!;
      const token = named >= SLOT_BIT ? this.#slots[named - SLOT_BIT]! : named;
      [this.#low[slot], this.#high[slot]] = kvAfter(low, high, token, position);
      states.push((state = stateAfter(state, token)));
    }
    for (const { rows, slot } of recurrent?.saves ?? []) this.#states[slot] = states[rows - 1]!;
    const hashOf = (row: number): number => {
      const seen = foldSeen(
        start + row,
        (position) => this.#low[at(position)]!,
        (position) => this.#high[at(position)]!,
      );
      return withState(seen, states[row]!);
    };
    const numHidden = (hidden?.length ?? 0) / SIM_HIDDEN;
    for (let i = 0; i < numHidden; i++)
      hidden?.set(hiddenStateOf(hashOf(tokens.length - numHidden + i)), i * SIM_HIDDEN);
    return samples.map((request) => {
      const logits = logitsOf(hashOf(request.row));
      const token = this.#sample(logits, request);
      return {
        ...resultOf(logits, request),
        token,
        tokenLogit: logits[token] ?? NaN,
        ...(request.isFullRowWanted ? { fullRow: logits } : {}),
      };
    });
  }

  #sample(logits: Float32Array, { sample }: SampleRequest): number {
    if (!sample) return NO_TOKEN;
    const { slot, biasPage, countsPage, allowedTokens: allowed } = sample;
    const bias = biasPage === undefined ? undefined : this.#pages[biasPage];
    const counts = countsPage === undefined ? undefined : new Uint32Array(this.#pages[countsPage]!.buffer);
    const token = sampler.sample(logits, sample, { bias, counts, allowed });
    this.#slots[slot] = token;
    if (counts && token !== NO_TOKEN) counts[token]!++;
    return token;
  }

  exportBlocks(blockIds: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    const { clock } = this.#options;
    if (this.#isCopyHanging) return new Promise(() => undefined);
    return this.#inOrder(async () => {
      await clock.sleep(0.05 * blockIds.length);
      await this.#alive();
      blockIds.forEach((block, i) => {
        writePayload(outs[i]!, this.#layersOf(block));
      });
    });
  }

  importBlocks(blockIds: readonly number[], payloads: readonly Uint8Array[], range?: LayerSpan): Promise<void> {
    const { clock, spec } = this.#options;
    const all = { firstLayer: 0, numLayers: spec.numLayers };
    const stored = [...this.#layers.keys()].filter((i) => isIn(range ?? all, this.#stored[i]!));
    const blockSize = this.#blockSize;
    if (this.#isCopyHanging) return new Promise(() => undefined);
    return this.#inOrder(async () => {
      await clock.sleep(0.05 * blockIds.length);
      await this.#alive();
      blockIds.forEach((block, i) => {
        const layers = readPayload(payloads[i]!, blockSize);
        assert(layers.length === stored.length, `${stored.length} layers of a block, not ${layers.length}`);
        layers.forEach((values, i) => {
          this.#layers[stored[i]!]!.set(values, block * blockSize);
        });
      });
    });
  }

  copyBlocks(from: readonly number[], to: readonly number[]): void {
    const blockSize = this.#blockSize;
    this.#inOrder(() => {
      from.forEach((block, i) => {
        this.#layersOf(block).forEach((values, layer) => {
          this.#layers[layer]!.set(values, to[i]! * blockSize);
        });
      });
      return Promise.resolve();
    }).catch(() => undefined);
  }

  exportStates(slots: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    const { clock } = this.#options;
    if (this.#isCopyHanging) return new Promise(() => undefined);
    return this.#inOrder(async () => {
      await clock.sleep(0.05 * slots.length);
      await this.#alive();
      slots.forEach((slot, i) => {
        writePayload(outs[i]!, [this.#states.slice(slot, slot + 1)]);
      });
    });
  }

  importStates(slots: readonly number[], payloads: readonly Uint8Array[]): Promise<void> {
    const { clock } = this.#options;
    if (this.#isCopyHanging) return new Promise(() => undefined);
    return this.#inOrder(async () => {
      await clock.sleep(0.05 * slots.length);
      await this.#alive();
      slots.forEach((slot, i) => {
        this.#states[slot] = readState(payloads[i]!);
      });
    });
  }

  copyStates(from: readonly number[], to: readonly number[]): void {
    this.#inOrder(() => {
      from.forEach((slot, i) => {
        this.#states[to[i]!] = this.#states[slot]!;
      });
      return Promise.resolve();
    }).catch(() => undefined);
  }

  write(): Promise<void> {
    assert.fail('nobody writes a buffer of a simulated device');
  }

  read(): Promise<Float32Array> {
    assert.fail('nobody reads a buffer of a simulated device');
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

function isIn({ firstLayer, numLayers }: LayerSpan, layer: number): boolean {
  return layer >= firstLayer && layer < firstLayer + numLayers;
}
