/**
 * Fetches blocks for a sequence: opens all fetch streams at once, reads them in order, verifies every record (K2), and delivers it
 * to the engine. Stops at the first block that does not come. In a pipeline it opens the streams of a few ranges at a time, and tells the
 * engine of each range that has come.
 *
 * A decode call then asks the router for other sources. Nobody gives a prefill or an embedding other sources; where its fetch had
 * left frames out, it fetches again, up to the missing block only.
 */
import { messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import type { ToEngine } from '../engine/engine_messages.ts';
import type { BlockOrigin } from '../engine/sequence_times.ts';
import type { BlockHash } from '../kv/block_key.ts';
import type { RecordShape } from '../kv/kv_spec.ts';
import { recordShapeOf, stateHashOf, type RecordLayout } from '../kv/record.ts';
import { slotBytes, type Slab } from '../kv/slab.ts';
import { openFetch, type FetchLine, type FetchStream } from '../net/fetch/fetch.ts';
import type { Arrived } from '../net/fetch/fetch_events.ts';
import type { Slots } from '../net/fetch/transfer.ts';
import type { LinkReport, RequestContext, Source } from '../protocol/messages.ts';
import { deliveredFrom, originOf } from './block_origins.ts';
import type { FetchSlots } from './fetch_slots.ts';
import {
  consecutive,
  pipelineRanges,
  SeenRuns,
  stateSource,
  wholeRuns,
  type FetchRun,
  type FetchRuns,
} from './fetch_runs.ts';
import { mergeLinks } from './link_reports.ts';
import type { Outbox } from './outbox.ts';
import { outboxStream } from './outbox_stream.ts';

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
  /**
   * Present in a pipeline, whose sources are ranges with blocks in between that are computed here: milliseconds after which a source that
   * is waited for and sends nothing is given up.
   */
  readonly pipelinePatienceMs?: number | undefined;
  readonly context: RequestContext;
  readonly timeoutMs: number;
  readonly isAdmitted: () => boolean;
  readonly signal: AbortSignal;
}

/** Result of a fetch. */
export interface FetchOutcome {
  /**
   * Blocks [0, reached) are in the device or delivered, as far as rows after them see; a few may have been dropped, for the engine to
   * compute.
   */
  readonly reached: number;
  /** Whether the recurrent state after these blocks was delivered, or the model has none. */
  readonly hasState: boolean;
  /** The block that is missing: the next one, or the one whose state is. */
  readonly missing: number;
  readonly fetchedBytes: number;
  /** Links to its sources, one for each source and way. */
  readonly links: readonly LinkReport[];
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
  /** Whether a store has the address. */
  readonly isStore: (address: string) => boolean;
  readonly sendToEngine: (message: ToEngine) => void;
  readonly log: Log;
}

interface Hashed {
  readonly hashes: readonly BlockHash[];
}

interface Fetched {
  readonly reached: number;
  readonly hasState: boolean;
  readonly missing: number;
  readonly bytes: number;
  readonly links: readonly LinkReport[];
  readonly reason: string;
  /** Address of the source that broke, or that sent an unusable record; undefined when none did. */
  readonly broken: string | undefined;
}

/** Most rounds of a prefill's fetch (P1): the frames that rows see, the same for fewer blocks, then whole blocks. */
const MAX_ATTEMPTS = 3;

