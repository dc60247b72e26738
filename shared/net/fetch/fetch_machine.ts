/**
 * One Fetch call as a state machine over its blocks: events in, actions out; no clock, no promise, no memory.
 *
 *   asked ──the holder offers it──► promised ──a slot──► arriving ──its last frame──► received ──read──► delivered
 *     └───────────────┴─────────────────────────────┴──the call or its transfer broke────────────────► lost
 *
 * Frames of in-flight blocks are promised one after another and read one by one; such a block is received with its last frame.
 * Records and frames are read in the order in which they were asked for.
 */
import assert from 'node:assert/strict';
import { Failure } from '../../base/failure.ts';
import type { BlockHash } from '../../kv/block_key.ts';
import { FRAME_HEADER_BYTES, type FrameSpec } from '../../kv/kv_spec.ts';
import type { FetchReply } from '../../protocol/messages.ts';
import { mayFollow, type Arrived, type BlockState, type FetchAction, type FetchEvent } from './fetch_events.ts';
import { FetchQueue, wholeRecord, type Group, type Received, type FetchItem, type Promised } from './fetch_queue.ts';
import { readyOf, fetchAheadOf } from './transfer_bounds.ts';

/** Options of a {@link FetchMachine}. */
export interface FetchMachineOptions {
  /** Holder's address, for error messages. */
  readonly address: string;
  readonly hashes: readonly BlockHash[];
  /** Bytes of one slot; a reply that names another record size fails the fetch. */
  readonly slotBytes: number;
  /** The frames that records may come in; none: they come whole. */
  readonly frames: readonly FrameSpec[];
  /** Frame numbers that come, in order, when a record comes in frames. */
  readonly wanted: readonly number[];
  readonly hasChannel: boolean;
  /** Returns how many records may now be on their way or wait to be read; at most fetchAheadOf. */
  readonly ahead: () => number;
}

/** State machine of one Fetch call over its blocks, as drawn at the top of this file. */
export class FetchMachine {
  readonly #options: FetchMachineOptions;
  readonly #states: BlockState[];
  /** Blocks that their holder read from its disk. */
  readonly #fromDisk = new Set<number>();
  readonly #items: FetchQueue;
  readonly #promised: Promised[] = [];
  /** Slots acquired for this call and not yet passed to the reader. */
  readonly #held = new Set<number>();
  #numPromised = 0;
  /** Group of in-flight blocks whose frames are being promised. */
  #group: Group | undefined;
  /** The record whose slices come now. */
  #sliced: { readonly index: number; readonly bytes: number; next: number } | undefined;
  /** Records that may be on their way or wait to be read. */
  #fetchAhead: number;
  #isFull = false;
  #end: 'open' | 'ended' | Failure = 'open';

  constructor(options: FetchMachineOptions) {
    this.#options = options;
    this.#states = options.hashes.map(() => 'asked');
    this.#items = new FetchQueue(options.hashes);
    this.#fetchAhead = options.ahead();
  }

  stateOf(index: number): BlockState | undefined {
    return this.#states[index];
  }

