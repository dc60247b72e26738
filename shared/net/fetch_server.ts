/** The Blocks service over any {@link BlockSource}: a run of records as a stream, in slices, no faster than it is read. */
import { Failure } from '../base/failure.ts';
import type { BlockHash, BlockKey } from '../kv/block_key.ts';
import { framesIn } from '../kv/record.ts';
import type { InPlace, Lent } from '../kv/record_cache.ts';
import { tiers } from '../protocol/block_events.ts';
import { noFrame, type FetchReply, type FetchRequest, type SnapshotPage } from '../protocol/messages.ts';
import { HASH_BYTES, packKeys, unpackHashes } from '../protocol/packing.ts';
import type { BlockSource, GrowingBlocks } from './block_source.ts';
import type { LaneHost, ServedStream } from './lane_host.ts';
import { pieceOf, readyOf, windowOf } from './mover/lane_frames.ts';
import { answering, answeringOnce, type Handler } from './network.ts';

/** Records come in slices of at most this: what a reader that stops holds up. */
let sliceBytes = 256 << 10;

/** For drills: records of a few hundred bytes come in several slices too. */
export function narrowSlices(bytes: number): void {
  sliceBytes = bytes;
}

/** What a stream of each kind costs is small; these bound what a peer that opens them for nothing can take (P1). */
const MAX_SNAPSHOTS = 16;
const MAX_HASHES = 65_536;
/** Some milliseconds. */
const MAX_LOOKED_UP = 4_096;
const MAX_LOOKING = 256;
const NOTHING = Buffer.alloc(0);
/** Of a run, told to its source before it is their turn. */
const EXPECTED = 16;
const SNAPSHOT_PAGE_KEYS = 16_384;

export interface FetchServerCounters {
  openStreams: number;
}

export interface FetchServerOptions {
  /** Open at once (P1); the next one is refused as overload, and its reader asks again. Derived from the sequences that may wait. */
  readonly maxStreams: number;
  /** Where records can go beside the calls. */
  readonly lanes?: LaneHost | undefined;
}

export interface FetchHandlers {
  readonly fetch: Handler<'fetch'>;
  readonly snapshot: Handler<'snapshot'>;
  readonly openLane: Handler<'openLane'>;
  readonly exists: Handler<'exists'>;
}

export function createFetchHandlers(
  source: () => BlockSource,
  { maxStreams, lanes }: FetchServerOptions,
): FetchHandlers & { readonly counters: FetchServerCounters } {
  const counters: FetchServerCounters = { openStreams: 0 };
  let [numSnapshots, numLooking] = [0, 0];
  const serveFetch = answering<'fetch'>((request, { signal }) => records(request, source(), lanes, signal));
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
        yield* pages(source());
      } finally {
        numSnapshots--;
      }
    },
    openLane: answeringOnce<'openLane'>((request) => {
      if (!lanes) throw new Failure('not_found', 'no lanes here');
      return lanes.open(request);
    }),
    async *exists(requests) {
      if (numLooking >= MAX_LOOKING) throw new Failure('overloaded', `${MAX_LOOKING} calls look blocks up`);
      numLooking++;
      try {
        for await (const { hashes } of requests) yield { tiers: whereAre(hashes, source()) };
      } finally {
        numLooking--;
      }
    },
    counters,
  };
}

/** A byte of tiers for each. */
function whereAre(packed: Buffer, source: BlockSource): Buffer {
  if (packed.length > MAX_LOOKED_UP * HASH_BYTES)
    throw new Failure('invalid_request', `at most ${MAX_LOOKED_UP} blocks are looked up at once`);
  return Buffer.from(
    unpackHashes(packed).map((hash) =>
      source.whereIs(hash).reduce((bits, tier) => bits | (1 << tiers.indexOf(tier)), 0),
    ),
  );
}

