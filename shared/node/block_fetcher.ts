/**
 * Brings blocks to a sequence: opens all its fetch streams at once, reads them in order, verifies every record (K2), hands it
 * to the engine. Stops at the first block that does not come; the caller decides who computes the rest.
 */
import { messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import type { ToEngine } from '../engine/engine_messages.ts';
import type { BlockHash } from '../kv/block_key.ts';
import { framesOf, preambleBytes, recordBytes, type FrameRange, type RecordLayout } from '../kv/record.ts';
import { slotBytes, type Slab } from '../kv/slab.ts';
import { numUnseen } from '../kv/windows.ts';
import type { ArrivalSlot, Arrived, Slots } from '../net/fetch_attempt.ts';
import { openFetch, type FetchLine, type FetchStream } from '../net/fetch_client.ts';
import type { RequestContext, Source } from '../protocol/messages.ts';
import type { ArrivalWindow } from './arrival_window.ts';
import type { Outbox } from './outbox.ts';

export interface FetchJob {
  /** The engine's sequence. */
  readonly id: number;
  readonly hashes: readonly BlockHash[];
  /** Blocks [0, from) are in the device. */
  readonly from: number;
  readonly sources: readonly Source[];
  /** Nobody is asked for others when they come short. */
  readonly isOnlyTry: boolean;
  readonly context: RequestContext;
  readonly timeoutMs: number;
  readonly isAdmitted: () => boolean;
  readonly signal: AbortSignal;
}

export interface FetchOutcome {
  /** Blocks [0, reached) are in the device or delivered; a few may have been dropped, for the engine to compute. */
  readonly reached: number;
  readonly fetchedBytes: number;
  /** Why it stopped before the last block. */
  readonly reason: string;
}

export interface BlockFetcherOptions {
  readonly line: FetchLine;
  readonly slab: Slab;
  readonly layout: RecordLayout;
  /** Of its frames, tokens that their layers see; 0: all. */
  readonly windows: readonly number[];
  readonly window: ArrivalWindow;
  readonly outbox: Outbox;
  readonly ownAddress: string;
  readonly sendToEngine: (message: ToEngine) => void;
  readonly log: Log;
}

/** Blocks of one source that are fetched alike. */
interface Run extends Source {
  /** Which of their frames; undefined: all. */
  readonly wanted: readonly number[] | undefined;
}

/** Blocks [0, from) are there, or nobody sees them. */
interface Runs {
  readonly runs: readonly Run[];
  readonly from: number;
}

interface Fetched {
  readonly from: number;
  readonly reached: number;
  readonly bytes: number;
  readonly reason: string;
  /** It ended before the last block. */
  readonly isShort: boolean;
  /** Runs of which only some frames were asked for. */
  readonly numParted: number;
}

/**
 * Blocks that a holder has come at once, or within what an export from its device may take (outbox.ts); beyond that they are
 * computed. A holder that is lost is given up before, by the router's word.
 */
const HELD_PATIENCE_MS = 12_000;

export class BlockFetcher {
  readonly #options: BlockFetcherOptions;
  readonly #frames: readonly FrameRange[];

  constructor(options: BlockFetcherOptions) {
    this.#options = options;
    const start = preambleBytes(options.layout);
    this.#frames = framesOf(options.layout).map((frame) => ({ ...frame, offset: start + frame.offset }));
  }

  async run(job: FetchJob): Promise<FetchOutcome> {
    const sources = sourcesFrom(job);
    const seen = await this.#fetch(job, this.#seenOf(job, sources));
    const { reached, bytes: fetchedBytes, reason } = seen;
    if (!seen.isShort) return { reached, fetchedBytes, reason };
    if (seen.from === job.from && seen.numParted === 0) return { reached, fetchedBytes, reason };
    // Who goes on computing before the end sees what was left out.
    if (!job.isOnlyTry || job.signal.aborted) return { reached: job.from, fetchedBytes, reason };
    const all = await this.#fetch(job, { runs: sources.map(whole), from: job.from });
    return { reached: all.reached, fetchedBytes: fetchedBytes + all.bytes, reason: all.reason };
  }

  async #fetch(job: FetchJob, { runs, from }: Runs): Promise<Fetched> {
    const streams = runs.map((run) => this.#open(job, run));
    let [reached, bytes] = [from, 0];
    let reason = 'no holder has the next block';
    try {
      for (const [i, source] of runs.entries()) {
        const stream = streams[i];
        if (!stream) break;
        const slots: Slots = {
          take: () => this.#takeSlot(job),
          giveBack: (slot) => {
            this.#options.window.give(slot);
          },
        };
        for await (const arrivals of stream.records(slots)) {
          for (const arrival of arrivals) {
            const block = source.start + arrival.index;
            const fault = this.#deliver(job, block, arrival);
            if (fault !== undefined) throw new Error(`block ${block} from ${source.address}: ${fault}`);
            const range = arrival.frame === undefined ? undefined : this.#frames[arrival.frame];
            bytes += range?.bytes ?? recordBytes(this.#options.layout);
            if (arrival.isLast) reached = block + 1;
          }
        }
        if (reached < source.end) {
          reason = `${source.address} has no block ${reached}`;
          break;
        }
      }
    } catch (error) {
      reason = messageOf(error);
      if (!job.signal.aborted)
        this.#options.log.warn({ request: job.context.requestId, reason }, 'a fetch stopped early');
    } finally {
      for (const stream of streams) stream.cancel();
    }
    const isShort = reached < (runs.at(-1)?.end ?? from);
    return { from, reached, bytes, reason, isShort, numParted: runs.filter(({ wanted }) => wanted).length };
  }

  /** What rows behind the last block see; blocks that they see nothing of are asked of nobody: it begins `from` those. */
  #seenOf({ from }: FetchJob, sources: readonly Source[]): Runs {
    const { layout, windows } = this.#options;
    const end = sources.at(-1)?.end ?? from;
    const numOld = numUnseen(Math.max(0, ...windows), end * layout.blockSize, layout.blockSize);
    const seen = [...windows.keys()].filter((frame) => windows[frame] === 0);
    const runs = sources.flatMap((source): Run[] => {
      const { start } = source;
      const middle = Math.min(source.end, Math.max(start, numOld));
      return [
        ...(start < middle && seen.length > 0 ? [{ ...source, end: middle, wanted: seen }] : []),
        ...(middle < source.end ? [whole({ ...source, start: middle })] : []),
      ];
    });
    return { runs, from: Math.max(from, runs[0]?.start ?? from) };
  }

  /** A source that is this process is read from the outbox; its records go through the same checks. */
  #open(job: FetchJob, { address, start, end, isComputing, wanted }: Run): FetchStream {
    const { line, layout, ownAddress, outbox } = this.#options;
    const hashes = job.hashes.slice(start, end);
    if (address !== ownAddress) {
      return openFetch(line, address, {
        context: job.context,
        format: layout.format,
        hashes,
        waitMs: isComputing ? job.timeoutMs : 0,
        timeoutMs: job.timeoutMs,
        patienceMs: isComputing ? undefined : HELD_PATIENCE_MS,
        recordBytes: recordBytes(layout),
        frames: this.#frames,
        wanted,
        signal: job.signal,
      });
    }
    return {
      async *records({ take }) {
        for (const [index, hash] of hashes.entries()) {
          const lent = await outbox.lend(hash, job.context.requestId, 0, job.signal);
          if (!lent) return;
          let slot: number;
          try {
            const taken = await take();
            taken.bytes.set(lent.record);
            ({ slot } = taken);
          } finally {
            lent.release();
          }
          const want = { format: layout.format, digest: hash.digest };
          const fault = await line.mover.call('verify', { slot, bytes: lent.record.length, want }).catch(messageOf);
          yield [{ index, slot, frame: undefined, isLast: true, fault }];
        }
      },
      cancel: () => undefined,
    };
  }

  async #takeSlot({ isAdmitted, signal }: FetchJob): Promise<ArrivalSlot> {
    const { window, slab, layout } = this.#options;
    const slot = await window.take(isAdmitted, signal);
    return { slot, bytes: slotBytes(slab.memory, slot, recordBytes(layout)) };
  }

  /** Undefined when the block, or its frame, is on its way into the device, else what is wrong with the record. */
  #deliver({ id, isAdmitted, signal }: FetchJob, blockIndex: number, arrived: Arrived): string | undefined {
    const { window, sendToEngine } = this.#options;
    const { slot, frame, isLast, fault } = arrived;
    // While more comes into it, it is not only the engine's.
    if (!isLast) window.hold(slot);
    if (fault !== undefined || signal.aborted) {
      window.give(slot);
      return fault ?? 'the request is gone';
    }
    // The engine computes what it was not given.
    if (window.mayKeep(slot)) sendToEngine({ kind: 'deliver', id, blockIndex, slot, frame, isEarly: !isAdmitted() });
    else window.give(slot);
    return undefined;
  }
}

function whole(source: Source): Run {
  return { ...source, wanted: undefined };
}

/** Consecutive sources from `from` on, none of which overlap; a hole ends them. */
function sourcesFrom({ from, sources, hashes }: FetchJob): Source[] {
  const wanted: Source[] = [];
  let next = from;
  for (const source of [...sources].sort((a, b) => a.start - b.start)) {
    const end = Math.min(source.end, hashes.length);
    if (end <= next) continue;
    if (source.start > next) break;
    wanted.push({ ...source, start: next, end });
    next = end;
  }
  return wanted;
}
