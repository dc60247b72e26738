/**
 * Pulls a run of records into host memory slots, and says of each whether it can be used (K2).
 *
 * The stream is opened at once and read no faster than slots come free, so a full window stops the sender. Records come over a lane where
 * there is one, else over the call itself. A holder that is busy is asked again, a stream whose connection broke goes on where it ended.
 */
import type { Clock } from '../base/clock.ts';
import { asFailure, Failure } from '../base/failure.ts';
import { pause } from '../base/pause.ts';
import type { Random } from '../base/random.ts';
import { linkSignals, OVER } from '../base/signal.ts';
import type { BlockHash, Digest } from '../kv/block_key.ts';
import type { FrameSpec } from '../kv/kv_spec.ts';
import type { RequestContext } from '../protocol/messages.ts';
import { packDigest, packHashes } from '../protocol/packing.ts';
import { FetchAttempt, type Arrived, type Moved, type Slots } from './fetch_attempt.ts';
import type { Lane } from './lane.ts';
import type { Lanes } from './lanes.ts';
import { aheadOf } from './mover/lane_frames.ts';
import type { Mover } from './mover/mover.ts';
import { ask, type Network } from './network.ts';

export interface FetchOptions {
  readonly context: RequestContext;
  readonly format: Digest;
  readonly hashes: readonly BlockHash[];
  /** How long the holder may wait for a block that is being computed. */
  readonly waitMs: number;
  readonly timeoutMs: number;
  /** A holder that has the blocks and sends nothing, or is busy, for this long is given up; undefined: it may be computing them. */
  readonly patienceMs: number | undefined;
  readonly recordBytes: number;
  /** Records of blocks that are being computed may come in these. Absent: they come whole. */
  readonly frames?: readonly FrameSpec[];
  /** Of every block only these frames, in order; over calls records come whole all the same. Absent: all. */
  readonly wanted?: readonly number[] | undefined;
  readonly signal: AbortSignal;
}

export interface FetchStream {
  /**
   * Records in order, each time those that are there; whoever has read one has its slot. The last one may be short of the run. A block whose frames have begun to come may begin anew, when its stream broke.
   * @throws Failure when the stream breaks.
   */
  records(slots: Slots): AsyncGenerator<Iterable<Arrived>>;
  cancel(): void;
}

/** A holder that is busy is asked again after a pause of this, then twice that, up to the second. */
const BUSY_PAUSE_MS = 20;
const MAX_BUSY_PAUSE_MS = 500;
/** Connections that broke under one fetch before it is given up (P1). */
const MAX_BROKEN = 4;
const DEADLINE_SLACK_MS = 100;

/** What a fetch goes through, and waits by. */
export interface FetchLine {
  readonly network: Network;
  readonly mover: Pick<Mover, 'call'>;
  /** Undefined: everything comes over calls. */
  readonly lanes: Lanes | undefined;
  /** Counts what comes. */
  readonly moved: Moved;
  readonly clock: Clock;
  readonly random: Random;
}

export function nothingMoved(): Moved {
  return { memory: 0, socket: 0, call: 0 };
}

