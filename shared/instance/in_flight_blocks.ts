/**
 * Blocks that one step of the engine computes, and gives away frame by frame: what there is of their records until they are whole.
 *
 *   frame 0 in its place ─► described ─► ... ─► last frame ─► the step is done: sealed, in the outbox
 *                              └─► whoever waits for them has it sent, each frame alone
 */
import { Condition } from '../base/condition.ts';
import type { BlockHash } from '../kv/block_key.ts';
import type { RecordLayout } from '../kv/record.ts';
import type { InFlightFrames } from '../net/block_source.ts';
import type { SlottedBlock } from '../net/transfer_thread/transfer_worker.ts';

/** Header bytes of one frame, one entry per block in order; undefined when they will not come. */
type FrameHeaders = readonly Uint8Array[] | undefined;

/** One frame of the records: `frameHeaders` is undefined until its headers are known, or known not to come. */
interface Frame {
  frameHeaders: { readonly headers: FrameHeaders } | undefined;
  readonly changed: Condition;
}

/** One of the blocks: how many have its slot, what gives its room on loan back, and who gets the slot from them. */
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
  readonly #grown: readonly PinnedBlock[];

  constructor(layout: RecordLayout, blocks: readonly SlottedBlock[]) {
    this.#layout = layout;
    this.blocks = blocks;
    this.#grown = blocks.map((block) => ({ block, numPins: 0, releaseBorrow: undefined, onFree: undefined }));
    this.#frames = layout.spec.frames.map(() => ({ frameHeaders: undefined, changed: new Condition() }));
  }

  setFrameHeaders(frame: number, frameHeaders: FrameHeaders): void {
    const one = this.#frames[frame];
    // The first word counts.
    if (!one || one.frameHeaders) return;
    one.frameHeaders = { headers: frameHeaders };
    one.changed.notify();
  }

  /** Returns the headers of all frames of the record in `slot`; empty when any of them did not come. */
  async allFrameHeaders(slot: number): Promise<Uint8Array[]> {
    const i = this.blocks.findIndex((block) => block.slot === slot);
    const all = await Promise.all(this.#frames.map((frame) => headersOf(frame)));
    const own = all.map((frameHeaders) => frameHeaders?.[i]);
    // Without one of them the others say nothing: whoever seals the record computes them.
    return own.every((frameHeaders) => frameHeaders !== undefined) ? own : [];
  }

  /** `then` is called when nobody has that slot: at once, or when the last one gives it back. */
  whenFree(slot: number, then: () => void): void {
    const grown = this.#grown.find(({ block }) => block.slot === slot);
    if (grown && grown.numPins > 0) grown.onFree = then;
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
    const lent: { readonly grown: PinnedBlock; readonly i: number }[] = [];
    for (const { digest } of hashes.slice(0, most)) {
      const i = this.blocks.findIndex(({ hash }) => hash.digest === digest);
      const grown = this.#grown[i];
      if (!grown) break;
      // A block that is borrowed already has its reservation.
      grown.releaseBorrow ??= reserveBorrow();
      if (!grown.releaseBorrow) break;
      lent.push({ grown, i });
    }
    if (lent.length === 0) return undefined;
    const holds = lent.map(({ grown }) => pin(grown));
    return {
      blocks: lent.map(({ grown }) => ({ slot: grown.block.slot, pin: () => pin(grown) })),
      recordBytes: this.#layout.spec.slotBytes,
      frames: this.#layout.spec.frames.map(({ slotOffset, maxStoredBytes }) => ({
        offset: slotOffset,
        bytes: maxStoredBytes,
      })),
      frameHeaders: async (frame, signal) => {
        const frameHeaders = await headersOf(this.#frames[frame], signal);
        return frameHeaders && lent.flatMap(({ i }) => frameHeaders[i] ?? []);
      },
      release: () => {
        for (const release of holds) release();
      },
    };
  }
}

/** Resolves when the frame's headers are known. @returns undefined when they will not come, or `signal` aborts before. */
async function headersOf(frame: Frame | undefined, signal?: AbortSignal): Promise<FrameHeaders> {
  await frame?.changed.until(() => frame.frameHeaders !== undefined, signal);
  return frame?.frameHeaders?.headers;
}

function pin(grown: PinnedBlock): () => void {
  grown.numPins++;
  let isHeld = true;
  return () => {
    if (!isHeld) return;
    isHeld = false;
    if (--grown.numPins > 0) return;
    grown.releaseBorrow?.();
    grown.releaseBorrow = undefined;
    grown.onFree?.();
  };
}
