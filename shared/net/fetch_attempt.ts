/**
 * One Fetch call for a run of blocks, and its stream of a lane if it has one. Records go into slots as they come, a bounded number ahead of
 * whoever reads them, in order.
 */
import assert from 'node:assert/strict';
import { asFailure, Failure, messageOf } from '../base/failure.ts';
import type { Link } from '../base/signal.ts';
import type { BlockHash, Digest } from '../kv/block_key.ts';
import { FRAME_HEADER_BYTES, type FrameSpec } from '../kv/kv_spec.ts';
import type { FetchReply } from '../protocol/messages.ts';
import { ComingRecords, type Coming } from './coming_records.ts';
import type { PulledStream, TransferWay } from './lane.ts';
import { pieceOf, readyOf, windowOf } from './mover/lane_frames.ts';
import type { Mover } from './mover/mover.ts';
import type { WantedRecords } from './mover/pulled_lanes.ts';

/** A slot to write one record into. */
export interface ArrivalSlot {
  readonly slot: number;
  readonly bytes: Uint8Array;
}

/** Where records go. */
export interface Slots {
  /** At once where there is one. */
  readonly take: () => ArrivalSlot | Promise<ArrivalSlot>;
  readonly giveBack: (slot: number) => void;
}

/** A record in its slot, or one frame of it. */
export interface Arrived {
  /** Of the run that was asked for. */
  readonly index: number;
  readonly slot: number;
  /** Undefined: the whole record. Frames of a block come in order, blocks beside one another; where only some are wanted, it may come whole all the same. */
  readonly frame: number | undefined;
  /** Nothing more comes into the slot, which is its reader's now. */
  readonly isLast: boolean;
  /** Why it cannot be used. */
  readonly fault: string | undefined;
}

/** Blocks that grow at their holder. Those without a slot here come later, each with all the frames that are there by then. */
interface Group {
  readonly first: number;
  readonly count: number;
  /** Of the first blocks. */
  readonly slots: number[];
  /** By frame that is wanted, what records say of it, one behind the other. */
  readonly described: Buffer[];
}

export interface FetchAttemptOptions {
  readonly address: string;
  readonly mover: Pick<Mover, 'call'>;
  readonly format: Digest;
  /** What this call asks for. */
  readonly hashes: readonly BlockHash[];
  readonly recordBytes: number;
  /** The frames that records may come in; none: they come whole. */
  readonly frames: readonly FrameSpec[];
  /** Which of them come, in order, where not the whole record does. */
  readonly wanted: readonly number[];
  readonly call: AsyncIterableIterator<FetchReply>;
  readonly stream: PulledStream | undefined;
  readonly moved: Moved;
  /** Records to be on their way, or to wait to be read, now; no more than windowOf allows. */
  readonly ahead: () => number;
  /** Ends the call. */
  readonly link: Link;
  /** Fails when nothing comes for too long; `isGoingOn`: something else is on its way. */
  readonly watched: <T>(awaited: Promise<T>, isGoingOn: () => boolean) => Promise<T>;
}

/** Bytes of records that came, by way. */
export type Moved = Record<TransferWay, number>;

const NOTHING = Buffer.alloc(0);
/** Of microtasks: a slot that is free is there by then. */
const SOON = 8;

export class FetchAttempt {
  readonly #options: FetchAttemptOptions;
  readonly #coming = new ComingRecords();
  /** Records that may be on their way or wait to be read. */
  #window: number;
  /** Blocks hold their slots until their last frame comes. */
  #isGrowing = false;
  /** Taken, and not handed on. */
  readonly #held = new Set<number>();
  /** Blocks of the run that have come or were asked for. */
  #numAsked = 0;
  /** A record that comes in slices. */
  #arriving: (ArrivalSlot & { next: number }) | undefined;
  /** The one whose frames come now. */
  #group: Group | undefined;
  /** Until blocks of groups have slots: one after the other. */
  #acquired: Promise<void> = Promise.resolve();
  #isFull = false;
  #isOver = false;
  #wake: () => void = () => undefined;

  constructor(options: FetchAttemptOptions) {
    this.#options = options;
    this.#window = options.ahead();
    const { stream } = options;
    if (stream)
      stream.onArrival = () => {
        this.#coming.changed();
      };
    const { signal } = options.link;
    signal.addEventListener('abort', () => {
      options.stream?.giveUp(signal.reason);
      this.#wake();
    });
  }

  /**
   * Once. Each time those that are there, to be read at once: whoever has read one has its slot.
   * @throws Failure when the call or its lane breaks.
   */
  async *records(slots: Slots): AsyncGenerator<Iterable<Arrived>> {
    this.#pump(slots).then(
      () => {
        this.#coming.end(undefined);
      },
      (error: unknown) => {
        this.#coming.end(asFailure(error));
        // Whoever ends a call takes back what lay ready for it.
        this.#options.stream?.giveUp(error);
      },
    );
    try {
      const { watched } = this.#options;
      while (await this.#coming.some((awaited) => watched(awaited, () => false))) yield this.#arrived();
    } finally {
      this.#isOver = true;
      this.#end(slots);
    }
  }