  /**
   * Number of slots that promised blocks can use now. Once the fetch-ahead is full it stays 0 until half of the records have been
   * read.
   */
  get numWanted(): number {
    if (this.#isFull || this.#end instanceof Failure) return 0;
    return Math.max(0, Math.min(this.#promised.length, this.#fetchAhead - this.#held.size));
  }

  /**
   * Whether the next reply may be read. Promised complete records must get their slots first; blocks in frames do not hold the call
   * back, because blocks that have slots need the frames after them.
   */
  get isReading(): boolean {
    return this.#promised.every(({ of }) => 'frameHeaders' in of);
  }

  /** Whether the fetch has failed; its call is then not read any further. */
  get isBroken(): boolean {
    return this.#end instanceof Failure;
  }

  /**
   * Next step of the reader: 'received' reads the first record, 'coming' waits for a record already asked for, 'waiting' waits for the
   * next promise or slot, 'over' ends.
   * @throws Failure when the next record will not come.
   */
  get front(): 'received' | 'coming' | 'waiting' | 'over' {
    const { first } = this.#items;
    if (first?.received) return 'received';
    if (this.#end instanceof Failure) {
      // All blocks were delivered before the failure, so it does not matter.
      if (this.#states.every((state) => state === 'delivered')) return 'over';
      throw this.#end;
    }
    if (first) return 'coming';
    return this.#end === 'ended' && this.#promised.length === 0 ? 'over' : 'waiting';
  }

  /**
   * Returns the first record or frame when it has been received, else undefined. The last frame of a block passes its slot to the
   * reader.
   */
  read(): (Arrived & Pick<Received, 'way'> & Pick<FetchItem, 'bytes'>) | undefined {
    const first = this.#items.shift();
    if (!first) return undefined;
    const { index, slot, frame, bytes, received } = first;
    const isLast = frame === undefined || frame === this.#options.wanted.at(-1);
    if (isLast) {
      this.#move(index, 'delivered');
      this.#held.delete(slot);
      this.#makeRoom(frame === undefined);
    }
    return { index, slot, frame, isLast, bytes, ...received, isFromDisk: this.#fromDisk.has(index) };
  }

  /**
   * Handles one event and returns the actions to perform. @throws Failure `transfer_failed` when the holder's reply is not the next
   * one.
   */
  on(event: FetchEvent): readonly FetchAction[] {
    // After a failure every event is ignored.
    if (this.#end instanceof Failure) return [];
    switch (event.kind) {
      case 'reply':
        return this.#reply(event.reply);
      case 'slots':
        return this.#assignSlots(event.slots);
      case 'arrived':
        for (const index of this.#items.arrived(event)) this.#move(index, 'received');
        return [];
      case 'ended':
        this.#close();
        return [];
      case 'broken':
        this.#break(event.error);
        return [];
    }
  }

  /** Forgets all slots when the reader leaves. @returns the slots that were never passed to the reader, for release. */
  leave(): number[] {
    const held = [...this.#held];
    this.#held.clear();
    return held;
  }

  #move(index: number, to: BlockState): void {
    const from = this.#states[index];
    assert(mayFollow(from, to), `block ${index} goes from ${from} to ${to}`);
    this.#states[index] = to;
  }

  #reply(reply: FetchReply): FetchAction[] {
    if (this.#end !== 'open') throw this.#wrong(reply);
    if (reply.frame > 0) return this.#promiseFrame(reply);
    if (reply.numReady > 0) return this.#promiseWhole(reply);
    return this.#slice(reply);
  }

  /** Whether blocks [first, first + count) are the next ones, and no group or sliced record is unfinished. */
  #isNext(first: number, count: number): boolean {
    const isBusy = this.#group !== undefined || this.#sliced !== undefined;
    return !isBusy && first === this.#numPromised && first + count <= this.#options.hashes.length;
  }

  #promise(first: number, count: number, of: Promised['of'], numFromDisk: number): void {
    for (let index = first; index < first + Math.min(count, numFromDisk); index++) this.#fromDisk.add(index);
    for (let index = first; index < first + count; index++) {
      this.#move(index, 'promised');
      this.#promised.push({ index, of });
    }
    this.#numPromised += count;
    this.#limit();
  }

  /** Handles a reply that offers complete records over the data channel. */
  #promiseWhole(reply: FetchReply): FetchAction[] {
    const { slotBytes, hasChannel } = this.#options;
    const { index: first, numReady, totalBytes: bytes } = reply;
    const isSized = bytes === slotBytes && numReady <= readyOf(slotBytes);
    if (!hasChannel || !isSized || !this.#isNext(first, numReady)) throw this.#wrong(reply);
    this.#fetchAhead = Math.min(this.#fetchAhead, this.#options.ahead());
    this.#promise(first, numReady, { over: 'channel', bytes }, reply.numFromDisk);
    return [];
  }

  /** Handles a reply that offers one frame of each in-flight block over the data channel. */
  #promiseFrame(reply: FetchReply): FetchAction[] {
    const { slotBytes, wanted, hasChannel } = this.#options;
    const { index: first, numReady: count, frame, frameHeaders, totalBytes } = reply;
    const part = wanted.indexOf(frame - 1);
    const mostBlocks = fetchAheadOf(slotBytes);
    const isFirst = part === 0 && this.#isNext(first, count);
    const group = isFirst ? { first, count, slots: [], numLeft: [], frameHeaders: [] } : this.#group;
    const isNext = group?.first === first && group.count === count && group.frameHeaders.length === part;
    const isSized = totalBytes === slotBytes && frameHeaders.length === count * FRAME_HEADER_BYTES;
    const isBounded = count > 0 && count <= mostBlocks;
    if (!hasChannel || !group || !isNext || !isSized || !isBounded) throw this.#wrong(reply);
    this.#fetchAhead = mostBlocks;
    group.frameHeaders.push(frameHeaders);
    if (isFirst) this.#promise(first, count, group, reply.numFromDisk);
    this.#group = part + 1 < wanted.length ? group : undefined;
    return this.#askFrames(group, 0, group.slots.length, part);
  }

  /** Handles a reply that carries a slice of a record. */
  #slice(reply: FetchReply): FetchAction[] {
    const { index, offset, totalBytes: bytes, data } = reply;
    const isFirst = offset === 0 && data.length > 0 && bytes === this.#options.slotBytes && this.#isNext(index, 1);
    if (isFirst) {
      this.#sliced = { index, bytes, next: 0 };
      this.#promise(index, 1, { over: 'call', bytes }, reply.numFromDisk);
    }
    const sliced = this.#sliced;
    const end = offset + data.length;
    const isNext = sliced?.index === index && sliced.bytes === bytes && sliced.next === offset && end <= bytes;
    if (!isNext) throw this.#wrong(reply);
    sliced.next = end;
    if (end === bytes) this.#sliced = undefined;
    return [{ kind: 'slice', offset, data }];
  }

  /**
   * Assigns slots to the next promised blocks and asks for these blocks together; blocks in frames are asked for with every frame
   * promised so far.
   */
  #assignSlots(slots: readonly number[]): FetchAction[] {
    const actions: FetchAction[] = [];
    for (let at = 0; at < slots.length;) {
      const of = this.#promised[0]?.of;
      assert(of, 'a slot was taken for no block');
      const count = Math.min(slots.length - at, this.#numPromisedOf(of));
      const given = slots.slice(at, at + count);
      const indices = this.#promised.splice(0, count).map(({ index }) => index);
      at += count;
      for (const slot of given) this.#held.add(slot);
      for (const index of indices) this.#move(index, 'arriving');
      if ('over' in of) {
        const items = given.map((slot, i) => ({ index: indices[i] ?? 0, slot, bytes: of.bytes, ...wholeRecord }));
        actions.push({ kind: 'ask', over: of.over, records: this.#items.ask(items) });
      } else {
        of.slots.push(...given);
        of.numLeft.push(...given.map(() => this.#options.wanted.length));
        actions.push(...this.#askFrames(of, of.slots.length - count, of.slots.length, 0));
      }
    }
    this.#limit();
    return actions;
  }

  /** Counts the blocks at the front of the promised queue that belong to `of`. */
  #numPromisedOf(of: Promised['of']): number {
    const count = this.#promised.findIndex((promised) => promised.of !== of);
    return count < 0 ? this.#promised.length : count;
  }

  /** Asks for blocks [from, to) of the group: one action per promised frame, starting at position `fromPart` of `wanted`. */
  #askFrames(group: Group, from: number, to: number, fromPart: number): FetchAction[] {
    const { frames, wanted } = this.#options;
    const slots = group.slots.slice(from, to);
    if (slots.length === 0) return [];
    return group.frameHeaders.slice(fromPart).map((frameHeaders, index): FetchAction => {
      const frame = wanted[fromPart + index];
      const spec = frame === undefined ? undefined : frames[frame];
      assert(spec, 'a frame that is not wanted was promised');
      const headers = slots.map((_, i) =>
        frameHeaders.subarray((from + i) * FRAME_HEADER_BYTES, (from + i + 1) * FRAME_HEADER_BYTES),
      );
      const items = slots.map((slot, i): FetchItem => {
        return { index: group.first + from + i, slot, frame, group, bytes: spec.maxStoredBytes, received: undefined };
      });
      return { kind: 'ask', over: 'channel', records: this.#items.ask(items, { spec, headers }) };
    });
  }

  #close(): void {
    const { address } = this.#options;
    const begun = this.#group ? 'block' : this.#sliced ? 'record' : undefined;
    if (begun) this.#break(new Failure('transfer_failed', `${address} ended in the middle of a ${begun}`));
    else this.#end = 'ended';
  }

  #break(error: Failure): void {
    // Everything promised has been received: the failure is ignored, and the caller asks other holders for the rest.
    if (this.#end === 'ended' && this.#promised.length === 0 && !this.#items.isComing) return;
    this.#end = error;
    for (const [index, state] of this.#states.entries()) {
      if (state === 'asked' || state === 'promised' || state === 'arriving') this.#move(index, 'lost');
    }
    this.#promised.length = 0;
    this.#items.giveUp();
  }

  /**
   * Marks the fetch-ahead as full when promised blocks wait and no slot is left in it. #makeRoom lifts the mark once half has been
   * read.
   */
  #limit(): void {
    if (this.#promised.length > 0 && this.#held.size >= this.#fetchAhead) this.#isFull = true;
  }

  #makeRoom(isWhole: boolean): void {
    if (this.#held.size > this.#fetchAhead / 2) return;
    if (isWhole && !this.#group) this.#fetchAhead = this.#options.ahead();
    this.#isFull = false;
    this.#limit();
  }

  #wrong({ index, offset, totalBytes, numReady, frame }: FetchReply): Failure {
    let what = `slice ${index}+${offset} of ${totalBytes} bytes`;
    if (numReady > 0) what = `an offer of ${numReady} records of ${totalBytes} bytes from ${index} on`;
    if (frame > 0) what = `frame ${frame} of record ${index}`;
    return new Failure('transfer_failed', `${this.#options.address} sent ${what}, not the next one`);
  }
}
