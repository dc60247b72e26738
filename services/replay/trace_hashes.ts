/** Block hashes of a trace's blocks. A trace names a block by a number that stands for all tokens up to its end. */
import type { BlockHash, BlockKey, Digest } from '../../shared/kv/block_key.ts';

/** Hash of a block of the trace, with the words of its key. */
export interface TraceHash extends BlockHash {
  /** Number of the block in the trace. */
  readonly id: number;
  readonly low: number;
  readonly high: number;
}

/** Makes the hashes of a trace's blocks, each once; bounded by the blocks of the trace. */
export class TraceHashes {
  /** Hashes by the number of the block in the trace. */
  readonly #byId: TraceHash[] = [];
  readonly #byKey = new Map<bigint, TraceHash>();

  /** Returns the hash of the block that the trace calls `id`. */
  of(id: number): TraceHash {
    const known = this.#byId[id];
    if (known) return known;
    const low = mix(id ^ 0x5bd1e995);
    const high = mix(Math.imul(id, 0x9e3779b1) + 0x7f4a7c15);
    const key = ((BigInt(high >>> 0) << 32n) | BigInt(low >>> 0)) as BlockKey;
    const digest = id.toString(16).padStart(32, '0') as Digest;
    const hash: TraceHash = { id, key, parent: 0n as BlockKey, digest, low, high };
    this.#byId[id] = hash;
    this.#byKey.set(key, hash);
    return hash;
  }

  /** Returns the hash with a key. @throws Error when no block of the trace has it. */
  byKey(key: bigint): TraceHash {
    const hash = this.#byKey.get(key);
    if (!hash) throw new Error('the key names no block of the trace');
    return hash;
  }
}

function mix(value: number): number {
  let z = value | 0;
  z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
  z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
  return z ^ (z >>> 16);
}
