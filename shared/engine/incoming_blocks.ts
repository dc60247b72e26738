/** Copies fetched blocks into the device: complete, or frame by frame. */
import type { Executable } from '../../kernels/device.ts';
import type { AnchoredHash } from '../kv/block_key.ts';
import type { LayerSpan } from '../kv/kv_spec.ts';
import type { BlockPool } from './block_pool.ts';
import type { FetchedBlocks } from './fetched_blocks.ts';
import type { Sequence } from './sequence.ts';

/** A fetched block in host memory, verified. */
export interface IncomingBlock {
  readonly blockIndex: number;
  /** Bytes of the frame when `frame` is set, otherwise of the whole block. */
  readonly payload: Uint8Array;
  /** Index of the frame in `payload`; undefined when `payload` is a whole block. */
  readonly frame?: number | undefined;
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

/** Copies fetched blocks into the device blocks of a loading sequence and reports blocks that are complete. */
export class Incoming {
  readonly #options: IncomingOptions;

  constructor(options: IncomingOptions) {
    this.#options = options;
  }

  /**
   * Copies blocks into a loading sequence. Blocks that were hit meanwhile are ignored; a block behind a gap stays, and the gap is
   * computed.
   */
  async put(sequence: Sequence, incoming: readonly IncomingBlock[]): Promise<void> {
    const { executable, pool, frames } = this.#options;
    const { state } = sequence;
    if (state.kind !== 'loading') return;
    const put = this.#usable(sequence, state.fetched, incoming);
    if (put.length === 0) return;
    const blocks = put.map(({ block }) => block);
    // A cancel that comes while the device copies must not give the blocks to somebody else.
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
    if (sequence.state !== state) return;
    for (const one of put) this.#note(sequence, state.fetched, one);
    sequence.passFetched();
  }

  #usable(sequence: Sequence, fetched: FetchedBlocks, incoming: readonly IncomingBlock[]): Put[] {
    const first = sequence.cursor.computed / this.#options.blockSize;
    const end = sequence.hittableBlocks;
    return incoming.flatMap((incomingBlock) => {
      const { blockIndex: index } = incomingBlock;
      const [block, hash] = [sequence.blocks[index], sequence.chain.hashes[index]];
      if (block === undefined || !hash || index < first || index >= end || fetched.has(index)) return [];
      return [{ ...incomingBlock, block, hash }];
    });
  }

  #note({ times }: Sequence, fetched: FetchedBlocks, { blockIndex, frame, block, hash }: Put): void {
    const { blockSize, onWhole } = this.#options;
    if (!fetched.add(blockIndex, frame)) return;
    times.numFetched += blockSize;
    onWhole(block, hash);
  }
}
