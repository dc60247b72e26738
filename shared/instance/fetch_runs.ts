/**
 * Plans which frames are requested from which source when layers have attention windows. Of blocks outside the widest window only
 * the frames of full-attention layers are fetched, and nothing when there are none. Such partial blocks have no name (K1) and serve
 * no other sequence.
 *
 * A prefill instance would lose hits when many prompts begin alike. So a block that it fetched in part before is fetched whole the
 * second time, and later sequences hit it.
 */
import type { BlockHash, BlockKey } from '../kv/block_key.ts';
import { blocksOutsideWindow, type KvSpec } from '../kv/kv_spec.ts';
import type { Source } from '../protocol/messages.ts';

/** Blocks of one source that are fetched alike. */
export interface FetchRun extends Source {
  /** Indices of the frames to fetch, in order; undefined for all. */
  readonly wanted: readonly number[] | undefined;
}

/** Plan of a fetch. Blocks [0, from) are present, or no row to be computed sees them. */
export interface FetchRuns {
  readonly runs: readonly FetchRun[];
  readonly from: number;
  /** Whether frames are left out: the fetched blocks are then usable only when all of them arrive. */
  readonly isParted: boolean;
}

/** Consecutive sources from `from` on, none of which overlap; a hole ends them. */
export function consecutive(sources: readonly Source[], from: number, end: number): Source[] {
  const wanted: Source[] = [];
  let next = from;
  for (const source of sources.filter(({ isState }) => !isState).sort((a, b) => a.start - b.start)) {
    const last = Math.min(source.end, end);
    if (last <= next) continue;
    if (source.start > next) break;
    wanted.push({ ...source, start: next, end: last });
    next = last;
  }
  return wanted;
}

/** Returns the source of the recurrent state at the end of the most blocks, at most `most`; undefined when there is none. */
export function stateSource(sources: readonly Source[], most: number): Source | undefined {
  return sources
    .filter(({ isState, end }) => isState && end <= most)
    .reduce<Source | undefined>((best, source) => (best && best.end >= source.end ? best : source), undefined);
}

/**
 * Returns the ranges of a pipeline that are fetched, from block `from` on and before `end`, ascending; the blocks between them are
 * computed by the instance that fetches.
 */
export function pipelineRanges(sources: readonly Source[], from: number, end: number): Source[] {
  return sources
    .map((source) => ({ ...source, start: Math.max(source.start, from), end: Math.min(source.end, end) }))
    .filter((source) => source.start < source.end)
    .sort((a, b) => a.start - b.start);
}

/** Returns the plan that fetches every block of these sources whole. */
export function wholeRuns(sources: readonly Source[], from: number): FetchRuns {
  return { runs: sources.map((source) => ({ ...source, wanted: undefined })), from, isParted: false };
}

/** Most remembered keys of blocks that were fetched in part (P1); the oldest are forgotten. */
const MAX_REMEMBERED = 65_536;

/** Plans partial fetches, and remembers the blocks that were fetched in part. */
export class SeenRuns {
  readonly #spec: Pick<KvSpec, 'frames' | 'blockSize'>;
  readonly #parted = new Set<BlockKey>();

  constructor(spec: Pick<KvSpec, 'frames' | 'blockSize'>) {
    this.#spec = spec;
  }

  /**
   * Plans the fetch of the frames that rows after the last block see. With `isRemembered`, leading blocks that were fetched in part
   * before come whole.
   */
  of(sources: readonly Source[], from: number, hashes: readonly BlockHash[], isRemembered: boolean): FetchRuns {
    const { frames, blockSize } = this.#spec;
    const end = sources.at(-1)?.end ?? from;
    const widest = Math.max(0, ...frames.map(({ window }) => window));
    const numOld = Math.max(from, blocksOutsideWindow(widest, end * blockSize, blockSize));
    const known = isRemembered ? this.#knownTo(from, Math.min(numOld, end), hashes) : from;
    const seen = [...frames.keys()].filter((frame) => frames[frame]?.window === 0);
    const parts = [
      { start: from, end: known, wanted: undefined },
      ...(seen.length > 0 ? [{ start: known, end: numOld, wanted: seen }] : []),
      { start: numOld, end, wanted: undefined },
    ];
    const runs = sources.flatMap((source) =>
      parts.flatMap(({ start, end: last, wanted }): FetchRun[] => {
        const [first, until] = [Math.max(start, source.start), Math.min(last, source.end)];
        return first < until ? [{ ...source, start: first, end: until, wanted }] : [];
      }),
    );
    const isParted = known < Math.min(numOld, end);
    if (isParted && isRemembered) this.#remember(hashes.slice(known, numOld));
    return { runs, from: runs[0]?.start ?? from, isParted };
  }

  /** Returns the end of the leading blocks, from `from` on, that were fetched in part before. */
  #knownTo(from: number, end: number, hashes: readonly BlockHash[]): number {
    let known = from;
    for (let hash = hashes[known]; hash && known < end && this.#parted.has(hash.key); hash = hashes[known]) known++;
    return known;
  }

  #remember(hashes: readonly BlockHash[]): void {
    for (const { key } of hashes) {
      this.#parted.delete(key);
      this.#parted.add(key);
    }
    for (const key of this.#parted) {
      if (this.#parted.size <= MAX_REMEMBERED) break;
      this.#parted.delete(key);
    }
  }
}
