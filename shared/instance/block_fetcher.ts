/**
 * Fetches blocks for a sequence: opens all fetch streams at once, reads them in order, verifies every record (K2), and delivers it
 * to the engine. Stops at the first block that does not come.
 *
 * A decode call then asks the router for other sources. Nobody gives a prefill or an embedding other sources; where its fetch had
 * left frames out, it fetches again, up to the missing block only.
 */
import { messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import type { ToEngine } from '../engine/engine_messages.ts';
import type { BlockHash } from '../kv/block_key.ts';
import type { RecordLayout } from '../kv/record.ts';
import { slotBytes, type Slab } from '../kv/slab.ts';
import { openFetch, type FetchLine, type FetchStream } from '../net/fetch/fetch.ts';
import type { Arrived } from '../net/fetch/fetch_events.ts';
import type { Slots } from '../net/fetch/transfer.ts';
import type { RequestContext, Source } from '../protocol/messages.ts';
import type { FetchSlots } from './fetch_slots.ts';
import { consecutive, SeenRuns, wholeRuns, type FetchRun, type FetchRuns } from './fetch_runs.ts';
import type { Outbox } from './outbox.ts';

/** One fetch of a sequence: its blocks, their sources and its limits. */
export interface FetchJob {
  /** The engine's sequence. */
  readonly id: number;
  readonly hashes: readonly BlockHash[];
  /** Blocks [0, from) are in the device. */
  readonly from: number;
  readonly sources: readonly Source[];
  /**
   * Whether the caller sends other sources when a block is missing, as for a decode sequence. Without them the fetch is planned again
   * up to the missing block, and blocks that arrive complete serve later sequences.
   */
  readonly hasOtherSources: boolean;
  readonly context: RequestContext;
  readonly timeoutMs: number;
  readonly isAdmitted: () => boolean;
  readonly signal: AbortSignal;
}

/** Result of a fetch. */
export interface FetchOutcome {
  /** Blocks [0, reached) are in the device or delivered, as far as rows behind them see; a few may have been dropped, for the engine to compute. */
  readonly reached: number;
  readonly fetchedBytes: number;
  /** Why it stopped before the last block. */
  readonly reason: string;
}

/** Connections, memory and callbacks of a BlockFetcher. */
export interface BlockFetcherOptions {
  readonly line: FetchLine;
  readonly slab: Slab;
  readonly layout: RecordLayout;
  readonly fetchSlots: FetchSlots;
  readonly outbox: Outbox;
  readonly ownAddress: string;
  readonly sendToEngine: (message: ToEngine) => void;
  readonly log: Log;
}

interface Fetched {
  readonly reached: number;
  readonly bytes: number;
  readonly reason: string;
  /** Address of the source that broke, or that sent an unusable record; undefined when none did. */
  readonly broken: string | undefined;
}

/** Most rounds of a prefill's fetch (P1): the frames that rows see, the same for fewer blocks, then whole blocks. */
const MAX_ATTEMPTS = 3;

/**
 * Milliseconds without data after which a holder of finished blocks is given up, and the blocks are computed here. Longer than an
 * export from the holder's device may take (outbox.ts); a lost holder is given up earlier, when the router reports it.
 */
const HELD_PATIENCE_MS = 12_000;

/** Fetches blocks of sequences from other holders, verifies the records and delivers them to the engine. */
export class BlockFetcher {
  readonly #options: BlockFetcherOptions;
  readonly #seen: SeenRuns;

  constructor(options: BlockFetcherOptions) {
    this.#options = options;
    this.#seen = new SeenRuns(options.layout.spec);
  }

  async run(job: FetchJob): Promise<FetchOutcome> {
    const { from, hashes, hasOtherSources, signal } = job;
    let sources = consecutive(job.sources, from, hashes.length);
    let fetchedBytes = 0;
    for (let turn = 1; ; turn++) {
      const plan =
        turn < MAX_ATTEMPTS
          ? this.#seen.of(sources, from, hashes, !hasOtherSources && turn === 1)
          : wholeRuns(sources, from);
      const { reached, bytes, reason, broken } = await this.#fetch(job, plan);
      fetchedBytes += bytes;
      const isShort = reached < (sources.at(-1)?.end ?? from);
      if (!isShort || !plan.isParted) return { reached, fetchedBytes, reason };
      // Rows computed before the planned end need frames that were left out, so the fetch is planned again up to the reached block. A
      // source that broke, and the sources after it, are dropped.
      const lost = sources.findIndex(({ address }) => address === broken);
      sources = consecutive(lost < 0 ? sources : sources.slice(0, lost), from, reached);
      if (hasOtherSources || signal.aborted || sources.length === 0) return { reached: from, fetchedBytes, reason };
    }
  }

  async #fetch(job: FetchJob, { runs, from }: FetchRuns): Promise<Fetched> {
    const streams = runs.map((run) => this.#open(job, run));
    let [reached, bytes] = [from, 0];
    let reason = 'no holder has the next block';
    let reading: string | undefined;
    let broken: string | undefined;
    try {
      for (const [i, source] of runs.entries()) {
        const stream = streams[i];
        if (!stream) break;
        reading = source.address;
        const slots = this.#slotsOf(job);
        for await (const incoming of stream.records(slots)) {
          for (const arrived of incoming) {
            const block = source.start + arrived.index;
            const fault = this.#deliver(job, block, arrived);
            if (fault !== undefined) throw new Error(`block ${block} from ${source.address}: ${fault}`);
            const { frames, slotBytes: wholeBytes } = this.#options.layout.spec;
            bytes += arrived.frame === undefined ? wholeBytes : (frames[arrived.frame]?.maxStoredBytes ?? 0);
            if (arrived.isLast) reached = block + 1;
          }
        }
        if (reached < source.end) {
          reason = `${source.address} has no block ${reached}`;
          break;
        }
      }
    } catch (error) {
      [reason, broken] = [messageOf(error), reading];
      if (!job.signal.aborted)
        this.#options.log.warn({ request: job.context.requestId, reason }, 'a fetch stopped early');
    } finally {
      for (const stream of streams) stream.cancel();
    }
    return { reached, bytes, reason, broken };
  }

  /** A source that is this process is read from the outbox; its records go through the same checks. */
  #open(job: FetchJob, { address, start, end, isComputing, wanted }: FetchRun): FetchStream {
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
        slotBytes: layout.spec.slotBytes,
        frames: layout.spec.frames,
        wanted,
        signal: job.signal,
      });
    }
    return {
      async *records({ acquire, bytes }) {
        for (const [index, hash] of hashes.entries()) {
          const borrowed = await outbox.borrow(hash, job.context.requestId, 0, job.signal);
          if (!borrowed) return;
          let slot: number;
          try {
            slot = await acquire();
            bytes(slot).set(borrowed.record);
          } finally {
            borrowed.release();
          }
          const want = { format: layout.format, digest: hash.digest };
          const fault = await line.transferThread
            .call('verify', { slot, bytes: borrowed.record.length, want })
            .catch(messageOf);
          yield [{ index, slot, frame: undefined, isLast: true, fault }];
        }
      },
      cancel: () => undefined,
    };
  }

  #slotsOf({ isAdmitted, signal }: FetchJob): Slots {
    const { fetchSlots, slab, layout } = this.#options;
    return {
      acquire: () => fetchSlots.acquire(isAdmitted, signal),
      bytes: (slot) => slotBytes(slab.memory, slot, layout.spec.slotBytes),
      release: (slot) => {
        fetchSlots.release(slot);
      },
    };
  }

  /**
   * Delivers a received block or frame to the engine, or releases its slot when the sequence may not keep it (the engine then computes
   * the block). Returns what is wrong with the record, or undefined.
   */
  #deliver({ id, isAdmitted, signal }: FetchJob, blockIndex: number, arrived: Arrived): string | undefined {
    const { fetchSlots, sendToEngine } = this.#options;
    const { slot, frame, isLast, fault } = arrived;
    // More frames will arrive in this slot, so the fetch keeps a pin of its own.
    if (!isLast) fetchSlots.pin(slot);
    if (fault !== undefined || signal.aborted) {
      fetchSlots.release(slot);
      return fault ?? 'the request is gone';
    }
    // The engine computes blocks that are not delivered.
    if (fetchSlots.mayKeep(slot))
      sendToEngine({ kind: 'deliver', id, blockIndex, slot, frame, isEarly: !isAdmitted() });
    else fetchSlots.release(slot);
    return undefined;
  }
}
