/**
 * Speed of the links between holders and the instances that fetch from them, learnt from the reports of ended calls.
 *
 *   report ──learn──► speed of (holder's address, reader's id) ──► the links that were measured last, for snapshots
 *
 * A link that was never measured is assumed to have the mean of its reader's links, else that of all, else UNKNOWN_LINK.
 */
import type { LinkReport } from '../protocol/messages.ts';
import type { LinkSnapshot } from './policy.ts';

/** Speed of one link. */
export type LinkSpeed = Pick<LinkSnapshot, 'bytesPerMs' | 'latencyMs'>;

/** Speed of a link while none was measured: that of gRPC on one machine. */
export const UNKNOWN_LINK: LinkSpeed = { bytesPerMs: 200_000, latencyMs: 1 };

/** Upper bound of the measured pairs (P1); beyond it the pair that was measured longest ago is forgotten. */
const MAX_LINKS = 1 << 15;
/** Upper bound of the links in one snapshot (P1). */
const MAX_SHOWN = 4_096;
/** `recent` is rebuilt once 1 / STALE_SHARE of the links were measured since. */
const STALE_SHARE = 4;
/** Fewer bytes than this say more about the latency than about the bandwidth. */
const MIN_BYTES = 256 << 10;
/** Bytes after which a measurement weighs half as much, unless its report is much larger. */
const HALF_BYTES = 64 << 20;
/** Least share of the earlier measurements that one report leaves. */
const MIN_KEPT = 0.8;

/** One measured pair. */
interface Link {
  readonly from: string;
  readonly to: string;
  /** Bytes and milliseconds of the transfers, earlier ones with less weight; 0 before the first large one. */
  bytes: number;
  movingMs: number;
  /** Undefined until it was measured. */
  latencyMs: number | undefined;
  /** The link as snapshots have it; undefined while only its latency is known. Snapshots share it, so it is replaced, not changed. */
  shown: LinkSnapshot | undefined;
}

/** Speeds of all measured links of one model's instances. */
export class Links {
  readonly #byHolder = new Map<string, Map<string, Link>>();
  /** All links in the order of their last measurement, the oldest first. */
  readonly #order = new Set<Link>();
  /** Sums over all links: bytes and milliseconds of transfers, latencies, and the number of links with a measured latency. */
  readonly #sums = { bytes: 0, movingMs: 0, latencyMs: 0, numLatencies: 0 };

  #recent: readonly LinkSnapshot[] | undefined;
  /** Measurements since `#recent` was made. */
  #numLearnt = 0;

  /** Number of measured pairs. */
  get size(): number {
    return this.#order.size;
  }

  /** Mean of the measured links, by bytes; {@link UNKNOWN_LINK} while none is. */
  get mean(): LinkSpeed {
    const { bytes, movingMs, latencyMs, numLatencies } = this.#sums;
    return {
      bytesPerMs: bytes > 0 && movingMs > 0 ? bytes / movingMs : UNKNOWN_LINK.bytesPerMs,
      latencyMs: numLatencies > 0 ? Math.max(0, latencyMs / numLatencies) : UNKNOWN_LINK.latencyMs,
    };
  }

  /** Updates the links of the reader `to`, an instance's id, from the report of a call. */
  learn(to: string, reports: readonly LinkReport[]): void {
    for (const report of reports) if (report.bytes > 0) this.#learn(to, report);
  }

  /** Deletes the links from and to an instance that has left the cluster. */
  forget(id: string, address: string): void {
    this.#recent = undefined;
    for (const link of this.#byHolder.get(address)?.values() ?? []) this.#delete(link);
    for (const readers of this.#byHolder.values()) {
      const link = readers.get(id);
      if (link) this.#delete(link);
    }
  }

  /**
   * The links that were measured last, at most MAX_SHOWN, without those of which only the latency is known. The same list for some
   * time while there are many, so that decisions need not order them anew; never with links of those who have left.
   */
  get recent(): readonly LinkSnapshot[] {
    if (!this.#recent || STALE_SHARE * this.#numLearnt > this.size) {
      this.#numLearnt = 0;
      this.#recent = [...this.#order]
        .slice(-MAX_SHOWN)
        .reverse()
        .flatMap(({ shown }) => shown ?? []);
    }
    return this.#recent;
  }

  #learn(to: string, { address: from, bytes, movingMs, latencyMs }: LinkReport): void {
    const link = this.#linkOf(from, to);
    // The last measured is the last to be forgotten.
    this.#order.delete(link);
    this.#count(link, -1);
    // A negative latency was not measured.
    if (latencyMs >= 0) link.latencyMs = MIN_KEPT * (link.latencyMs ?? latencyMs) + (1 - MIN_KEPT) * latencyMs;
    if (bytes >= MIN_BYTES && movingMs > 0) {
      const kept = Math.max(MIN_KEPT, HALF_BYTES / (HALF_BYTES + bytes));
      link.bytes = kept * link.bytes + bytes;
      link.movingMs = kept * link.movingMs + movingMs;
    }
    if (link.movingMs > 0)
      link.shown = {
        from,
        to,
        bytesPerMs: link.bytes / link.movingMs,
        latencyMs: link.latencyMs ?? this.mean.latencyMs,
      };
    this.#order.add(link);
    this.#count(link, 1);
    this.#numLearnt++;
    if (this.size <= MAX_LINKS) return;
    const [oldest] = this.#order;
    if (oldest) this.#delete(oldest);
  }