  /** Those in front that are there. */
  *#arrived(): Generator<Arrived> {
    const { moved, wanted } = this.#options;
    for (let next = this.#coming.take(); next; next = this.#coming.take()) {
      const { index, slot, frame, bytes } = next.coming;
      const { fault, way } = next.arrival;
      moved[way] += bytes;
      const isLast = frame === undefined || frame === wanted.at(-1);
      if (isLast) {
        this.#held.delete(slot);
        this.#makeRoom();
      }
      yield { index, slot, frame, isLast, fault };
    }
  }

  /** More are asked for when half of them are read. */
  #makeRoom(): void {
    if (this.#held.size > this.#window / 2) return;
    if (!this.#isGrowing) this.#window = this.#options.ahead();
    this.#isFull = false;
    this.#wake();
  }

  #end({ giveBack }: Slots): void {
    const { link, stream } = this.#options;
    link.abort(new Failure('cancelled', 'nobody reads it any more'));
    link.release();
    const giveAll = (): void => {
      for (const slot of this.#held) giveBack(slot);
      this.#held.clear();
    };
    // What is still being written into is nobody else's.
    if (stream) void stream.close().then(giveAll);
    else giveAll();
  }

  /** Nobody has read it, and nobody will. */
  abandon(): void {
    void this.#options.stream?.close();
  }

  async #pump(slots: Slots): Promise<void> {
    const { call, stream, watched, address } = this.#options;
    const isGoingOn = (): boolean => (stream?.numComing ?? 0) > 0;
    for (;;) {
      const next = await watched(call.next(), isGoingOn);
      if (next.done || this.#isOver) break;
      if (next.value.frame > 0) this.#askFrame(next.value, slots);
      else if (next.value.numReady > 0) await this.#ask(next.value, slots);
      else await this.#slice(next.value, slots);
    }
    await this.#acquired;
    if (this.#group) throw new Failure('transfer_failed', `${address} ended in the middle of a block`);
    if (this.#arriving) throw new Failure('transfer_failed', `${address} ended in the middle of a record`);
  }

  /** Records that lie ready there: those with a slot are asked for together, and none waits for another's slot. */
  async #ask(reply: FetchReply, slots: Slots): Promise<void> {
    const { hashes, recordBytes, stream } = this.#options;
    const { index: first, numReady, totalBytes } = reply;
    const isNext = first === this.#numAsked && totalBytes === recordBytes && first + numReady <= hashes.length;
    if (!stream || !isNext || this.#group || numReady > readyOf(recordBytes)) throw this.#wrong(reply);
    this.#isGrowing = false;
    this.#numAsked += numReady;
    // Who was before has a slot before.
    await this.#acquired;
    let coming: Coming[] = [];
    const flush = (): void => {
      this.#askFor(stream, coming);
      coming = [];
    };
    for (let index = first; index < first + numReady; index++) {
      let taken = this.#take(slots);
      if (taken instanceof Promise) {
        if (coming.length > 0 && !(await isSoon(taken))) flush();
        taken = await taken;
      }
      coming.push({ index, slot: taken.slot, frame: undefined, bytes: recordBytes, arrival: undefined });
    }
    flush();
  }

  /** A frame lies ready there, of blocks that grow. Nothing waits for slots: whoever has one needs the frames that come behind. */
  #askFrame(reply: FetchReply, slots: Slots): void {
    const { hashes, recordBytes, wanted, stream } = this.#options;
    const { index: first, numReady: count, totalBytes, frame, described } = reply;
    const part = wanted.indexOf(frame - 1);
    const isFirst = part === 0 && !this.#group && first === this.#numAsked && first + count <= hashes.length;
    const group = isFirst ? { first, count, slots: [], described: [] } : this.#group;
    const isNext = group?.first === first && group.count === count && group.described.length === part;
    const isWhole = totalBytes === recordBytes && described.length === count * FRAME_HEADER_BYTES;
    const mostBlocks = windowOf(recordBytes);
    const isBounded = count > 0 && count <= mostBlocks;
    if (!stream || !group || !isNext || !isWhole || !isBounded) throw this.#wrong(reply);
    [this.#isGrowing, this.#window] = [true, mostBlocks];
    if (isFirst) this.#numAsked += count;
    group.described.push(described);
    this.#askPieces(group, 0, group.slots.length, part, part + 1);
    this.#group = part + 1 < wanted.length ? group : undefined;
    if (!isFirst) return;
    this.#acquired = this.#acquired.then(() => this.#acquire(group, slots));
    // Whoever reads the call to its end hears of it.
    this.#acquired.catch(() => undefined);
  }

  /** Slots for the group's blocks, one after the other. */
  async #acquire(group: Group, slots: Slots): Promise<void> {
    for (let i = 0; i < group.count; i++) {
      const { slot } = await this.#take(slots);
      // What is asked for behind the end of the call never comes.
      if (this.#coming.hasEnded) return;
      group.slots.push(slot);
      this.#askPieces(group, i, i + 1, 0, group.described.length);
    }
  }

  /** Of blocks [fromBlock, toBlock) of the group, of the frames that are wanted [fromPart, toPart). */
  #askPieces(group: Group, fromBlock: number, toBlock: number, fromPart: number, toPart: number): void {
    const { frames, wanted: parts, stream } = this.#options;
    const slots = group.slots.slice(fromBlock, toBlock);
    if (slots.length === 0 || !stream) return;
    for (const [ahead, frame] of parts.slice(fromPart, toPart).entries()) {
      const spec = frames[frame];
      if (!spec) continue;
      const described = group.described[fromPart + ahead] ?? NOTHING;
      const coming = slots.map((slot, i): Coming => {
        return { index: group.first + fromBlock + i, slot, frame, bytes: spec.maxStoredBytes, arrival: undefined };
      });
      const headers = slots.map((_, i) =>
        described.subarray((fromBlock + i) * FRAME_HEADER_BYTES, (fromBlock + i + 1) * FRAME_HEADER_BYTES),
      );
      this.#askFor(stream, coming, { spec, headers });
    }
  }

  /** Whole records, or one frame of each. */
  #askFor(stream: PulledStream, coming: readonly Coming[], frame?: WantedRecords['frame']): void {
    const { hashes } = this.#options;
    const [first] = coming;
    if (!first) return;
    stream.ask(
      {
        indices: coming.map(({ index, frame: which }) => pieceOf(index, which)),
        slots: coming.map(({ slot }) => slot),
        digests: coming.map(({ index }) => digestOf(hashes, index)),
        bytes: first.bytes,
        ...(frame ? { frame } : {}),
      },
      coming,
    );
    this.#coming.expect(...coming);
  }

  async #slice(reply: FetchReply, slots: Slots): Promise<void> {
    const { hashes, recordBytes, mover, format } = this.#options;
    const { index, offset, totalBytes, data } = reply;
    const hash = hashes[this.#numAsked];
    const isNext =
      index === this.#numAsked &&
      totalBytes === recordBytes &&
      offset === (this.#arriving?.next ?? 0) &&
      offset + data.length <= recordBytes;
    if (!hash || !isNext || this.#group) throw this.#wrong(reply);
    await this.#acquired;
    const arriving = this.#arriving ?? { ...(await this.#take(slots)), next: 0 };
    this.#arriving = arriving;
    arriving.bytes.set(data, offset);
    arriving.next += data.length;
    if (arriving.next < recordBytes) return;
    const { slot } = arriving;
    this.#arriving = undefined;
    const own = this.#numAsked++;
    // A mover that fails is a fault like any other.
    const coming: Coming = { index: own, slot, frame: undefined, bytes: recordBytes, arrival: undefined };
    this.#coming.expect(coming);
    const verified = mover.call('verify', { slot, bytes: recordBytes, want: { format, digest: hash.digest } });
    void verified.catch(messageOf).then((fault) => {
      coming.arrival = { fault, way: 'call' };
      this.#coming.changed();
    });
  }

  #take(slots: Slots): ArrivalSlot | Promise<ArrivalSlot> {
    if (this.#held.size >= this.#window) this.#isFull = true;
    if (this.#isFull || this.#isOver || this.#options.link.signal.aborted) return this.#takeLater(slots);
    const taken = slots.take();
    if (taken instanceof Promise) return this.#taken(taken, slots);
    this.#held.add(taken.slot);
    return taken;
  }

  async #takeLater(slots: Slots): Promise<ArrivalSlot> {
    const { signal } = this.#options.link;
    while (this.#isFull && !signal.aborted) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    signal.throwIfAborted();
    return this.#taken(slots.take(), slots);
  }

  async #taken(taking: ArrivalSlot | Promise<ArrivalSlot>, { giveBack }: Slots): Promise<ArrivalSlot> {
    const taken = await taking;
    // Nobody is there any more to give it back.
    if (this.#isOver) giveBack(taken.slot);
    else this.#held.add(taken.slot);
    this.#options.link.signal.throwIfAborted();
    return taken;
  }

  #wrong({ index, offset, totalBytes, frame }: FetchReply): Failure {
    const what = frame > 0 ? `frame ${frame} of record ${index}` : `slice ${index}+${offset} of ${totalBytes} bytes`;
    return new Failure('transfer_failed', `${this.#options.address} sent ${what}, not the next one`);
  }
}

function digestOf(hashes: readonly BlockHash[], index: number): Digest {
  const hash = hashes[index];
  assert(hash, `block ${index} of ${hashes.length} was asked for`);
  return hash.digest;
}

/** Whether it is there without anything having to happen. */
async function isSoon(awaited: Promise<unknown>): Promise<boolean> {
  const state = { isThere: false };
  const note = (): void => {
    state.isThere = true;
  };
  awaited.then(note, note);
  for (let i = 0; i < SOON && !state.isThere; i++) await Promise.resolve();
  return state.isThere;
}
