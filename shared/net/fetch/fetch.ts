/**
 * Fetches a run of records into host memory slots, and reports for each whether it can be used (K2).
 *
 * The call is opened at once and read no faster than slots come free, so a reader without free slots stops the sender. Records come
 * over a data channel where there is one, else over the call itself. A busy holder is asked again; a fetch whose connection broke
 * continues at the first block that has not arrived.
 */
import { Backoff } from '../../base/backoff.ts';
import type { Clock } from '../../base/clock.ts';
import { asFailure, Failure } from '../../base/failure.ts';
import type { Random } from '../../base/random.ts';
import { linkSignals, DONE, type Link } from '../../base/signal.ts';
import type { BlockHash, Digest } from '../../kv/block_key.ts';
import type { FrameSpec } from '../../kv/kv_spec.ts';
import type { RequestContext } from '../../protocol/messages.ts';
import { packDigest, packHashes } from '../../protocol/packing.ts';
import type { DataChannel } from '../data_channel.ts';
import type { DataChannels } from '../data_channels.ts';
import type { TransferThread } from '../transfer_thread/transfer_thread.ts';
import { ask, type Network } from '../network.ts';
import { FetchCall } from './fetch_call.ts';
import type { Arrived } from './fetch_events.ts';
import type { FetchFlows } from './flows.ts';
import { LinkMeter, type LinkMeasure } from './link_meter.ts';
import { Patience } from './patience.ts';
import type { Moved, Slots } from './transfer.ts';
import { aheadOf, type TransferLimits } from './transfer_bounds.ts';

/** Options of one fetch of consecutive blocks from one holder. */
export interface FetchOptions {
  readonly context: RequestContext;
  readonly format: Digest;
  readonly hashes: readonly BlockHash[];
  /** How long the holder may wait for a block that is being computed. */
  readonly waitMs: number;
  readonly timeoutMs: number;
  /** A holder that has the blocks and sends nothing, or is busy, for this long is given up; undefined: it may be computing them. */
  readonly patienceMs: number | undefined;
  /** Bytes of one slot. Every record must have exactly this size, or the fetch fails with `transfer_failed`. */
  readonly slotBytes: number;
  /** Frames of a record, by which in-flight blocks and partial blocks arrive; absent: records come complete. */
  readonly frames?: readonly FrameSpec[];
  /** Frame numbers to fetch of every block, in order; absent: all frames. Records that come over the call itself are always complete. */
  readonly wanted?: readonly number[] | undefined;
  readonly signal: AbortSignal;
}

/** One running fetch, read by a single consumer. */
export interface FetchStream {
  /**
   * Yields records in order, in batches of those that have arrived; the reader owns the slot of each record that it has read. The run
   * may end early, at the first block that the holder does not have. After a broken connection, a block of which frames were read
   * already may start again from its first frame.
   * @throws Failure when the fetch cannot continue.
   */
  records(slots: Slots): AsyncGenerator<Iterable<Arrived>>;
  /** Ends the fetch: no more records come, and its slots are released once no transfer writes into them. */
  cancel(): void;
  /** The link to the holder, as far as it was measured; empty for a holder in the same process. */
  readonly links: readonly LinkMeasure[];
}

/** First and longest pause, in milliseconds, before a busy holder is asked again; the pause doubles in between. */
const BUSY_PAUSE_MS = 20;
const MAX_BUSY_PAUSE_MS = 500;
/** Connections that broke under one fetch before it is given up (P1). */
const MAX_BROKEN = 4;
const DEADLINE_SLACK_MS = 100;

/** Dependencies that all fetches of a process share. */
export interface FetchLine {
  readonly network: Network;
  readonly transferThread: Pick<TransferThread, 'call'>;
  /** Data channels to holders; undefined when all records come over calls. */
  readonly channels: DataChannels | undefined;
  /** Counters of received bytes by path, shared by all fetches. */
  readonly moved: Moved;
  /** Counters of what came from each holder; absent where nobody reports them. */
  readonly flows?: FetchFlows | undefined;
  readonly clock: Clock;
  readonly random: Random;
  readonly limits?: TransferLimits | undefined;
}

/** Opens a fetch. Its first call is sent at once, before anybody reads the records. */
export function openFetch(line: FetchLine, address: string, options: FetchOptions): FetchStream {
  return new Fetch(line, address, options);
}

class Fetch implements FetchStream {
  readonly #line: FetchLine;
  readonly #address: string;
  readonly #options: FetchOptions;
  readonly #untilMs: number;
  readonly #link: Link;
  readonly #patience: Patience;
  readonly #meter: LinkMeter;
  /** Data channel of the latest call; undefined when that call has none. */
  #channel: DataChannel | undefined;
  #call: Promise<FetchCall>;
  #numDone = 0;

