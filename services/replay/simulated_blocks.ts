/**
 * Blocks of a simulated instance: the production pool of device blocks, and its host memory below it. It also knows which blocks the
 * sequences that hold device blocks are computing, so that a later sequence waits for these instead of computing them again.
 */
import { BlockPool } from '../../shared/engine/block_pool.ts';
import { HostBlocks } from './host_blocks.ts';
import type { EngineContext, EngineSizes } from './replay_engine.ts';
import type { SimulatedSequence } from './simulated_sequence.ts';
import type { TraceHash } from './trace_hashes.ts';

/** Device blocks and host memory of one simulated instance. */
export class SimulatedBlocks {
  readonly pool: BlockPool;
  readonly #blockTokens: number;
  readonly #onBlock: EngineContext['events']['onBlock'];
  readonly #dram: HostBlocks;
  /** Blocks that sequences with device blocks compute. */
  readonly #computing = new Set<TraceHash>();

  constructor({ hardware, blockTokens }: EngineSizes, { events, hashes }: Pick<EngineContext, 'events' | 'hashes'>) {
    this.#blockTokens = blockTokens;
    this.#onBlock = events.onBlock;
    this.pool = new BlockPool(Math.floor(hardware.deviceKvTokens / blockTokens), (key) => {
      this.#onBlock(false, 'device', hashes.byKey(key));
    });
    this.#dram = new HostBlocks(Math.floor(hardware.dramKvTokens / blockTokens), (isStored, hash) => {
      this.#onBlock(isStored, 'dram', hash);
    });
  }

  /** Whether the block is in the device or in host memory; a block that is asked for counts as used. */
  has(hash: TraceHash): boolean {
    return this.#dram.use(hash) || this.pool.find(hash) !== undefined;
  }

  /** Returns how many leading blocks of a sequence are on the device. */
  deviceBlocks({ options: { hashes } }: SimulatedSequence): number {
    let count = 0;
    while (count < hashes.length && this.pool.find(hashes[count]!) !== undefined) count++;
    return count;
  }

  /** Returns how many leading blocks of a sequence are on the device, or computed by a sequence before it. */
  hitBlocks({ options: { hashes } }: SimulatedSequence): number {
    let count = 0;
    for (; count < hashes.length; count++) {
      const hash = hashes[count] as TraceHash;
      if (!this.#computing.has(hash) && this.pool.find(hash) === undefined) break;
    }
    return count;
  }

  /** Whether another sequence computes the first block that the device lacks of a sequence: this one hits it when that is done. */
  isNextComputed(sequence: SimulatedSequence): boolean {
    if (sequence.numFetching > 0 || sequence.fetchedTo > 0) return false;
    const next = sequence.options.hashes[this.deviceBlocks(sequence)];
    return next !== undefined && this.#computing.has(next as TraceHash);
  }

  /** Gives a sequence the device blocks of its prompt, those included that it hits. Returns false when there is no room. */
  admit(sequence: SimulatedSequence): boolean {
    const { hashes, expected } = sequence.options;
    const acquired = this.pool.acquire(hashes, Math.ceil(sequence.length / this.#blockTokens));
    if (!acquired) return false;
    sequence.blocks = acquired.blocks;
    sequence.numSealed = acquired.numHits;
    sequence.computed = Math.min(acquired.numHits * this.#blockTokens, sequence.length);
    if (!sequence.isAdmitted) sequence.tokens.device += sequence.computed;
    sequence.isAdmitted = true;
    if (!expected) for (let i = acquired.numHits; i < hashes.length; i++) this.#computing.add(hashes[i] as TraceHash);
    return true;
  }

  /** Gives a generating sequence a further block when it has filled its last one. Returns false when there is none. */
  grow(sequence: SimulatedSequence): boolean {
    if (sequence.length <= sequence.blocks.length * this.#blockTokens) return true;
    const block = this.pool.grow();
    if (block === undefined) return false;
    sequence.blocks.push(block);
    return true;
  }

  /** Takes the blocks of a sequence back; the named ones stay cached. */
  release(sequence: SimulatedSequence): void {
    const { hashes } = sequence.options;
    for (let i = sequence.numSealed; i < hashes.length; i++) this.#computing.delete(hashes[i] as TraceHash);
    this.pool.release(sequence.blocks);
    sequence.blocks = [];
  }

  /** Names the blocks of a sequence that are full, and keeps records of those computed here in host memory. */
  seal(sequence: SimulatedSequence): void {
    const { hashes } = sequence.options;
    const numFull = Math.min(hashes.length, Math.floor(sequence.computed / this.#blockTokens));
    for (let i = sequence.numSealed; i < numFull; i++) {
      const hash = hashes[i] as TraceHash;
      const isFetched = (i + 1) * this.#blockTokens <= sequence.fetchedTo;
      this.#computing.delete(hash);
      if (this.pool.seal(sequence.blocks[i]!, hash)) this.#onBlock(true, 'device', hash);
      if (!isFetched) this.#dram.keep(hash);
    }
    sequence.numSealed = Math.max(sequence.numSealed, numFull);
  }
}
