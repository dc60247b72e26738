/**
 * Pulls a run of records into host memory slots.
 *
 * The stream is opened at once and read no faster than slots come free, so a full window stops the sender. A holder that is
 * busy is asked again, a stream whose connection broke goes on where it ended. What arrives is not trusted yet: the caller
 * verifies each record (K2).
 */
import type { Clock } from '../base/clock.ts';
import { asFailure, Failure } from '../base/failure.ts';
import { pause } from '../base/pause.ts';
import type { Random } from '../base/random.ts';
import { linkSignals, OVER } from '../base/signal.ts';
import type { BlockHash, Digest } from '../kv/block_key.ts';
import type { FetchReply, RequestContext } from '../protocol/messages.ts';
import { packDigest, packHashes } from '../protocol/packing.ts';
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
  readonly signal: AbortSignal;
}

/** A slot to write one record into. */
export interface ArrivalSlot {
  readonly slot: number;
  readonly bytes: Uint8Array;
}

export interface FetchStream {
  /** Records in order, each in the slot that `takeSlot` gave; the last one may be short of the run. @throws Failure when the stream breaks. */
  records(
    takeSlot: () => Promise<ArrivalSlot>,
    giveBack: (slot: number) => void,
  ): AsyncGenerator<{ index: number; slot: number }>;
  cancel(): void;
}

/** A holder that is busy is asked again after a pause of this, then twice that, up to the second. */
const BUSY_PAUSE_MS = 20;
const MAX_BUSY_PAUSE_MS = 500;
/** Connections that broke under one fetch before it is given up (P1). */
const MAX_BROKEN = 4;

/** What a fetch goes through, and waits by. */
export interface FetchLine {
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
}

export function openFetch({ network, clock, random }: FetchLine, address: string, options: FetchOptions): FetchStream {
  const { context, format, hashes, waitMs, timeoutMs, patienceMs, recordBytes, signal } = options;
  const untilMs = clock.nowMs() + timeoutMs;
  const link = linkSignals(signal);
  /** From block `index` of the run on: a stream that was refused or broke is opened again where it ended. */
  const open = (index: number): AsyncIterableIterator<FetchReply> =>
    ask(
      network,
      address,
      'fetch',
      {
        context,
        format: packDigest(format),
        hashes: packHashes(hashes.slice(index)),
        waitMs: Math.min(waitMs, Math.max(0, Math.floor(untilMs - clock.nowMs()))),
      },
      { signal: link.signal, timeoutMs: Math.max(1, untilMs - clock.nowMs()) },
    );
  let call = open(0);

  const watched = async <T>(reply: Promise<T>): Promise<T> => {
    if (patienceMs === undefined) return reply;
    const answered = new AbortController();
    void clock.sleep(patienceMs, answered.signal).then(() => {
      if (answered.signal.aborted) return;
      link.abort(new Failure('transfer_failed', `${address} sent nothing for ${patienceMs} ms`));
    });
    try {
      return await reply;
    } finally {
      answered.abort(OVER);
    }
  };

  let numDone = 0;
  async function* once(
    takeSlot: () => Promise<ArrivalSlot>,
    giveBack: (slot: number) => void,
  ): AsyncGenerator<{ index: number; slot: number }> {
    let arriving: (ArrivalSlot & { next: number }) | undefined;
    const first = numDone;
    try {
      for (let next = await watched(call.next()); !next.done; next = await watched(call.next())) {
        const reply = next.value;
        const isNext =
          first + reply.index === numDone &&
          reply.totalBytes === recordBytes &&
          reply.offset === (arriving?.next ?? 0) &&
          reply.offset + reply.data.length <= recordBytes &&
          numDone < hashes.length;
        if (!isNext) {
          throw new Failure(
            'transfer_failed',
            `${address} sent slice ${reply.index}+${reply.offset} of ${reply.totalBytes} bytes, not the next one`,
          );
        }
        arriving ??= { ...(await takeSlot()), next: 0 };
        arriving.bytes.set(reply.data, reply.offset);
        arriving.next += reply.data.length;
        if (arriving.next < recordBytes) continue;
        const { slot } = arriving;
        arriving = undefined;
        yield { index: numDone++, slot };
      }
      if (arriving) throw new Failure('transfer_failed', `${address} ended in the middle of a record`);
    } finally {
      if (arriving) giveBack(arriving.slot);
    }
  }

  async function* records(
    takeSlot: () => Promise<ArrivalSlot>,
    giveBack: (slot: number) => void,
  ): AsyncGenerator<{ index: number; slot: number }> {
    let [pauseMs, numBroken] = [BUSY_PAUSE_MS, 0];
    let busyUntilMs = 0;
    let numBefore = -1;
    try {
      for (;;) {
        try {
          yield* once(takeSlot, giveBack);
          return;
        } catch (error) {
          const failure = asFailure(error);
          // Patience begins anew with every record that came.
          if (numDone > numBefore) busyUntilMs = Math.min(untilMs, clock.nowMs() + (patienceMs ?? timeoutMs));
          numBefore = numDone;
          const isBusy = failure.code === 'overloaded';
          const isBroken = failure.code === 'session_broken' && ++numBroken <= MAX_BROKEN;
          const isOver = signal.aborted || clock.nowMs() + pauseMs >= busyUntilMs;
          if (isOver || !(isBusy || isBroken)) throw failure;
        }
        // Busy is not broken: the blocks are there, or will be.
        await pause(clock, random, pauseMs, signal);
        pauseMs = Math.min(2 * pauseMs, MAX_BUSY_PAUSE_MS);
        signal.throwIfAborted();
        call = open(numDone);
      }
    } finally {
      cancel();
    }
  }
  const cancel = (): void => {
    link.release();
    link.abort(new Failure('cancelled', 'nobody reads it any more'));
  };
  return { records, cancel };
}
