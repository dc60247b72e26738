/**
 * A device that cannot be fooled: the KV of a token is a hash of its whole prefix, and a step reads the KV of every position through
 * the block table and folds it into the logits. A wrong, torn, stale or foreign block changes the tokens.
 */
import assert from 'node:assert/strict';
import type { Executable, SampleResult, Segment } from '../../kernels/device.ts';
import type { Clock } from '../../shared/base/clock.ts';
import {
  sample,
  sampleRequest,
  type SampledToken,
  type SamplingParams,
  type Wanted,
} from '../../shared/engine/sampler.ts';

/** One per half of the KV, so that each half has a checksum of its own. */
export const SIM_LAYERS = 2;
export const SIM_VOCAB = 61;

/** Of a token in each half: its value, and what follows from it, so that no word may change unnoticed. */
const WORDS = 8;

export function simBlockBytes(blockSize: number): number {
  return SIM_LAYERS * blockSize * WORDS * 4;
}

/** A block's KV as it leaves the device. */
function writePayload(out: Uint8Array, lows: Uint32Array, highs: Uint32Array): void {
  const words = new DataView(out.buffer, out.byteOffset, out.byteLength);
  [lows, highs].forEach((values, half) => {
    values.forEach((value, token) => {
      for (let i = 0; i < WORDS; i++) {
        words.setUint32(4 * (WORDS * (half * values.length + token) + i), Math.imul(value, 2 * i + 1), true);
      }
    });
  });
}

/** As it comes in; a word that does not follow from the first one spoils its token. */
export function readPayload(payload: Uint8Array, blockSize: number): [lows: Uint32Array, highs: Uint32Array] {
  const words = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  const half = (first: number): Uint32Array =>
    Uint32Array.from({ length: blockSize }, (_, token) => {
      const at = (i: number): number => words.getUint32(4 * (WORDS * (first + token) + i), true);
      const value = at(0);
      for (let i = 1; i < WORDS; i++) if (at(i) !== Math.imul(value, 2 * i + 1) >>> 0) return value ^ 0x5bd1e995;
      return value;
    });
  return [half(0), half(blockSize)];
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

/** Every logit, from what was folded. */
function logitsOf(hash: number): Float32Array {
  return Float32Array.from({ length: SIM_VOCAB }, (_, token) => {
    const mixed = Math.imul(hash ^ Math.imul(token + 1, 0x9e3779b1), 0x85ebca6b);
    return ((mixed ^ (mixed >>> 15)) >>> 0) / 2 ** 29;
  });
}

function resultOf(hash: number, request: Wanted): SampleResult {
  const logits = logitsOf(hash);
  const best = [...logits.keys()]
    .sort((a, b) => logits[b]! - logits[a]! || a - b)
    .slice(0, Math.max(1, request.numCandidates));
  return {
    candidateIds: Uint32Array.from(best),
    candidateLogits: Float32Array.from(best, (token) => logits[token]!),
    logSumExp: Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit), 0)),
    askedLogits: Float32Array.from(request.askedTokens, (token) => logits[token]!),
    ...(request.isFullRowWanted ? { fullRow: logits } : {}),
  };
}

export interface PlainRequest {
  readonly tokens: readonly number[];
  readonly maxLength: number;
  readonly stopTokenIds: readonly number[];
  readonly sampling: SamplingParams;
}

export interface PlainRun {
  /** What a request must give. */
  readonly sampled: readonly SampledToken[];
  /** Of every position of prompt and output but the last, [low, high]. */
  readonly kv: readonly (readonly [low: number, high: number])[];
}

/** A request without blocks, batches or machines. */
export function plainRun({ tokens, maxLength, stopTokenIds, sampling }: PlainRequest): PlainRun {
  const all = [...tokens];
  const sampled: SampledToken[] = [];
  const kv: [number, number][] = [];
  let [low, high] = FIRST;
  let hash = 0x811c9dc5;
  for (let position = 0; all.length < maxLength; position++) {
    [low, high] = kvAfter(low, high, all[position]!, position);
    kv.push([low, high]);
    hash = fold(hash, low, high);
    if (position < all.length - 1) continue;
    const context = { tokens: all, promptLength: tokens.length, stopTokenIds };
    const request = sampleRequest(sampling, context);
    const one = sample(sampling, context, request, resultOf(hash, request));
    assert(
      sampled.length >= sampling.minTokens || !stopTokenIds.includes(one.token),
      'a stop token came before the least number of tokens',
    );
    const isPlain = sampling.temperature === 0 && sampling.presencePenalty === 0 && sampling.minTokens === 0;
    const [best] = resultOf(hash, { numCandidates: 1, askedTokens: [], isFullRowWanted: false }).candidateIds;
    assert(!isPlain || one.token === best, 'greedy is not the best');
    sampled.push(one);
    all.push(one.token);
    if (stopTokenIds.includes(one.token)) break;
  }
  return { sampled, kv };
}