export function openFetch(line: FetchLine, address: string, options: FetchOptions): FetchStream {
  const { network, mover, lanes, moved, clock, random } = line;
  const { context, format, hashes, waitMs, timeoutMs, patienceMs, recordBytes, frames = [], signal } = options;
  const { wanted = [...frames.keys()] } = options;
  const untilMs = clock.nowMs() + timeoutMs;
  const link = linkSignals(signal);
  /** Of the last attempt. */
  let lane: Lane | undefined;
  /** From block `first` of the run on: a stream that was refused or broke is opened again where it ended. */
  const open = async (first: number, isOverLane: boolean): Promise<FetchAttempt> => {
    lane = isOverLane ? await lanes?.to(address, waitMs > 0) : undefined;
    const stream = lane?.open(format);
    const own = linkSignals(link.signal);
    const left = hashes.slice(first);
    const call = ask(
      network,
      address,
      'fetch',
      {
        context,
        format: packDigest(format),
        hashes: packHashes(left),
        waitMs: Math.min(waitMs, Math.max(0, Math.floor(untilMs - clock.nowMs()))),
        ...{ lane: lane?.id ?? 0, stream: stream?.number ?? 0, inFrames: stream !== undefined && frames.length > 0 },
        frames: stream && options.wanted ? wanted.reduce((bits, frame) => bits | (1 << frame), 0) : 0,
      },
      { signal: own.signal, timeoutMs: Math.max(1, untilMs - clock.nowMs()) },
    );
    return new FetchAttempt({
      address,
      mover,
      format,
      hashes: left,
      recordBytes,
      frames,
      wanted,
      call,
      stream,
      moved,
      ahead: () => aheadOf(recordBytes, lanes?.numSocketStreams ?? 1),
      link: own,
      watched,
    });
  };

  const giveUp = (what: string): void => {
    lane?.retire();
    link.abort(new Failure('transfer_failed', `${address} sent ${what}`));
  };

  /** `isGoingOn`: something else of the stream is on its way. */
  const watched = async <T>(awaited: Promise<T>, isGoingOn: () => boolean): Promise<T> => {
    if (patienceMs === undefined) return awaited;
    const answered = new AbortController();
    const watch = async (): Promise<void> => {
      do await clock.sleep(patienceMs, answered.signal);
      while (!answered.signal.aborted && isGoingOn());
      if (!answered.signal.aborted) giveUp(`nothing for ${patienceMs} ms`);
    };
    void watch();
    try {
      return await awaited;
    } finally {
      answered.abort(OVER);
    }
  };

  let attempt = open(0, true);
  // Whoever reads hears of it.
  attempt.catch(() => undefined);
  let numDone = 0;
  function* counted(some: Iterable<Arrived>, first: number): Generator<Arrived> {
    for (const arrived of some) {
      if (arrived.isLast) numDone++;
      yield { ...arrived, index: first + arrived.index };
    }
  }
  async function* records(slots: Slots): AsyncGenerator<Iterable<Arrived>> {
    let [pauseMs, numBroken] = [BUSY_PAUSE_MS, 0];
    let busyUntilMs = 0;
    let numBefore = -1;
    const isOver = new AbortController();
    // A call has its own deadline, which comes before; what comes over a lane has this one.
    void clock.sleep(untilMs - clock.nowMs() + DEADLINE_SLACK_MS, isOver.signal).then(() => {
      if (!isOver.signal.aborted) giveUp(`not all within ${timeoutMs} ms`);
    });
    try {
      for (;;) {
        try {
          const first = numDone;
          for await (const some of (await attempt).records(slots)) yield counted(some, first);
          return;
        } catch (error) {
          const failure = asFailure(error);
          if (failure.code === 'session_broken') lane?.retire();
          // Patience begins anew with every record that came.
          if (numDone > numBefore) busyUntilMs = Math.min(untilMs, clock.nowMs() + (patienceMs ?? timeoutMs));
          numBefore = numDone;
          const isBusy = failure.code === 'overloaded';
          const isBroken = failure.code === 'session_broken' && ++numBroken <= MAX_BROKEN;
          const isTooLate = signal.aborted || clock.nowMs() + pauseMs >= busyUntilMs;
          if (isTooLate || !(isBusy || isBroken)) throw failure;
        }
        // Busy is not broken: the blocks are there, or will be.
        await pause(clock, random, pauseMs, signal);
        pauseMs = Math.min(2 * pauseMs, MAX_BUSY_PAUSE_MS);
        signal.throwIfAborted();
        // What broke once goes on over the call alone.
        attempt = open(numDone, numBroken === 0);
        attempt.catch(() => undefined);
      }
    } finally {
      isOver.abort(OVER);
      cancel();
    }
  }
  const cancel = (): void => {
    link.release();
    link.abort(new Failure('cancelled', 'nobody reads it any more'));
    // One that was opened and never read has a stream to close too.
    void attempt.then(
      (last) => {
        last.abandon();
      },
      () => undefined,
    );
  };
  return { records, cancel };
}