  constructor(line: FetchLine, address: string, options: FetchOptions) {
    this.#line = line;
    this.#address = address;
    this.#options = options;
    this.#untilMs = line.clock.nowMs() + options.timeoutMs;
    this.#link = linkSignals(options.signal);
    this.#patience = new Patience(line.clock, options.patienceMs, (ms) => {
      this.#giveUp(`nothing for ${ms} ms`);
    });
    this.#meter = new LinkMeter(line.clock, options.waitMs > 0, (way, amounts) => {
      line.flows?.add(address, way, amounts);
    });
    this.#call = this.#open(true);
  }

  get links(): readonly LinkMeasure[] {
    return this.#meter.measures;
  }

  async *records(slots: Slots): AsyncGenerator<Iterable<Arrived>> {
    const { clock, random } = this.#line;
    const { timeoutMs, signal } = this.#options;
    const backoff = new Backoff({ clock, random, firstMs: BUSY_PAUSE_MS, mostMs: MAX_BUSY_PAUSE_MS });
    const mayRetry = this.#retries(backoff);
    const isOver = new AbortController();
    // The call's own deadline comes first; this one ends a fetch whose records come over a data channel.
    void clock.sleep(this.#untilMs - clock.nowMs() + DEADLINE_SLACK_MS, isOver.signal).then(() => {
      if (!isOver.signal.aborted) this.#giveUp(`not all within ${timeoutMs} ms`);
    });
    try {
      for (let isWhole = true; ;) {
        try {
          const first = this.#numDone;
          for await (const some of (await this.#call).records(slots)) yield this.#counted(some, first);
          return;
        } catch (error) {
          const failure = asFailure(error);
          if (failure.code === 'session_broken') {
            this.#channel?.retire();
            isWhole = false;
          }
          const isAgain = mayRetry(failure);
          if (!signal.aborted && (!isAgain || failure.code === 'session_broken'))
            this.#meter.failed(this.#channel ? 'socket' : 'call');
          if (!isAgain) throw failure;
        }
        // Pause before the next call, because a busy holder has the blocks, or will have them.
        await backoff.pause(signal);
        signal.throwIfAborted();
        // After a broken connection the fetch continues over the call alone, without a data channel.
        this.#call = this.#open(isWhole);
      }
    } finally {
      isOver.abort(DONE);
      this.cancel();
    }
  }

  cancel(): void {
    this.#link.release();
    this.#link.abort(new Failure('cancelled', 'the fetch was cancelled'));
    // A call that was opened and never read still has a stream to close.
    void this.#call.then(
      (last) => {
        last.abandon();
      },
      () => undefined,
    );
  }

  /** Returns a function that decides whether the holder is asked again after a failure. */
  #retries(backoff: Backoff): (failure: Failure) => boolean {
    const { timeoutMs, patienceMs, signal } = this.#options;
    const { clock } = this.#line;
    let [numBroken, numBefore, busyUntilMs] = [0, -1, 0];
    return ({ code }) => {
      // Every record that arrives restarts the patience.
      if (this.#numDone > numBefore) busyUntilMs = Math.min(this.#untilMs, clock.nowMs() + (patienceMs ?? timeoutMs));
      numBefore = this.#numDone;
      const isAgain = code === 'overloaded' || (code === 'session_broken' && ++numBroken <= MAX_BROKEN);
      return isAgain && !signal.aborted && clock.nowMs() + backoff.nextMs < busyUntilMs;
    };
  }

  *#counted(some: Iterable<Arrived>, first: number): Generator<Arrived> {
    for (const arrived of some) {
      if (arrived.isLast) this.#numDone++;
      yield { ...arrived, index: first + arrived.index };
    }
  }

  #open(mayUseChannel: boolean): Promise<FetchCall> {
    const call = this.#begin(mayUseChannel);
    // The reader awaits the call and receives its failure; this handler only keeps the rejection from being unhandled.
    call.catch(() => undefined);
    return call;
  }

  /** Calls the holder for the blocks from the first one that has not arrived. */
  async #begin(mayUseChannel: boolean): Promise<FetchCall> {
    const { network, channels, limits, clock } = this.#line;
    const { context, format, hashes, waitMs, slotBytes, frames = [] } = this.#options;
    const { wanted = [...frames.keys()] } = this.#options;
    this.#channel = mayUseChannel ? await channels?.to(this.#address, waitMs > 0) : undefined;
    const stream = this.#channel?.open(format);
    const link = linkSignals(this.#link.signal);
    const left = hashes.slice(this.#numDone);
    const leftMs = this.#untilMs - clock.nowMs();
    const request = {
      context,
      format: packDigest(format),
      hashes: packHashes(left),
      waitMs: Math.min(waitMs, Math.max(0, Math.floor(leftMs))),

      channel: this.#channel?.id ?? 0,
      stream: stream?.number ?? 0,
      inFrames: stream !== undefined && frames.length > 0,
      frames: stream && this.#options.wanted ? wanted.reduce((bits, frame) => bits | (1 << frame), 0) : 0,
    };
    const timeoutMs = Math.max(1, leftMs);
    const call = ask(network, this.#address, 'fetch', request, { signal: link.signal, timeoutMs });
    this.#meter.sent();
    return new FetchCall({
      address: this.#address,
      transferThread: this.#line.transferThread,
      moved: this.#line.moved,
      patience: this.#patience,
      meter: this.#meter,
      clock,
      format,
      hashes: left,
      slotBytes,
      frames,
      wanted,
      stream,
      link,
      call,
      ahead: () => aheadOf(slotBytes, channels?.numSocketStreams ?? 1, limits),
    });
  }

  #giveUp(what: string): void {
    this.#channel?.retire();
    this.#link.abort(new Failure('transfer_failed', `${this.#address} sent ${what}`));
  }
}
