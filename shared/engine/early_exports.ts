/** Blocks that leave with the step that computes them, frame by frame: those that somebody waits for, as far as slots go. */
import type { AnchoredHash, BlockHash, BlockKey } from '../kv/block_key.ts';
import { WantedKeys } from '../kv/wanted_keys.ts';
import type { EarlyExport } from './step.ts';

/** A block, and where it goes. */
interface Leaving {
  readonly hash: AnchoredHash;
  readonly slot: number;
}

export interface EarlyExportsOptions {
  /** Of one step. */
  readonly maxBlocks: number;
  /** A free slot; undefined: there is none. */
  readonly acquireSlot: () => number | undefined;
  readonly payloadIn: (slot: number) => Uint8Array;
  /** That frame is in the slots of these. */
  readonly onFrame: (frame: number, blocks: readonly { readonly hash: BlockHash; readonly slot: number }[]) => void;
  /** All of it is. */
  readonly onLeft: (block: Leaving) => void;
}

export class EarlyExports {
  readonly #options: EarlyExportsOptions;
  /** Bounded by the fetch streams. */
  readonly #awaited = new WantedKeys();
  readonly #leaving = new Set<BlockKey>();

  constructor(options: EarlyExportsOptions) {
    this.#options = options;
  }

  /** Somebody waits for these, or does no longer. */
  await(keys: readonly BlockKey[], isOn: boolean): void {
    const all = keys.map((key) => ({ key }));
    if (isOn) this.#awaited.add(all);
    else this.#awaited.remove(all);
  }

  /** It is on its way out. */
  has(key: BlockKey): boolean {
    return this.#leaving.has(key);
  }

  /** Of blocks that a step fills. */
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
