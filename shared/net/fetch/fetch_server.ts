/** The Blocks service over any {@link BlockSource}: a run of records as a stream, in slices, no faster than it is read. */
import { Failure } from '../../base/failure.ts';
import type { BlockHash } from '../../kv/block_key.ts';
import { framesIn } from '../../kv/record.ts';
import type { RecordInPlace, BorrowedRecord } from '../../kv/record_cache.ts';
import { noFrame, type FetchReply, type FetchRequest } from '../../protocol/messages.ts';
import { unpackHashes } from '../../protocol/packing.ts';
import type { BlockSource, InFlightFrames } from '../block_source.ts';
import type { ChannelHost, ServedStream } from '../channel_host.ts';
import { frameIdOf } from '../transfer_thread/channel_messages.ts';
import { answering, answeringOnce, type Handler } from '../network.ts';
import { snapshotPages } from './snapshot_pages.ts';
import {
  EXPECTED_BLOCKS,
  borrowsOfStream,
  readyOf,
  transferLimits,
  fetchAheadOf,
  type TransferLimits,
} from './transfer_bounds.ts';

/**
 * Most snapshots served at once, and most blocks named by one fetch. Streams are cheap; these bounds limit what a peer that opens many
 * can occupy (P1).
 */
const MAX_SNAPSHOTS = 16;
const MAX_HASHES = 65_536;
const NOTHING = Buffer.alloc(0);

/** Live counters of a fetch server. */
export interface FetchServerCounters {
  openStreams: number;
}

/** Bounds and transports of a fetch server. */
export interface FetchServerOptions {
  /**
   * Most Fetch streams open at once (P1). Further ones are refused as `overloaded`, and their callers retry. Derived from the
   * sequences that may wait.
   */
  readonly maxStreams: number;
  /** Data channels over which records can be sent; absent: all records go over the calls. */
  readonly channels?: ChannelHost | undefined;
  readonly limits?: TransferLimits | undefined;
}

/** Handlers of the Blocks calls that read from a {@link BlockSource}; Offer is served elsewhere. */
export interface FetchHandlers {
  readonly fetch: Handler<'fetch'>;
  readonly snapshot: Handler<'snapshot'>;
  readonly openChannel: Handler<'openChannel'>;
}

/**
 * Returns Blocks handlers over `source()`, which is called once per request. Callers meet `overloaded` beyond `maxStreams` or
 * MAX_SNAPSHOTS, `invalid_request` beyond MAX_HASHES, `session_broken` for an unknown data channel, and `not_found` where there are no
 * data channels.
 */
export function createFetchHandlers(
  source: () => BlockSource,
  options: FetchServerOptions,
): FetchHandlers & { readonly counters: FetchServerCounters } {
  const { maxStreams, channels } = options;
  const counters: FetchServerCounters = { openStreams: 0 };
  let numSnapshots = 0;
  const serveFetch = answering<'fetch'>((request, { signal }) =>
    new ServedFetch(request, source(), options, signal).replies(),
  );
  return {
    async *fetch(requests, call) {
      if (counters.openStreams >= maxStreams) throw new Failure('overloaded', `${maxStreams} fetch streams are open`);
      counters.openStreams++;
      try {
        yield* serveFetch(requests, call);
      } finally {
        counters.openStreams--;
      }
    },
    async *snapshot() {
      if (numSnapshots >= MAX_SNAPSHOTS) throw new Failure('overloaded', `${MAX_SNAPSHOTS} snapshots are being read`);
      numSnapshots++;
      try {
        yield* snapshotPages(source());
      } finally {
        numSnapshots--;
      }
    },
    openChannel: answeringOnce<'openChannel'>((request) => {
      if (!channels) throw new Failure('not_found', 'no data channels here');
      return channels.open(request);
    }),
    counters,
  };
}

/** Holder's side of one Fetch call: serves each next block as the source has it, as in-flight frames, in place, or as a copy. */
class ServedFetch {
  readonly #request: FetchRequest;
  readonly #hashes: readonly BlockHash[];
  readonly #source: BlockSource;
  readonly #stream: ServedStream | undefined;
  readonly #sliceBytes: number;
  readonly #signal: AbortSignal;
  /** Number of leading blocks that were borrowed and are offered or sent. */
  #numServed = 0;

