/** Slots of host memory that an instance grants its engine for exports, by the kind of record. */
import { kindOf, recordShapeOf, type RecordKind } from '../kv/record.ts';
import type { BlockHash } from '../kv/block_key.ts';
import type { KvSpec } from '../kv/kv_spec.ts';
import type { RecordCache } from '../kv/record_cache.ts';
import { slotLength, type Slab } from '../kv/slab.ts';
import type { ToEngine } from '../engine/engine_messages.ts';

/** Most slots for blocks: enough that a chunk's blocks leave in one go. */
const MAX_BLOCKS = 32;
/** Most slots for recurrent states, which are as large as many blocks. */
const MAX_STATES = 4;

/** Memory and messages of ExportCredits. */
export interface ExportCreditsOptions {
  readonly spec: KvSpec;
  readonly slab: Slab;
  /** Number of slots for blocks in the slab. */
  readonly numSlots: number;
  readonly cache: RecordCache;
  readonly sendToEngine: (message: ToEngine) => void;
}

/** Counts the slots that the engine has, and grants it more as they become free. */
export class ExportCredits {
  readonly #options: ExportCreditsOptions;
  readonly #granted: Record<RecordKind, number> = { block: 0, state: 0 };

  constructor(options: ExportCreditsOptions) {
    this.#options = options;
  }

  /** Counts one granted slot as used: the engine filled it with the record `hash`. */
  used(hash: BlockHash): void {
    this.#granted[kindOf(hash)]--;
  }

  /**
   * Tops the engine's slots up, as far as memory allows: for blocks at most MAX_BLOCKS and a quarter of the block slots, for states at most
   * MAX_STATES and a quarter of the slab, but at least one.
   */
  grant(): void {
    const { spec, slab, numSlots } = this.#options;
    this.#grant('block', Math.min(MAX_BLOCKS, Math.floor(numSlots / 4)));
    if (!spec.state) return;
    const fitting = Math.floor(slab.numBytes / slotLength(spec.state.slotBytes) / 4);
    this.#grant('state', Math.max(1, Math.min(MAX_STATES, fitting)));
  }

  #grant(record: RecordKind, limit: number): void {
    const { spec, cache, sendToEngine } = this.#options;
    const { slotBytes } = recordShapeOf(spec, record);
    const slots: number[] = [];
    while (this.#granted[record] < limit) {
      const slot = cache.acquireSlot(slotBytes);
      if (slot === undefined) break;
      slots.push(slot);
      this.#granted[record]++;
    }
    if (slots.length > 0) sendToEngine({ kind: 'grant', slots, record });
  }
}
