/** The Blocks service over any {@link BlockSource}: a run of records as a stream, in slices, no faster than it is read. */
import { once } from 'node:events';
import type { Clock } from '../base/clock.ts';
import { Failure } from '../base/failure.ts';
import type { BlockKey } from '../kv/block_key.ts';
import { tiers } from '../protocol/block_events.ts';
import type { FetchCall, SnapshotCall } from '../protocol/calls.ts';
import type { FetchReply, FetchRequest } from '../protocol/messages.ts';
import { packKeys, unpackLinks } from '../protocol/packing.ts';
import { abortOnCancel, endWith, serveStarted } from '../protocol/open_call.ts';
import { SLICE_BYTES, toStatus } from '../protocol/rpc.ts';
import type { BlockSource } from './block_source.ts';

/** What a stream of each kind costs is small; these bound what a peer that opens them for nothing can take (P1). */
const MAX_SNAPSHOTS = 16;
const MAX_LINKS = 65_536;
const SNAPSHOT_PAGE_KEYS = 16_384;

export interface FetchServerCounters {
  openStreams: number;
}

/**
 * `maxStreams` fetches are open at once (P1); the next one is refused as overload, and its reader asks again. Whoever serves
 * derives it from the sequences that may wait for its blocks.
 */
export function createFetchHandlers(
  source: () => BlockSource,
  { maxStreams, clock }: { readonly maxStreams: number; readonly clock: Clock },
): {
  fetch: (call: FetchCall) => void;
  snapshot: (call: SnapshotCall) => void;
  counters: FetchServerCounters;
} {
  const counters: FetchServerCounters = { openStreams: 0 };
  let numSnapshots = 0;
  const fetch = (call: FetchCall): void => {
    if (counters.openStreams >= maxStreams) {
      endWith(call, new Failure('overloaded', `${maxStreams} fetch streams are open`));
      return;
    }
    counters.openStreams++;
    call.on('close', () => counters.openStreams--);
    serveStarted(call, clock, (request: FetchRequest, signal) => serveFetch(call, request, source(), signal));
  };
  const snapshot = (call: SnapshotCall): void => {
    if (numSnapshots >= MAX_SNAPSHOTS) {
      endWith(call, new Failure('overloaded', `${MAX_SNAPSHOTS} snapshots are being read`));
      return;
    }
    numSnapshots++;
    void serveSnapshot(call, source).finally(() => numSnapshots--);
  };
  return { fetch, snapshot, counters };
}

async function serveFetch(
  call: FetchCall,
  request: FetchRequest,
  source: BlockSource,
  signal: AbortSignal,
): Promise<void> {
  const links = unpackLinks(request.links);
  if (links.length > MAX_LINKS) throw new Failure('invalid_request', `a fetch names at most ${MAX_LINKS} blocks`);
  let numRead = 0;
  try {
    source.wanted.add(links);
    const requestId = request.context?.requestId ?? '';
    for (const [index, link] of links.entries()) {
      const record = await source.read(link, requestId, request.waitMs, signal);
      if (!record || signal.aborted) break;
      source.wanted.remove(links.slice(index, index + 1));
      numRead++;
      await sendRecord(call, index, record, signal);
    }
  } finally {
    source.wanted.remove(links.slice(numRead));
  }
}

async function sendRecord(call: FetchCall, index: number, record: Buffer, signal: AbortSignal): Promise<void> {
  for (let offset = 0; offset < record.length; offset += SLICE_BYTES) {
    const data = record.subarray(offset, offset + SLICE_BYTES);
    await written(call, { index, offset, totalBytes: record.length, data }, signal);
  }
}

/** One slice in flight: streams count messages, not bytes, so their own back-pressure would come 16 slices late. */
function written(call: FetchCall, reply: FetchReply, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const leave = (): void => {
      reject(new Failure('cancelled', 'the reader went away'));
    };
    signal.addEventListener('abort', leave, { once: true });
    call.write(reply, (error?: Error | null) => {
      signal.removeEventListener('abort', leave);
      if (error) reject(error);
      else resolve();
    });
    if (signal.aborted) leave();
  });
}

async function serveSnapshot(call: SnapshotCall, source: () => BlockSource): Promise<void> {
  const signal = abortOnCancel(call);
  try {
    const { epoch, sequence, tiers: tierKeys } = source().snapshot();
    // Copied at once: what changes while pages are sent is told by later events.
    const pages = [...tierKeys].flatMap(([tier, keys]) =>
      paged([...keys]).map((page) => ({ tier: tiers.indexOf(tier), page })),
    );
    if (pages.length === 0) pages.push({ tier: 0, page: [] });
    for (const { tier, page } of pages) {
      if (!call.write({ epoch, sequence, tier, keys: packKeys(page) })) await once(call, 'drain', { signal });
    }
    call.end();
  } catch (error) {
    if (!signal.aborted) call.emit('error', toStatus(error));
  }
}

function paged(keys: readonly BlockKey[]): BlockKey[][] {
  return Array.from({ length: Math.ceil(keys.length / SNAPSHOT_PAGE_KEYS) }, (_, i) =>
    keys.slice(i * SNAPSHOT_PAGE_KEYS, (i + 1) * SNAPSHOT_PAGE_KEYS),
  );
}