export interface SimDeviceOptions {
  readonly blockSize: number;
  readonly numBlocks: number;
  readonly clock: Clock;
  /** Of a step, and of each row in it. */
  readonly stepMs: number;
  readonly rowMs: number;
}

export class SimExecutable implements Executable {
  readonly blockBytes: number;
  readonly numBlocks: number;
  readonly #options: SimDeviceOptions;
  readonly #low: Uint32Array;
  readonly #high: Uint32Array;
  #isLost = false;
  #isHanging = false;

  constructor(options: SimDeviceOptions) {
    this.#options = options;
    this.numBlocks = options.numBlocks;
    this.blockBytes = simBlockBytes(options.blockSize);
    // What nobody wrote is not zero: a block that is used before it is written shows.
    this.#low = new Uint32Array(options.numBlocks * options.blockSize).fill(0xdeadbeef);
    this.#high = new Uint32Array(options.numBlocks * options.blockSize).fill(0xfeedface);
  }

  /** What a block holds: lows, then highs. */
  contentOf(block: number): Uint32Array {
    const { blockSize } = this.#options;
    const [from, to] = [block * blockSize, (block + 1) * blockSize];
    return Uint32Array.of(...this.#low.subarray(from, to), ...this.#high.subarray(from, to));
  }

  /** The device is gone: what runs, and what comes, fails. */
  lose(): void {
    this.#isLost = true;
  }

  /** It answers nothing any more. */
  hang(): void {
    this.#isHanging = true;
  }

  /** After a wait on the device: whether it is still there. */
  async #alive(): Promise<void> {
    if (this.#isHanging) await new Promise<never>(() => undefined);
    if (this.#isLost) throw new Error('the device was lost');
  }

  async run(batch: readonly Segment[]): Promise<SampleResult[]> {
    const { clock, stepMs, rowMs } = this.#options;
    const numRows = batch.reduce((sum, { tokens }) => sum + tokens.length, 0);
    // Half before, half after: whoever changes blocks while a step runs is caught either way.
    await clock.sleep((stepMs + rowMs * numRows) / 2);
    await this.#alive();
    const results = batch.flatMap((segment) => this.#compute(segment));
    await clock.sleep((stepMs + rowMs * numRows) / 2);
    await this.#alive();
    return results;
  }

  #compute({ tokens, start, blockTable, samples = [] }: Segment): SampleResult[] {
    const { blockSize } = this.#options;
    const at = (position: number): number => {
      const block = blockTable[Math.floor(position / blockSize)];
      assert(block !== undefined, `position ${position} has no block`);
      return block * blockSize + (position % blockSize);
    };
    for (let i = 0; i < tokens.length; i++) {
      const position = start + i;
      const before = position === 0 ? undefined : at(position - 1);
      const [low, high] = before === undefined ? FIRST : [this.#low[before]!, this.#high[before]!];
      const slot = at(position);
      [this.#low[slot], this.#high[slot]] = kvAfter(low, high, tokens[i]!, position);
    }
    return samples.map((request) => {
      let hash = 0x811c9dc5;
      for (let position = 0; position <= start + request.row; position++) {
        const slot = at(position);
        hash = fold(hash, this.#low[slot]!, this.#high[slot]!);
      }
      return resultOf(hash, request);
    });
  }

  async exportBlocks(blockIds: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    const { clock, blockSize } = this.#options;
    await clock.sleep(0.05 * blockIds.length);
    await this.#alive();
    blockIds.forEach((block, i) => {
      const [from, to] = [block * blockSize, (block + 1) * blockSize];
      writePayload(outs[i]!, this.#low.slice(from, to), this.#high.slice(from, to));
    });
  }

  async importBlocks(blockIds: readonly number[], payloads: readonly Uint8Array[]): Promise<void> {
    const { clock, blockSize } = this.#options;
    await clock.sleep(0.05 * blockIds.length);
    await this.#alive();
    blockIds.forEach((block, i) => {
      const [lows, highs] = readPayload(payloads[i]!, blockSize);
      this.#low.set(lows, block * blockSize);
      this.#high.set(highs, block * blockSize);
    });
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
