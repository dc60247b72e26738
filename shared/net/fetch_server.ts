/** The Blocks service over any {@link BlockSource}: a run of records as a stream, in slices, no faster than it is read. */
import { Failure } from '../base/failure.ts';
import type { BlockKey } from '../kv/block_key.ts';
import { tiers } from '../protocol/block_events.ts';
import type { FetchReply, FetchRequest, SnapshotPage } from '../protocol/messages.ts';
import { packKeys, unpackHashes } from '../protocol/packing.ts';
import type { BlockSource } from './block_source.ts';
import { answering, type Handler } from './network.ts';

/** Records come in slices of at most this: what a reader that stops holds up. */
let sliceBytes = 256 << 10;

/** For drills: records of a few hundred bytes come in several slices too. */
export function narrowSlices(bytes: number): void {
  sliceBytes = bytes;
}

/** What a stream of each kind costs is small; these bound what a peer that opens them for nothing can take (P1). */
const MAX_SNAPSHOTS = 16;
const MAX_HASHES = 65_536;
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
  { maxStreams }: { readonly maxStreams: number },
): { fetch: Handler<'fetch'>; snapshot: Handler<'snapshot'>; counters: FetchServerCounters } {
  const counters: FetchServerCounters = { openStreams: 0 };
  let numSnapshots = 0;
  const serveFetch = answering<'fetch'>((request, { signal }) => records(request, source(), signal));
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
    counters,
  };
}

async function* records(request: FetchRequest, source: BlockSource, signal: AbortSignal): AsyncGenerator<FetchReply> {
  const hashes = unpackHashes(request.hashes);
  if (hashes.length > MAX_HASHES) throw new Failure('invalid_request', `a fetch names at most ${MAX_HASHES} blocks`);
  let numRead = 0;
  try {
    source.wanted.add(hashes);
    const requestId = request.context?.requestId ?? '';
    for (const [index, hash] of hashes.entries()) {
      const record = await source.read(hash, requestId, request.waitMs, signal);
      if (!record || signal.aborted) break;
      source.wanted.remove(hashes.slice(index, index + 1));
      numRead++;
      for (let offset = 0; offset < record.length; offset += sliceBytes) {
        const data = record.subarray(offset, offset + sliceBytes);
        yield { index, offset, totalBytes: record.length, data };
      }
    }
  } finally {
    source.wanted.remove(hashes.slice(numRead));
  }
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
