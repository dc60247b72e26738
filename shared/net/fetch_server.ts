/** The Blocks service over any {@link BlockSource}: a run of records as a stream, in slices, no faster than it is read. */
import { once } from 'node:events';
import { Failure } from '../base/failure.ts';
import type { BlockKey } from '../kv/block_key.ts';
import { tiers } from '../protocol/block_events.ts';
import type { FetchCall, SnapshotCall } from '../protocol/calls.ts';
import type { FetchReply } from '../protocol/messages.ts';
import { packKeys, unpackLinks } from '../protocol/packing.ts';
import { SLICE_BYTES, toStatus } from '../protocol/rpc.ts';
import type { BlockSource } from './block_source.ts';

/** Open fetch streams (P1); the next one is refused as overload, and the fetcher computes instead. */
const MAX_STREAMS = 256;
const SNAPSHOT_PAGE_KEYS = 16_384;

export interface FetchServerCounters {
  openStreams: number;
}

export function createFetchHandlers(source: () => BlockSource): {
  fetch: (call: FetchCall) => void;
  snapshot: (call: SnapshotCall) => void;
  counters: FetchServerCounters;
} {
  const counters: FetchServerCounters = { openStreams: 0 };
  const fetch = (call: FetchCall): void => {
    if (counters.openStreams >= MAX_STREAMS) {
      call.emit('error', toStatus(new Failure('overloaded', `${MAX_STREAMS} fetch streams are open`)));
      return;
    }
    counters.openStreams++;
    void serveFetch(call, source()).finally(() => counters.openStreams--);
  };
  const snapshot = (call: SnapshotCall): void => {
    void serveSnapshot(call, source());
  };
  return { fetch, snapshot, counters };
}

/** Aborts when the peer goes away. */
export function abortOnCancel(call: {
  on(event: 'cancelled', listener: () => void): unknown;
  cancelled: boolean;
}): AbortSignal {
  const controller = new AbortController();
  call.on('cancelled', () => {
    controller.abort();
  });
  if (call.cancelled) controller.abort();
  return controller.signal;
}

async function serveFetch(call: FetchCall, source: BlockSource): Promise<void> {
  const signal = abortOnCancel(call);
  let links: ReturnType<typeof unpackLinks> = [];
  let numRead = 0;
  try {
    links = unpackLinks(call.request.links);
    source.wanted.add(links);
    const requestId = call.request.context?.requestId ?? '';
    for (const [index, link] of links.entries()) {
      const record = await source.read(link, requestId, call.request.waitMs, signal);
      if (!record || signal.aborted) break;
      source.wanted.remove(links.slice(index, index + 1));
      numRead++;
      await sendRecord(call, index, record, signal);
    }
    call.end();
  } catch (error) {
    if (!signal.aborted) call.emit('error', toStatus(error));
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
      reject(new Error('the reader went away'));
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

async function serveSnapshot(call: SnapshotCall, source: BlockSource): Promise<void> {
  const signal = abortOnCancel(call);
  const { epoch, sequence, tiers: tierKeys } = source.snapshot();
  // Copied at once: what changes while pages are sent is told by later events.
  const pages = [...tierKeys].flatMap(([tier, keys]) =>
    paged([...keys]).map((page) => ({ tier: tiers.indexOf(tier), page })),
  );
  if (pages.length === 0) pages.push({ tier: 0, page: [] });
  try {
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