  /** @throws Failure when the request cannot be served. */
  constructor(
    request: FetchRequest,
    source: BlockSource,
    { channels, limits = transferLimits }: FetchServerOptions,
    signal: AbortSignal,
  ) {
    this.#request = request;
    this.#hashes = unpackHashes(request.hashes);
    if (this.#hashes.length > MAX_HASHES)
      throw new Failure('invalid_request', `a fetch names at most ${MAX_HASHES} blocks`);
    this.#source = source;
    this.#stream = request.channel > 0 ? channels?.stream(request.channel, request.stream) : undefined;
    if (request.channel > 0 && !this.#stream) throw new Failure('session_broken', 'the data channel is not known here');
    this.#sliceBytes = limits.sliceBytes;
    this.#signal = signal;
  }

  async *replies(): AsyncGenerator<FetchReply> {
    const { inFrames, waitMs } = this.#request;
    const mayBeInFlight =
      this.#stream !== undefined && inFrames && waitMs > 0 && this.#source.borrowInFlight !== undefined;
    const isOver = mayBeInFlight ? this.#source.await?.(this.#hashes) : undefined;
    try {
      this.#source.wanted.add(this.#hashes);
      while (this.#numServed < this.#hashes.length) {
        const borrowed = await this.#borrow(mayBeInFlight);
        if (!borrowed || this.#signal.aborted) {
          borrowed?.release();
          break;
        }
        if (!(yield* this.#serve(borrowed))) break;
      }
      await this.#stream?.until(0, this.#signal);
    } finally {
      isOver?.();
      this.#stream?.end();
      this.#source.wanted.remove(this.#hashes.slice(this.#numServed));
    }
  }

  async #borrow(mayBeInFlight: boolean): Promise<BorrowedRecord | InFlightFrames | undefined> {
    const ahead = this.#hashes.slice(this.#numServed, this.#numServed + 1 + EXPECTED_BLOCKS);
    const [next, ...rest] = ahead;
    if (!next) return undefined;
    this.#source.expect?.(rest);
    const { context, waitMs } = this.#request;
    const requestId = context?.requestId ?? '';
    if (mayBeInFlight)
      return this.#source.borrowInFlight?.(ahead.slice(0, EXPECTED_BLOCKS), requestId, waitMs, this.#signal);
    return this.#source.borrow(next, requestId, waitMs, this.#signal);
  }

  /** @returns whether the next block may follow. */
  async *#serve(borrowed: BorrowedRecord | InFlightFrames): AsyncGenerator<FetchReply, boolean> {
    const stream = this.#stream;
    if (!stream) {
      if ('frames' in borrowed) throw new Failure('internal', 'frames go over data channels');
      yield* this.#slices(borrowed);
    } else if ('frames' in borrowed) {
      const isWhole = yield* this.#frames(borrowed, this.#numServed, stream);
      if (!isWhole) return false;
      this.#read(borrowed.blocks.length);
      await stream.until(readyOf(borrowed.recordBytes) / 2, this.#signal);
    } else if (isInPlace(borrowed)) yield* this.#ready(borrowed, stream);
    else if (stream.numReady === 0) yield* this.#slices(borrowed);
    else {
      // The source lent a copy because too much memory is borrowed: retry in place once half of the ready records have been sent.
      borrowed.release();
      await stream.until(Math.floor(stream.numReady / 2), this.#signal);
    }
    return true;
  }

  #read(count: number): void {
    this.#source.wanted.remove(this.#hashes.slice(this.#numServed, this.#numServed + count));
    this.#numServed += count;
  }

  /** Offers a record in place, with the following records that are in place too, over the data channel: complete, or frame by frame. */
  async *#ready(borrowed: RecordInPlace, stream: ServedStream): AsyncGenerator<FetchReply> {
    const { frames } = this.#request;
    const index = this.#numServed;
    const bytes = borrowed.record.length;
    const room = frames > 0 ? Math.min(fetchAheadOf(bytes), stream.room(bytes)) : stream.room(bytes);
    const most = Math.min(room - 1, borrowsOfStream(this.#source.numBorrowable(bytes)));
    const ready = [borrowed, ...borrowAfter(this.#source, this.#hashes, index, most, bytes)];
    this.#read(ready.length);
    const numFromDisk = fromDiskOf(ready);
    if (frames > 0) yield* this.#frames(partedRecords(ready), index, stream, numFromDisk);
    else {
      stream.offer(
        ready.map(({ slot, release }, i) => ({ index: frameIdOf(index + i, undefined), slot, release })),
        { offset: 0, bytes },
      );
      yield { index, offset: 0, totalBytes: bytes, data: NOTHING, numReady: ready.length, ...noFrame, numFromDisk };
    }
    // Offer more only when half of the offered records have been sent.
    await stream.until(readyOf(bytes) / 2, this.#signal);
  }

  /** Offers the wanted frames of all blocks, one frame after another as the source has it. @returns whether the last one came. */
  async *#frames(
    { blocks, frames, recordBytes: totalBytes, ...inFlight }: InFlightFrames,
    index: number,
    stream: ServedStream,
    numFromDisk = 0,
  ): AsyncGenerator<FetchReply, boolean> {
    const { frames: wanted } = this.#request;
    try {
      if (wanted >= 1 << frames.length) throw new Failure('invalid_request', `a record has ${frames.length} frames`);
      for (const [frame, { offset, bytes }] of frames.entries()) {
        if (wanted > 0 && !(wanted & (1 << frame))) continue;
        const frameHeaders = await inFlight.frameHeaders(frame, this.#signal);
        if (!frameHeaders || this.#signal.aborted) return false;
        stream.offer(
          blocks.map(({ slot, pin }, i) => ({ index: frameIdOf(index + i, frame), slot, release: pin() })),
          { offset, bytes },
        );
        const frameReply = { frame: frame + 1, frameHeaders: Buffer.concat(frameHeaders), numFromDisk };
        yield { index, offset: 0, totalBytes, data: NOTHING, numReady: blocks.length, ...frameReply };
      }
      return true;
    } finally {
      inFlight.release();
    }
  }

  /** Sends a copy of the record over the call, in slices. */
  async *#slices(borrowed: BorrowedRecord): AsyncGenerator<FetchReply> {
    const index = this.#numServed;
    const record = ownCopy(borrowed);
    const numFromDisk = fromDiskOf([borrowed]);
    borrowed.release();
    this.#read(1);
    for (let offset = 0; offset < record.length; offset += this.#sliceBytes) {
      const data = record.subarray(offset, offset + this.#sliceBytes);
      yield { index, offset, totalBytes: record.length, data, numReady: 0, ...noFrame, numFromDisk };
    }
  }
}

/** Returns complete records in the form of in-flight frames, so that single frames of them can be offered. */
function partedRecords(records: readonly RecordInPlace[]): InFlightFrames {
  const parts = records.map(({ record }) => framesIn(record));
  const held = records.map(({ slot, release }) => {
    let numPins = 0;
    const pin = (): (() => void) => {
      numPins++;
      return () => {
        if (--numPins === 0) release();
      };
    };
    return { slot, pin };
  });
  const own = held.map(({ pin }) => pin());
  return {
    blocks: held,
    recordBytes: records[0]?.record.length ?? 0,
    frames: parts[0]?.map(({ offset, storedBytes }) => ({ offset, bytes: storedBytes })) ?? [],
    frameHeaders: (frame) => Promise.resolve(parts.flatMap((frames) => frames[frame]?.header ?? [])),
    release: () => {
      for (const releaseBorrow of own) releaseBorrow();
    },
  };
}

/** Counts the records that were read from disk for their reader. */
function fromDiskOf(records: readonly BorrowedRecord[]): number {
  return records.filter(({ isFromDisk }) => isFromDisk).length;
}

function isInPlace(borrowed: BorrowedRecord): borrowed is RecordInPlace {
  return borrowed.slot !== undefined;
}

function ownCopy({ record, slot }: BorrowedRecord): Buffer {
  return slot === undefined ? Buffer.from(record.buffer, record.byteOffset, record.byteLength) : Buffer.from(record);
}

/** Borrows the records that follow block `index`, up to `most`, as long as they are in host memory and have `bytes` bytes. */
function borrowAfter(
  source: BlockSource,
  hashes: readonly BlockHash[],
  index: number,
  most: number,
  bytes: number,
): RecordInPlace[] {
  const held: RecordInPlace[] = [];
  while (held.length < most) {
    const hash = hashes[index + 1 + held.length];
    const borrowed = hash && source.borrowResident(hash);
    if (borrowed?.record.length === bytes) {
      held.push(borrowed);
      continue;
    }
    borrowed?.release();
    break;
  }
  return held;
}
