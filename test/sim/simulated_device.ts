/**
 * A device that cannot be fooled: the KV of a token is a hash of its whole prefix, and a step reads the KV of every position through
 * the block table and folds it into the logits. A wrong, torn, stale or foreign block changes the tokens.
 */
import assert from 'node:assert/strict';
import type { Executable, SampleRequest, SampleResult, Segment } from '../../kernels/device.ts';
import type { Clock } from '../../shared/base/clock.ts';
import { sample, sampleRequest, type SamplingParams } from '../../shared/engine/sampler.ts';

/** One per half of the KV, so that each half has a checksum of its own. */
export const SIM_LAYERS = 2;
export const SIM_VOCAB = 61;

export function simBlockBytes(blockSize: number): number {
  return SIM_LAYERS * blockSize * 4;
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

function resultOf(hash: number, request: SampleRequest): SampleResult {
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

export interface SimGeneration {
  readonly tokens: readonly number[];
  readonly maxLength: number;
  readonly stopTokenIds: readonly number[];
  readonly sampling: SamplingParams;
}

/** What a request must give, without blocks, batches or machines. */
export function plainTokens({ tokens, maxLength, stopTokenIds, sampling }: SimGeneration): number[] {
  const all = [...tokens];
  let [low, high] = FIRST;
  let hash = 0x811c9dc5;
  for (let position = 0; all.length < maxLength; position++) {
    [low, high] = kvAfter(low, high, all[position]!, position);
    hash = fold(hash, low, high);
    if (position < all.length - 1) continue;
    const context = { tokens: all, promptLength: tokens.length, stopTokenIds };
    const request = sampleRequest(sampling, context);
    const { token } = sample(sampling, context, request, resultOf(hash, request));
    all.push(token);
    if (stopTokenIds.includes(token)) break;
  }
  return all.slice(tokens.length);
}

/** The KV of a full block of a prompt, as every holder must have it (K1). */
export function plainPayload(tokens: readonly number[], blockIndex: number, blockSize: number): Buffer {
  const payload = Buffer.alloc(simBlockBytes(blockSize));
  let [low, high] = FIRST;
  for (let position = 0; position < (blockIndex + 1) * blockSize; position++) {
    [low, high] = kvAfter(low, high, tokens[position]!, position);
    const at = position - blockIndex * blockSize;
    if (at < 0) continue;
    payload.writeUInt32LE(low, 4 * at);
    payload.writeUInt32LE(high, 4 * (blockSize + at));
  }
  return payload;
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

  constructor(options: SimDeviceOptions) {
    this.#options = options;
    this.numBlocks = options.numBlocks;
    this.blockBytes = simBlockBytes(options.blockSize);
    // What nobody wrote is not zero: a block that is used before it is written shows.
    this.#low = new Uint32Array(options.numBlocks * options.blockSize).fill(0xdeadbeef);
    this.#high = new Uint32Array(options.numBlocks * options.blockSize).fill(0xfeedface);
  }

  async run(batch: readonly Segment[]): Promise<SampleResult[]> {
    const { clock, stepMs, rowMs } = this.#options;
    const numRows = batch.reduce((sum, { tokens }) => sum + tokens.length, 0);
    // Half before, half after: whoever changes blocks while a step runs is caught either way.
    await clock.sleep((stepMs + rowMs * numRows) / 2);
    const results = batch.flatMap((segment) => this.#compute(segment));
    await clock.sleep((stepMs + rowMs * numRows) / 2);
    return results;
  }

  #compute({ tokens, start, blockTable, sample: request }: Segment): SampleResult[] {
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
    if (!request) return [];
    let hash = 0x811c9dc5;
    for (let position = 0; position < start + tokens.length; position++) {
      const slot = at(position);
      hash = fold(hash, this.#low[slot]!, this.#high[slot]!);
    }
    return [resultOf(hash, request)];
  }

  async exportBlocks(blockIds: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    const { clock, blockSize } = this.#options;
    await clock.sleep(0.05 * blockIds.length);
    blockIds.forEach((block, i) => {
      const out = Buffer.from(outs[i]!.buffer, outs[i]!.byteOffset, outs[i]!.byteLength);
      for (let k = 0; k < blockSize; k++) {
        out.writeUInt32LE(this.#low[block * blockSize + k]!, 4 * k);
        out.writeUInt32LE(this.#high[block * blockSize + k]!, 4 * (blockSize + k));
      }
    });
  }

  async importBlocks(blockIds: readonly number[], payloads: readonly Uint8Array[]): Promise<void> {
    const { clock, blockSize } = this.#options;
    await clock.sleep(0.05 * blockIds.length);
    blockIds.forEach((block, i) => {
      const payload = Buffer.from(payloads[i]!.buffer, payloads[i]!.byteOffset, payloads[i]!.byteLength);
      for (let k = 0; k < blockSize; k++) {
        this.#low[block * blockSize + k] = payload.readUInt32LE(4 * k);
        this.#high[block * blockSize + k] = payload.readUInt32LE(4 * (blockSize + k));
      }
    });
  }

  /** What a block holds, for checks. */
  payloadOf(block: number): Buffer {
    const { blockSize } = this.#options;
    const payload = Buffer.alloc(this.blockBytes);
    for (let k = 0; k < blockSize; k++) {
      payload.writeUInt32LE(this.#low[block * blockSize + k]!, 4 * k);
      payload.writeUInt32LE(this.#high[block * blockSize + k]!, 4 * (blockSize + k));
    }
    return payload;
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
