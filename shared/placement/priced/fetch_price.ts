/** How far into a prompt an instance fetches held blocks, and when they are there: over slow links computing them is cheaper. */
import { linkSpeed, linkTable, type LinkSpeed } from '../links.ts';
import type { ClusterSnapshot, HeldSnapshot } from '../policy.ts';

/** Most ends of held ranges that are tried for one instance. */
const MAX_ENDS_TRIED = 16;

/** Held blocks that an instance fetches. */
export interface Fetch {
  /** Blocks [match, to) are fetched. */
  readonly to: number;
  /** Milliseconds until they are there. */
  readonly ms: number;
}

/** Ranges of held blocks that follow each other from the first block of a prompt, as all instances may fetch them. */
interface HeldRanges {
  /** End of each range, in blocks. */
  readonly ends: readonly number[];
  /** Addresses of the holders of each range. */
  readonly holders: readonly (readonly string[])[];
  /** Indices of the ranges that the holder at an address has, in order. */
  readonly byAddress: ReadonlyMap<string, readonly number[]>;
}

/** Predicts fetches from the links of a snapshot. */
export class FetchPrices {
  readonly #snapshot: ClusterSnapshot;
  readonly #held: HeldRanges;
  /** Speed of the fastest link. */
  readonly #mostBytesPerMs: number;

  constructor(snapshot: ClusterSnapshot) {
    const { ranges, links, otherLink } = snapshot;
    this.#snapshot = snapshot;
    this.#held = heldRangesOf(ranges);
    this.#mostBytesPerMs = Math.max(linkTable(links).mostBytesPerMs, otherLink.bytesPerMs);
  }

  /** End of the held blocks that follow each other from the first one. */
  get end(): number {
    return this.#held.ends.at(-1) ?? 0;
  }

  /**
   * Returns the held blocks after `match` that the holder at an address lacks, and the milliseconds in which the fastest link brings them.
   */
  leastMs(address: string, match: number, blockBytes: number): { readonly numBlocks: number; readonly ms: number } {
    const { ends, byAddress } = this.#held;
    let numBlocks = Math.max(0, this.end - match);
    for (const range of byAddress.get(address) ?? [])
      numBlocks -= Math.max(0, (ends[range] ?? 0) - Math.max(match, ends[range - 1] ?? 0));
    const stateBytes = this.#lacksState(match) ? (this.#snapshot.state?.bytes ?? 0) : 0;
    return { numBlocks, ms: (numBlocks * blockBytes + stateBytes) / this.#mostBytesPerMs };
  }

  /** Milliseconds in which `bytes` come from the holder at `address` to the instance `to`. */
  linkMs(address: string, to: string, bytes: number): number {
    return msOver(
      linkSpeed(address, to, this.#snapshot),
      bytes + Math.max(this.#readerBytes(to), this.#holderBytes(address)),
    );
  }

  /** Bytes that an instance is still to fetch for earlier requests. */
  #readerBytes(id: string): number {
    return this.#snapshot.fetching?.byReader[id] ?? 0;
  }

  /** Bytes that a holder is still to send for earlier requests. */
  #holderBytes(address: string): number {
    return this.#snapshot.fetching?.byHolder[address] ?? 0;
  }

  /** Smallest fetch end tried by {@link best} that reaches block `least`, else the last one tried; `match` when that reaches it. */
  endOf(match: number, least: number): number {
    if (this.#snapshot.state) return match >= least ? match : this.end;
    let [at, numTried] = [match, 0];
    for (const end of this.#held.ends) {
      if (at >= least) break;
      if (end <= at) continue;
      if (numTried++ >= MAX_ENDS_TRIED) break;
      at = end;
    }
    return at;
  }

  /**
   * Returns the fetch after which the prompt is computed soonest: `computeMs` says when it is, if blocks up to `to` were there at
   * `ms`.
   */
  best(
    { id, address }: { readonly id: string; readonly address: string },
    match: number,
    blockBytes: number,
    computeMs: (to: number, ms: number) => number,
  ): Fetch & { readonly computedMs: number } {
    const { ends, byAddress } = this.#held;
    const own = byAddress.get(address);
    let best = { to: match, ms: 0, computedMs: computeMs(match, 0) };
    let [at, ms, numTried] = [match, 0, 0];
    for (let range = 0; range < ends.length; range++) {
      const end = ends[range] ?? 0;
      if (end <= at) continue;
      if (numTried++ >= MAX_ENDS_TRIED && !this.#snapshot.state) break;
      // Blocks in the instance's own host memory are as good as there.
      if (!own?.includes(range)) ms = this.#arrivalMs(range, id, (end - at) * blockBytes, ms);
      at = end;
      if (this.#lacksState(match)) {
        // Blocks are of use only together with the state after the last of them.
        if (end < this.end) continue;
        ms = this.#stateMs(id, address, ms);
      }
      const computedMs = computeMs(at, ms);
      if (computedMs <= best.computedMs) best = { to: at, ms, computedMs };
    }
    return best;
  }

  /** Whether an instance with `match` blocks of its own has to fetch a state to begin after more of them. */
  #lacksState(match: number): boolean {
    const { state } = this.#snapshot;
    return state !== undefined && match < state.blocks;
  }

  /** Returns when the state after the held blocks has come to the instance `to`, after what came at `startMs`. */
  #stateMs(to: string, own: string, startMs: number): number {
    const { state } = this.#snapshot;
    if (!state || state.holders.some(({ address }) => address === own)) return startMs;
    return startMs + Math.min(...state.holders.map(({ address }) => this.linkMs(address, to, state.bytes)));
  }

  /** Returns when one range has come from its best holder to the instance `to`, after what came at `startMs` and what both links owe. */
  #arrivalMs(range: number, to: string, bytes: number, startMs: number): number {
    const { links, otherLink } = this.#snapshot;
    const reader = linkTable(links).byReader.get(to);
    const readerBytes = this.#readerBytes(to);
    let best = Infinity;
    for (const address of this.#held.holders[range] ?? []) {
      const link = reader?.byHolder.get(address) ?? reader?.mean ?? otherLink;
      const owedMs = Math.max(readerBytes, this.#holderBytes(address)) / link.bytesPerMs;
      best = Math.min(best, Math.max(startMs, owedMs) + msOver(link, bytes));
    }
    return best;
  }
}

function msOver({ bytesPerMs, latencyMs }: LinkSpeed, bytes: number): number {
  return latencyMs + bytes / bytesPerMs;
}

function heldRangesOf(ranges: readonly HeldSnapshot[]): HeldRanges {
  const ends: number[] = [];
  const holdersOf: string[][] = [];
  const byAddress = new Map<string, number[]>();
  let covered = 0;
  for (const { start, end, holders } of ranges) {
    if (end <= covered) continue;
    if (start > covered || holders.length === 0) break;
    for (const { address } of holders) {
      const its = byAddress.get(address);
      if (!its) byAddress.set(address, [ends.length]);
      else if (its.at(-1) !== ends.length) its.push(ends.length);
    }
    holdersOf.push(holders.map(({ address }) => address));
    ends.push(end);
    covered = end;
  }
  return { ends, holders: holdersOf, byAddress };
}
