/** Delivers fetched blocks and recurrent states to the sequences that wait for them, and ends their fetches. */
import type { Executable } from '../../kernels/device.ts';
import type { AnchoredHash } from '../kv/block_key.ts';
import type { KvSpec } from '../kv/kv_spec.ts';
import type { BlockRange } from './awaited_ranges.ts';
import type { BlockPool } from './block_pool.ts';
import { Incoming, type IncomingBlock } from './incoming_blocks.ts';
import type { RecurrentStates } from './recurrent_states.ts';
import type { Sequence } from './sequence.ts';

/** Parts of an engine that incoming records need. */
export interface IncomingRecordsOptions {
  readonly executable: Executable;
  readonly pool: BlockPool;
  /** Undefined for a model without recurrent layers. */
  readonly states: RecurrentStates | undefined;
  readonly spec: Pick<KvSpec, 'blockSize' | 'frames'>;
  /** Returns a sequence that has not ended. */
  readonly sequence: (id: number) => Sequence | undefined;
  /** Called when a block that was fetched got its name. */
  readonly onStored: (hash: AnchoredHash) => void;
}

/** Puts fetched blocks and states into sequences, and lets them run when no more come. */
export class IncomingRecords {
  readonly #options: IncomingRecordsOptions;
  readonly #incoming: Incoming;

  constructor(options: IncomingRecordsOptions) {
    this.#options = options;
    const { executable, pool, spec, onStored } = options;
    this.#incoming = new Incoming({
      executable,
      pool,
      blockSize: spec.blockSize,
      frames: spec.frames,
      onWhole: (block, hash) => {
        if (pool.seal(block, hash)) onStored(hash);
      },
    });
  }

  /** Copies verified blocks into the device; ignores blocks of a sequence that does not take them. */
  async blocks(id: number, incoming: readonly IncomingBlock[]): Promise<void> {
    const sequence = this.#options.sequence(id);
    if (sequence?.takesBlocks) await this.#incoming.put(sequence, incoming);
  }

  /** Copies the verified state at the end of block `blockIndex` into the device, for a sequence that loads. */
  async state(id: number, blockIndex: number, payload: Uint8Array): Promise<void> {
    const { sequence: find, states } = this.#options;
    const sequence = find(id);
    if (sequence?.takesBlocks) await states?.put(sequence, blockIndex + 1, payload);
  }

  /** Pipeline only: no more blocks of `range` will arrive; the missing ones are computed here. */
  rangeEnded(id: number, range: BlockRange): void {
    this.#options.sequence(id)?.arrived(range);
  }

  /** Ends the fetch of a sequence, or of one of its admissions: no more blocks will come, and the rest is computed. */
  ended(id: number, admission?: number): void {
    const { sequence: find, states, spec } = this.#options;
    const sequence = find(id);
    if (!sequence || !states) {
      sequence?.run(admission);
      return;
    }
    const before = sequence.state;
    const named = sequence.run(admission, (hashes, most) => states.heldAt(hashes, most));
    if (before.kind !== 'loading' || sequence.state === before) return;
    states.startAt(sequence, sequence.cursor.submitted / spec.blockSize);
    this.#renew(sequence, named);
  }

  /** Replaces fetched blocks that already have names and are computed again by fresh ones, since a named block is never rewritten (K3). */
  #renew(sequence: Sequence, named: readonly number[]): void {
    const { pool } = this.#options;
    for (const index of named) {
      const block = sequence.blocks[index];
      if (block === undefined) return;
      pool.release([block]);
      // Without a free block, renewBlock cuts the block table here; the scheduler extends it when rows need it.
      pool.release(sequence.renewBlock(index, pool.grow()));
    }
  }
}
