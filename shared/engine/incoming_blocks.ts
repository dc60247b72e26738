/** Copies fetched blocks into the device: complete, or frame by frame. */
import type { Executable } from '../../kernels/device.ts';
import type { AnchoredHash } from '../kv/block_key.ts';
import type { LayerSpan } from '../kv/kv_spec.ts';
import type { BlockPool } from './block_pool.ts';
import type { FetchedBlocks } from './fetched_blocks.ts';
import type { Sequence } from './sequence.ts';
import type { BlockOrigin } from './sequence_times.ts';

/** A fetched block in host memory, verified. */
export interface IncomingBlock {
  readonly blockIndex: number;
  /** Bytes of the frame when `frame` is set, otherwise of the whole block. */
  readonly payload: Uint8Array;
  /** Index of the frame in `payload`; undefined when `payload` is a whole block. */
  readonly frame?: number | undefined;
  readonly origin: BlockOrigin;
}

/** An incoming block, with the device block that it goes to and its hash. */
interface Put extends IncomingBlock {
  readonly block: number;
  readonly hash: AnchoredHash;
}

/** Device, block pool and frames of an Incoming, and its callback. */
export interface IncomingOptions {
  readonly executable: Executable;
  readonly pool: BlockPool;
  readonly blockSize: number;
  readonly frames: readonly LayerSpan[];
  /** Called when a block is complete in the device. */
  readonly onWhole: (block: number, hash: AnchoredHash) => void;
}

/** Copies fetched blocks into the device blocks of sequences and reports blocks that are complete. */
export class Incoming {
  readonly #options: IncomingOptions;

  constructor(options: IncomingOptions) {
    this.#options = options;
  }

  /**
   * Copies blocks into a sequence that takes them. Blocks that were hit meanwhile are ignored; a block after a gap stays, and the gap is
   * computed.
   */
  async put(sequence: Sequence, incoming: readonly IncomingBlock[]): Promise<void> {
    const { executable, pool, frames } = this.#options;
    const { takesBlocks, state } = sequence;
    if (!takesBlocks || (state.kind !== 'loading' && state.kind !== 'running')) return;
    const { fetched } = state;
    const put = this.#usable(sequence, fetched, incoming);
    if (put.length === 0) return;
    const blocks = put.map(({ block }) => block);
    // A cancel that comes while the device copies must not hand the blocks to another sequence.
    for (const block of blocks) pool.reference(block);
    for (const frame of new Set(put.map((one) => one.frame))) {
      const ofFrame = put.filter((one) => one.frame === frame);
      await executable.importBlocks(
        ofFrame.map(({ block }) => block),
        ofFrame.map(({ payload }) => payload),
        frame === undefined ? undefined : frames[frame],
      );
    }
    pool.release(blocks);
    // The sequence was preempted or ended during the copy, so the blocks are no longer its own.
    if (!('fetched' in sequence.state) || sequence.state.fetched !== fetched) return;
    for (const one of put) this.#note(sequence, fetched, one);
    sequence.passFetched();
  }

  #usable(sequence: Sequence, fetched: FetchedBlocks, incoming: readonly IncomingBlock[]): Put[] {
    const first = Math.ceil(sequence.cursor.submitted / this.#options.blockSize);
    const end = sequence.hittableBlocks;
    const { blocks, chain } = sequence;
    // Thousands of blocks may come at once, so each costs one object.
    const usable: Put[] = [];
    for (const { blockIndex, payload, frame, origin } of incoming) {
      const [block, hash] = [blocks[blockIndex], chain.hashes[blockIndex]];
      if (block === undefined || !hash || blockIndex < first || blockIndex >= end || fetched.has(blockIndex)) continue;
      // A block of a pipeline that is not awaited is computed here.
      if (sequence.isPipelined && !sequence.awaited.has(blockIndex)) continue;
      usable.push({ blockIndex, payload, frame, origin, block, hash });
    }
    return usable;
  }

  #note({ times }: Sequence, fetched: FetchedBlocks, { blockIndex, frame, origin, block, hash }: Put): void {
    const { blockSize, onWhole } = this.#options;
    if (!fetched.add(blockIndex, frame, origin)) return;
    times.fetched(origin, blockSize);
    onWhole(block, hash);
  }
}