/** Ranges of a pipeline whose streams are open at once: the one that is read, and those that are announced to their holders ahead. */
const OPEN_RANGES = 4;

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

  /** Copies blocks from `from` on from the outbox back into a sequence that was preempted, as far as the outbox has them. */
  async restore(job: Omit<FetchJob, 'sources' | 'hasOtherSources'>): Promise<void> {
    const { outbox, ownAddress: address, layout } = this.#options;
    const end = job.hashes.length;
    const last = job.hashes.at(-1);
    const sources: Source[] = [{ address, start: job.from, end, isComputing: false }];
    // A state that is not in the outbox is still in the device, or lost.
    if (layout.spec.state && last && outbox.cache.peek(stateHashOf(last)))
      sources.push({ address, start: end - 1, end, isComputing: false, isState: true });
    await this.run({ ...job, sources, hasOtherSources: true });
  }

  async run(job: FetchJob): Promise<FetchOutcome> {
    const { from, hashes, hasOtherSources, signal, pipelinePatienceMs } = job;
    if (pipelinePatienceMs !== undefined) {
      const ranges = wholeRuns(pipelineRanges(job.sources, from, hashes.length), from);
      const { bytes: fetchedBytes, ...fetched } = await this.#fetch(job, ranges);
      return { ...fetched, fetchedBytes };
    }
    let sources = consecutive(job.sources, from, hashes.length);
    let fetchedBytes = 0;
    let links: readonly LinkReport[] = [];
    for (let turn = 1; ; turn++) {
      const plan =
        turn < MAX_ATTEMPTS
          ? this.#seen.of(sources, from, hashes, !hasOtherSources && turn === 1)
          : wholeRuns(sources, from);
      const state = stateSource(job.sources, Math.max(from, sources.at(-1)?.end ?? 0));
      const { reached, hasState, missing, bytes, reason, broken, ...fetched } = await this.#fetch(job, plan, state);
      fetchedBytes += bytes;
      links = mergeLinks(links, fetched.links);
      const isShort = reached < (sources.at(-1)?.end ?? from);
      if (!isShort || !plan.isParted) return { reached, hasState, missing, fetchedBytes, links, reason };
      // Rows computed before the planned end need frames that were left out, so the fetch is planned again up to the reached block. A
      // source that broke, and the sources after it, are dropped.
      const lost = sources.findIndex(({ address }) => address === broken);
      sources = consecutive(lost < 0 ? sources : sources.slice(0, lost), from, reached);
      if (hasOtherSources || signal.aborted || sources.length === 0)
        return { reached: from, hasState, missing: from, fetchedBytes, links, reason };
    }
  }

  async #fetch(job: FetchJob, { runs, from }: FetchRuns, state?: Source): Promise<Fetched> {
    const isPipeline = job.pipelinePatienceMs !== undefined;
    const streams: FetchStream[] = [];
    let [reached, bytes] = [from, 0];
    let reason = 'no holder has the next block';
    let reading: string | undefined;
    let broken: string | undefined;
    // One that is computed is waited for; one that is held waits in its holder's memory no longer than it is read.
    let stateStream = state?.isComputing ? this.#openState(job, state) : undefined;
    let hasState = this.#options.layout.spec.state === undefined;
    try {
      for (const [i, source] of runs.entries()) {
        const ahead = runs.slice(streams.length, isPipeline ? i + OPEN_RANGES : undefined);
        streams.push(...ahead.map((run) => this.#open(job, run)));
        const stream = streams[i];
        if (!stream) break;
        reading = source.address;
        const slots = this.#slotsOf(job);
        const origin = originOf(source, this.#options);
        for await (const incoming of stream.records(slots)) {
          for (const arrived of incoming) {
            const block = source.start + arrived.index;
            const fault = this.#deliver(job, block, arrived, origin);
            if (fault !== undefined) throw new Error(`block ${block} from ${source.address}: ${fault}`);
            const { frames, slotBytes: wholeBytes } = this.#options.layout.spec;
            bytes += arrived.frame === undefined ? wholeBytes : (frames[arrived.frame]?.maxStoredBytes ?? 0);
            if (arrived.isLast) reached = block + 1;
          }
        }
        if (reached < source.end) {
          reason = `${source.address} has no block ${Math.max(reached, source.start)}`;
          break;
        }
        if (isPipeline)
          this.#options.sendToEngine({ kind: 'arrived', id: job.id, start: source.start, end: source.end });
      }
      if (state && reached >= state.end) {
        reading = state.address;
        stateStream ??= this.#openState(job, state);
        bytes += await this.#readState(job, state, stateStream);
        hasState = true;
      }
    } catch (error) {
      [reason, broken] = [messageOf(error), reading];
      if (!job.signal.aborted)
        this.#options.log.warn({ request: job.context.requestId, reason }, 'a fetch stopped early');
    } finally {
      for (const stream of streams) stream.cancel();
      stateStream?.cancel();
    }
    const links = runs.flatMap(({ address }, i) => streams[i]?.links.map((link) => ({ address, ...link })) ?? []);
    const missing = state && reached >= state.end && !hasState ? state.end - 1 : reached;
    return { reached, hasState, missing, bytes, links, reason, broken };
  }

  #open(job: FetchJob, { address, start, end, isComputing, wanted }: FetchRun): FetchStream {
    const { spec } = this.#options.layout;
    return this.#openRecords(job, { address, isComputing, wanted, hashes: job.hashes.slice(start, end) }, spec);
  }

  /** A source that is this process is read from the outbox. */
  #openRecords(
    job: FetchJob,
    { address, isComputing, wanted, hashes }: Pick<FetchRun, 'address' | 'isComputing' | 'wanted'> & Hashed,
    shape: RecordShape,
  ): FetchStream {
    const { line, layout, ownAddress, outbox } = this.#options;
    const { pipelinePatienceMs } = job;
    if (address !== ownAddress) {
      return openFetch(line, address, {
        context: job.context,
        format: layout.format,
        hashes,
        waitMs: isComputing ? job.timeoutMs : 0,
        timeoutMs: job.timeoutMs,
        patienceMs: isComputing ? pipelinePatienceMs : HELD_PATIENCE_MS,
        slotBytes: shape.slotBytes,
        // A state comes whole: nothing is computed with some of its layers.
        frames: shape === layout.spec ? layout.spec.frames : [],
        wanted,
        signal: job.signal,
      });
    }
    return outboxStream(outbox, line.transferThread, {
      hashes,
      format: layout.format,
      requestId: job.context.requestId,
      signal: job.signal,
    });
  }

  /** Opens the stream of the recurrent state after the blocks, which comes as one record. */
  #openState(job: FetchJob, { address, end, isComputing }: Source): FetchStream {
    const { layout } = this.#options;
    const hash = job.hashes[end - 1];
    const hashes = hash ? [stateHashOf(hash)] : [];
    return this.#openRecords(
      job,
      { address, isComputing, wanted: undefined, hashes },
      recordShapeOf(layout.spec, 'state'),
    );
  }

  /** Delivers the recurrent state after the blocks. @throws Error when it does not come, without which the blocks are of no use. */
  async #readState(job: FetchJob, { address, end }: Source, stream: FetchStream): Promise<number> {
    const { slotBytes: bytes } = recordShapeOf(this.#options.layout.spec, 'state');
    for await (const incoming of stream.records(this.#slotsOf(job, bytes))) {
      for (const arrived of incoming) {
        const fault = this.#deliver(job, end - 1, arrived, 'instance', 'state');
        if (fault !== undefined) throw new Error(`the state after block ${end - 1} from ${address}: ${fault}`);
        return bytes;
      }
    }
    throw new Error(`${address} has no state after block ${end - 1}`);
  }

  #slotsOf({ isAdmitted, signal }: FetchJob, bytes = this.#options.layout.spec.slotBytes): Slots {
    const { fetchSlots, slab } = this.#options;
    return {
      acquire: () => fetchSlots.acquire(isAdmitted, signal, bytes),
      bytes: (slot) => slotBytes(slab.memory, slot, bytes),
      release: (slot) => {
        fetchSlots.release(slot);
      },
    };
  }

  /**
   * Delivers a received block or frame to the engine, or releases its slot when the sequence may not keep it (the engine then computes
   * the block). Returns what is wrong with the record, or undefined.
   */
  #deliver(
    { id, isAdmitted, signal }: FetchJob,
    blockIndex: number,
    arrived: Arrived,
    origin: BlockOrigin,
    record?: 'state',
  ): string | undefined {
    const { fetchSlots, sendToEngine } = this.#options;
    const { slot, frame, isLast, fault } = arrived;
    // More frames will arrive in this slot, so the fetch keeps a pin of its own.
    if (!isLast) fetchSlots.pin(slot);
    if (fault !== undefined || signal.aborted) {
      fetchSlots.release(slot);
      return fault ?? 'the request is gone';
    }
    // The engine computes blocks that are not delivered.
    const from = deliveredFrom(origin, arrived);
    if (fetchSlots.mayKeep(slot))
      sendToEngine({ kind: 'deliver', id, blockIndex, slot, frame, origin: from, record, isEarly: !isAdmitted() });
    else fetchSlots.release(slot);
    return undefined;
  }
}