async function* records(
  request: FetchRequest,
  source: BlockSource,
  lanes: LaneHost | undefined,
  signal: AbortSignal,
): AsyncGenerator<FetchReply> {
  const hashes = unpackHashes(request.hashes);
  if (hashes.length > MAX_HASHES) throw new Failure('invalid_request', `a fetch names at most ${MAX_HASHES} blocks`);
  const stream = request.lane > 0 ? lanes?.stream(request.lane, request.stream) : undefined;
  if (request.lane > 0 && !stream) throw new Failure('session_broken', 'the lane is not known here');
  const requestId = request.context?.requestId ?? '';
  const inFrames = stream && request.inFrames && request.waitMs > 0 ? source.lendGrowing?.bind(source) : undefined;
  const isOver = inFrames && source.await?.(hashes);
  let numRead = 0;
  const read = (count: number): void => {
    source.wanted.remove(hashes.slice(numRead, numRead + count));
    numRead += count;
  };
  try {
    source.wanted.add(hashes);
    for (let hash = hashes[0]; hash; hash = hashes[numRead]) {
      source.expect?.(hashes.slice(numRead + 1, numRead + 1 + EXPECTED));
      const index = numRead;
      const lent = inFrames
        ? await inFrames(hashes.slice(index, index + EXPECTED), requestId, request.waitMs, signal)
        : await source.lend(hash, requestId, request.waitMs, signal);
      if (!lent || signal.aborted) {
        lent?.release();
        break;
      }
      if (stream && 'frames' in lent) {
        const isWhole = yield* inParts(lent, index, stream, request.frames, signal);
        if (!isWhole) break;
        read(lent.blocks.length);
        await stream.until(readyOf(lent.recordBytes) / 2, signal);
        continue;
      }
      if ('frames' in lent) throw new Failure('internal', 'frames go over lanes');
      if (stream && isInPlace(lent)) {
        const bytes = lent.record.length;
        // Other streams find half of what is left.
        const room = request.frames > 0 ? Math.min(windowOf(bytes), stream.room(bytes)) : stream.room(bytes);
        const most = Math.min(room - 1, Math.floor(source.numLoanable(bytes) / 2));
        const ready = [lent, ...heldBehind(source, hashes, index, most, bytes)];
        read(ready.length);
        if (request.frames > 0) yield* inParts(partedRecords(ready), index, stream, request.frames, signal);
        else {
          stream.offer(
            ready.map(({ slot, release }, i) => ({ index: pieceOf(index + i, undefined), slot, release })),
            { offset: 0, bytes },
          );
          yield { index, offset: 0, totalBytes: bytes, data: NOTHING, numReady: ready.length, ...noFrame };
        }
        // More is told of when half of it is gone.
        await stream.until(readyOf(bytes) / 2, signal);
        continue;
      }
      if (stream && stream.numReady > 0) {
        // As many lie ready as may: it goes as they do, when some of them have gone.
        lent.release();
        await stream.until(Math.floor(stream.numReady / 2), signal);
        continue;
      }
      const record = ownCopy(lent);
      lent.release();
      read(1);
      for (let offset = 0; offset < record.length; offset += sliceBytes) {
        const data = record.subarray(offset, offset + sliceBytes);
        yield { index, offset, totalBytes: record.length, data, numReady: 0, ...noFrame };
      }
    }
    await stream?.until(0, signal);
  } finally {
    isOver?.();
    stream?.end();
    source.wanted.remove(hashes.slice(numRead));
  }
}

/** Frame after frame of all of them, as they come; those of `wanted`, all when it is 0. @returns whether the last one came. */
async function* inParts(
  { blocks, frames, recordBytes: totalBytes, ...growth }: GrowingBlocks,
  index: number,
  stream: ServedStream,
  wanted: number,
  signal: AbortSignal,
): AsyncGenerator<FetchReply, boolean> {
  try {
    if (wanted >= 1 << frames.length) throw new Failure('invalid_request', `a record has ${frames.length} frames`);
    for (const [frame, { offset, bytes }] of frames.entries()) {
      if (wanted > 0 && !(wanted & (1 << frame))) continue;
      const described = await growth.described(frame, signal);
      if (!described || signal.aborted) return false;
      stream.offer(
        blocks.map(({ slot, hold }, i) => ({ index: pieceOf(index + i, frame), slot, release: hold() })),
        { offset, bytes },
      );
      const said = { frame: frame + 1, described: Buffer.concat(described) };
      yield { index, offset: 0, totalBytes, data: NOTHING, numReady: blocks.length, ...said };
    }
    return true;
  } finally {
    growth.release();
  }
}

/** Records that are whole, as what is lent frame by frame. */
function partedRecords(records: readonly InPlace[]): GrowingBlocks {
  const parts = records.map(({ record }) => framesIn(record));
  const held = records.map(({ slot, release }) => {
    let numHolds = 0;
    const hold = (): (() => void) => {
      numHolds++;
      return () => {
        if (--numHolds === 0) release();
      };
    };
    return { slot, hold };
  });
  const own = held.map(({ hold }) => hold());
  return {
    blocks: held,
    recordBytes: records[0]?.record.length ?? 0,
    frames: parts[0]?.map(({ offset, storedBytes }) => ({ offset, bytes: storedBytes })) ?? [],
    described: (frame) => Promise.resolve(parts.flatMap((frames) => frames[frame]?.header ?? [])),
    release: () => {
      for (const giveBack of own) giveBack();
    },
  };
}

function isInPlace(lent: Lent): lent is InPlace {
  return lent.slot !== undefined;
}

function ownCopy({ record, slot }: Lent): Buffer {
  return slot === undefined ? Buffer.from(record.buffer, record.byteOffset, record.byteLength) : Buffer.from(record);
}

/** Records behind block `index` that are in host memory, in place and of the same size, at most so many. */
function heldBehind(
  source: BlockSource,
  hashes: readonly BlockHash[],
  index: number,
  most: number,
  bytes: number,
): InPlace[] {
  const held: InPlace[] = [];
  while (held.length < most) {
    const hash = hashes[index + 1 + held.length];
    const lent = hash && source.lendHeld(hash);
    if (lent?.record.length === bytes) {
      held.push(lent);
      continue;
    }
    lent?.release();
    break;
  }
  return held;
}

function* pages(source: BlockSource): Generator<SnapshotPage> {
  const { epoch, sequence, tiers: tierKeys } = source.snapshot();
  // Copied at once: what changes while pages are sent is told by later events.
  const all = [...tierKeys].flatMap(([tier, keys]) =>
    paged([...keys]).map((page) => ({ tier: tiers.indexOf(tier), page })),
  );
  if (all.length === 0) all.push({ tier: 0, page: [] });
  for (const { tier, page } of all) yield { epoch, sequence, tier, keys: packKeys(page) };
}

function paged(keys: readonly BlockKey[]): BlockKey[][] {
  return Array.from({ length: Math.ceil(keys.length / SNAPSHOT_PAGE_KEYS) }, (_, i) =>
    keys.slice(i * SNAPSHOT_PAGE_KEYS, (i + 1) * SNAPSHOT_PAGE_KEYS),
  );
}