  #linkOf(from: string, to: string): Link {
    let readers = this.#byHolder.get(from);
    if (!readers) this.#byHolder.set(from, (readers = new Map<string, Link>()));
    let link = readers.get(to);
    if (!link) {
      readers.set(to, (link = { from, to, bytes: 0, movingMs: 0, latencyMs: undefined, shown: undefined }));
      this.#order.add(link);
      this.#count(link, 1);
    }
    return link;
  }

  #delete(link: Link): void {
    const readers = this.#byHolder.get(link.from);
    readers?.delete(link.to);
    if (readers?.size === 0) this.#byHolder.delete(link.from);
    this.#order.delete(link);
    this.#count(link, -1);
    // From zero again, so that no rounding stays.
    if (this.size === 0) Object.assign(this.#sums, { bytes: 0, movingMs: 0, latencyMs: 0, numLatencies: 0 });
  }

  #count({ bytes, movingMs, latencyMs }: Link, sign: 1 | -1): void {
    this.#sums.bytes += sign * bytes;
    this.#sums.movingMs += sign * movingMs;
    this.#sums.latencyMs += sign * (latencyMs ?? 0);
    this.#sums.numLatencies += latencyMs === undefined ? 0 : sign;
  }
}

/** Links of one reader, and their mean, which is assumed of its other links. */
interface ReaderLinks {
  readonly byHolder: ReadonlyMap<string, LinkSnapshot>;
  readonly mean: LinkSpeed;
}

/** The links of a snapshot, by either end. */
export interface LinkTable {
  readonly byReader: ReadonlyMap<string, ReaderLinks>;
  readonly byHolder: ReadonlyMap<string, readonly LinkSnapshot[]>;
  /** Speed of the fastest one; 0 where there is none. */
  readonly mostBytesPerMs: number;
}

/** Tables of the lists that were asked about: a list never changes, and decisions share it. */
const tables = new WeakMap<readonly LinkSnapshot[], LinkTable>();

/** Returns the links by reader and by holder. The mean of a reader that is not in the table is the snapshot's `otherLink`. */
export function linkTable(links: readonly LinkSnapshot[]): LinkTable {
  let table = tables.get(links);
  if (!table) {
    const byReader = [...groupsOf(links, ({ to }) => to)].map(([to, own]) => [to, readerOf(own)] as const);
    const mostBytesPerMs = links.reduce((most, { bytesPerMs }) => Math.max(most, bytesPerMs), 0);
    table = { byReader: new Map(byReader), byHolder: groupsOf(links, ({ from }) => from), mostBytesPerMs };
    tables.set(links, table);
  }
  return table;
}

function groupsOf(
  links: readonly LinkSnapshot[],
  keyOf: (link: LinkSnapshot) => string,
): ReadonlyMap<string, LinkSnapshot[]> {
  const groups = new Map<string, LinkSnapshot[]>();
  for (const link of links) {
    const group = groups.get(keyOf(link));
    if (group) group.push(link);
    else groups.set(keyOf(link), [link]);
  }
  return groups;
}

function readerOf(links: readonly LinkSnapshot[]): ReaderLinks {
  const msPerByte = links.reduce((sum, { bytesPerMs }) => sum + 1 / bytesPerMs, 0);
  const latencyMs = links.reduce((sum, link) => sum + link.latencyMs, 0) / links.length;
  return {
    byHolder: new Map(links.map((link) => [link.from, link])),
    mean: { bytesPerMs: links.length / msPerByte, latencyMs },
  };
}

/**
 * Returns the speed of the link from a holder's address to a reader's id: the measured one, else the mean of the reader's links, else
 * `otherLink`.
 */
export function linkSpeed(
  from: string,
  to: string,
  { links, otherLink }: { readonly links: readonly LinkSnapshot[]; readonly otherLink: LinkSpeed },
): LinkSpeed {
  const reader = linkTable(links).byReader.get(to);
  return reader?.byHolder.get(from) ?? reader?.mean ?? otherLink;
}
