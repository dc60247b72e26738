/**
 * Exports blocks frame by frame while the step that computes them runs: blocks that a reader waits for, as far as there are free
 * slots.
 */
import type { AnchoredHash, BlockHash, BlockKey } from '../kv/block_key.ts';
import { WantedKeys } from '../kv/wanted_keys.ts';
import type { EarlyExport } from './step.ts';

/** A block, and the slot into which it is exported. */
interface Leaving {
  readonly hash: AnchoredHash;
  readonly slot: number;
}

/** Limits and callbacks of the blocks that are exported while a step computes them. */
export interface EarlyExportsOptions {
  /** Most blocks that are exported while one step runs. */
  readonly maxBlocks: number;
  /** A free slot; undefined: there is none. */
  readonly acquireSlot: () => number | undefined;
  readonly payloadIn: (slot: number) => Uint8Array;
  /** Called when the bytes of frame `frame` are in the slots of `blocks`. */
  readonly onFrame: (frame: number, blocks: readonly { readonly hash: BlockHash; readonly slot: number }[]) => void;
  /** Called when all frames of `block` are in its slot. */
  readonly onLeft: (block: Leaving) => void;
}

/** Selects the awaited blocks of a step for export while the step runs, and tracks them until it is complete. */
export class EarlyExports {
  readonly #options: EarlyExportsOptions;
  /** Bounded by the fetch streams. */
  readonly #awaited = new WantedKeys();
  readonly #leaving = new Set<BlockKey>();

  constructor(options: EarlyExportsOptions) {
    this.#options = options;
  }

  /** Adds readers that wait for these keys, or removes them again; calls are counted, so each add needs one remove. */
  await(keys: readonly BlockKey[], isOn: boolean): void {
    const all = keys.map((key) => ({ key }));
    if (isOn) this.#awaited.add(all);
    else this.#awaited.remove(all);
  }

  /** Whether the block is being exported by a running step. */
  has(key: BlockKey): boolean {
    return this.#leaving.has(key);
  }

  /** Selects and starts exports among the blocks that a step fills. Returns undefined when none is awaited or no slot is free. */
  begin(hashes: readonly AnchoredHash[]): EarlyExport | undefined {
    const { maxBlocks, acquireSlot, payloadIn, onFrame, onLeft } = this.#options;
    const blocks: Leaving[] = [];
    const outs = hashes.map((hash) => {
      const isWanted = this.#awaited.has(hash.key) && !this.#leaving.has(hash.key);
      const slot = isWanted && blocks.length < maxBlocks ? acquireSlot() : undefined;
      if (slot === undefined) return undefined;
      this.#leaving.add(hash.key);
      blocks.push({ hash, slot });
      return payloadIn(slot);
    });
    if (blocks.length === 0) return undefined;
    return {
      outs,
      onFrame: (frame) => {
        onFrame(frame, blocks);
      },
      onEnd: () => {
        for (const block of blocks) {
          this.#leaving.delete(block.hash.key);
          onLeft(block);
        }
      },
    };
  }
}
