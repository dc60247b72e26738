/**
 * Blocks of one running step of the engine, readable frame by frame until their records are complete.
 *
 *   frame 0 in its slots ─► its headers ─► ... ─► last frame ─► the step is complete: sealed, in the outbox
 *                               └─► sent, each frame alone, to the fetch streams that wait for it
 */
import { Condition } from '../base/condition.ts';
import type { BlockHash } from '../kv/block_key.ts';
import type { RecordLayout } from '../kv/record.ts';
import type { InFlightFrames } from '../net/block_source.ts';
import type { SlottedBlock } from '../net/transfer_thread/transfer_methods.ts';

/** Header bytes of one frame, one entry per block in order; undefined when they will not come. */
type FrameHeaders = readonly Uint8Array[] | undefined;

/** One frame of the records: `frameHeaders` is undefined until its headers are known, or known not to come. */
interface Frame {
  frameHeaders: { readonly headers: FrameHeaders } | undefined;
  readonly changed: Condition;
}

/** A block, the pins of its slot, the release of its borrow reservation, and the callback for when its slot is free. */
interface PinnedBlock {
  readonly block: SlottedBlock;
  numPins: number;
  releaseBorrow: (() => void) | undefined;
  onFree: (() => void) | undefined;
}

/** Blocks of one running step that are readable frame by frame until their records are sealed. */
export class InFlightBlocks {
  readonly blocks: readonly SlottedBlock[];
  readonly #layout: RecordLayout;
  readonly #frames: readonly Frame[];
  readonly #pinned: readonly PinnedBlock[];

  constructor(layout: RecordLayout, blocks: readonly SlottedBlock[]) {
    this.#layout = layout;
    this.blocks = blocks;
    this.#pinned = blocks.map((block) => ({ block, numPins: 0, releaseBorrow: undefined, onFree: undefined }));
    this.#frames = layout.spec.frames.map(() => ({ frameHeaders: undefined, changed: new Condition() }));
  }

  setFrameHeaders(frame: number, frameHeaders: FrameHeaders): void {
    const one = this.#frames[frame];
    // Headers are set once; a second value is ignored.
    if (!one || one.frameHeaders) return;
    one.frameHeaders = { headers: frameHeaders };
    one.changed.notify();
  }

  /** Returns the headers of all frames of the record in `slot`; empty when any of them did not come. */
  async allFrameHeaders(slot: number): Promise<Uint8Array[]> {
    const i = this.blocks.findIndex((block) => block.slot === slot);
    const all = await Promise.all(this.#frames.map((frame) => headersOf(frame)));
    const own = all.map((frameHeaders) => frameHeaders?.[i]);
    // Without the headers of every frame the others are of no use: sealing then computes all of them.
    return own.every((frameHeaders) => frameHeaders !== undefined) ? own : [];
  }

  /** Calls `then` when nobody has pinned that slot: at once, or when the last pin is released. */
  whenFree(slot: number, then: () => void): void {
    const pinned = this.#pinned.find(({ block }) => block.slot === slot);
    if (pinned && pinned.numPins > 0) pinned.onFree = then;
    else then();
  }

  /**
   * Borrows the leading blocks of `hashes` that are in flight here, at most `most`; undefined when the first cannot be borrowed.
   * `reserveBorrow` reserves room for one record and returns its release, or undefined when there is no room.
   */
  blocksOf(
    hashes: readonly BlockHash[],
    most: number,
    reserveBorrow: () => (() => void) | undefined,
  ): InFlightFrames | undefined {
    const borrowed: { readonly pinned: PinnedBlock; readonly i: number }[] = [];
    for (const { digest } of hashes.slice(0, most)) {
      const i = this.blocks.findIndex(({ hash }) => hash.digest === digest);
      const pinned = this.#pinned[i];
      if (!pinned) break;
      // A block that is borrowed already has its reservation.
      pinned.releaseBorrow ??= reserveBorrow();
      if (!pinned.releaseBorrow) break;
      borrowed.push({ pinned, i });
    }
    if (borrowed.length === 0) return undefined;
    const pins = borrowed.map(({ pinned }) => pin(pinned));
    return {
      blocks: borrowed.map(({ pinned }) => ({ slot: pinned.block.slot, pin: () => pin(pinned) })),
      recordBytes: this.#layout.spec.slotBytes,
      frames: this.#layout.spec.frames.map(({ slotOffset, maxStoredBytes }) => ({
        offset: slotOffset,
        bytes: maxStoredBytes,
      })),
      frameHeaders: async (frame, signal) => {
        const frameHeaders = await headersOf(this.#frames[frame], signal);
        return frameHeaders && borrowed.flatMap(({ i }) => frameHeaders[i] ?? []);
      },
      release: () => {
        for (const release of pins) release();
      },
    };
  }
}

/** Resolves when the frame's headers are known. @returns undefined when they will not come, or `signal` aborts before. */
async function headersOf(frame: Frame | undefined, signal?: AbortSignal): Promise<FrameHeaders> {
  await frame?.changed.until(() => frame.frameHeaders !== undefined, signal);
  return frame?.frameHeaders?.headers;
}

function pin(pinned: PinnedBlock): () => void {
  pinned.numPins++;
  let isHeld = true;
  return () => {
    if (!isHeld) return;
    isHeld = false;
    if (--pinned.numPins > 0) return;
    pinned.releaseBorrow?.();
    pinned.releaseBorrow = undefined;
    pinned.onFree?.();
  };
}
