/** One Prefill call of an attempt: placed, run during the Decode call, and counted. */
import type { Clock } from '../../../shared/base/clock.ts';
import { asFailure, type Failure } from '../../../shared/base/failure.ts';
import type { Random } from '../../../shared/base/random.ts';
import { linkSignals } from '../../../shared/base/signal.ts';
import type { DecodeStreams } from '../../../shared/net/decode/decode_stream.ts';
import type { PrefillReply, Source } from '../../../shared/protocol/messages.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import { NO_WORK, type PlacedWork } from '../../../shared/placement/open_placements.ts';
import type { Conductor } from '../../../shared/placement/conductor.ts';
import type { AttemptMessages } from './attempt_messages.ts';
import type { InFlightRequest } from './in_flight_request.ts';
import { PlacedCall } from './placed_call.ts';
import { runPrefill } from './prefill_run.ts';
import type { PrefillEntry, PrefillEvent } from '../record/request_events.ts';

/** One Prefill call of an attempt. */
export interface PlacedPrefill {
  readonly instance: Instance;
  readonly sources: readonly Source[];
  readonly work: PlacedWork | undefined;
  /** Tokens that it has to compute. */
  readonly expectedTokens: number;
  /** Tokens whose KV is held already, so that it fetches them. */
  readonly heldTokens: number;
  /** Milliseconds that it waits for the other prefill; 0 unless the prefill is one of a pipeline. */
  readonly patienceMs: number;
  /** Aborts when nobody waits for its blocks any more. */
  readonly unwanted: AbortController;
  /** Called when it has failed while its blocks were waited for. */
  readonly onFailed?: () => void;
}

/** The attempt that a Prefill call is made for. */
export interface PrefillingAttempt {
  readonly decodes: DecodeStreams;
  readonly clock: Clock;
  readonly random: Random;
  readonly conductor: Conductor;
  readonly inFlight: InFlightRequest;
  readonly messages: AttemptMessages;
  /** Keys of the full blocks before the tail, two words each. */
  readonly keys: Int32Array;
  /** Number of the attempt, from 1. */
  readonly number: number;
  /** Aborts when the attempt ends. */
  readonly ended: AbortSignal;
}

/**
 * Runs a prefill during the decode call until the prefill ends, the attempt ends or another round begins. Success is only logged and
 * counted; a failure also excludes the instance.
 */
export async function runPlacedPrefill(part: PlacedPrefill, attempt: PrefillingAttempt): Promise<void> {
  const { instance, sources, work, expectedTokens, heldTokens, patienceMs, unwanted, onFailed } = part;
  const { decodes, clock, random, conductor, messages, inFlight, ended } = attempt;
  const { trace, excluded } = inFlight;
  const { name } = instance.member;
  let entry: PrefillEntry = {
    name,
    readyTokens: 0,
    computedTokens: 0,
    expectedTokens,
    outcome: 'running',
    report: undefined,
  };
  const index = trace.record.counts.attempts[attempt.number - 1]?.prefills.length ?? 0;
  const record = (changed: Partial<PrefillEntry>, why?: Pick<PrefillEvent, 'begins' | 'again' | 'failure'>): void => {
    entry = { ...entry, ...changed };
    trace.emit({ kind: 'prefill', attempt: attempt.number, index, entry, ...why });
  };
  record({}, { begins: true });
  const link = linkSignals(ended, unwanted.signal, instance.lost.signal);
  const call = new PlacedCall(conductor, instance, work ?? NO_WORK).promise(attempt.keys, heldTokens, sources);
  try {
    const request = messages.prefill(sources, call.placement, patienceMs);
    const onReply = ({ numReady: readyTokens, numRun: computedTokens, report }: PrefillReply): void => {
      record({ readyTokens, computedTokens, report: report ?? entry.report });
      if (report) conductor.learn(instance, report);
    };
    const onAgain = ({ message }: Failure): void => {
      record({}, { again: message });
    };
    await runPrefill({ decodes, clock, random, instance, request, onReply, onAgain }, link.signal);
    record({ outcome: 'finished' });
  } catch (error) {
    const failure = asFailure(error);
    // A process that dies breaks its prefill and the fetches from it, in any order: its prefill has failed, also when the decode
    // instance has reported missing blocks in the meantime.
    const isLost = failure.retry === 'elsewhere';
    if (ended.aborted || (unwanted.signal.aborted && !isLost)) {
      record({ outcome: 'cancelled' });
      return;
    }
    excluded.failed(instance);
    if (failure.code === 'instance_lost') instance.failed(failure.message);
    record({ outcome: `failed: ${failure.message}` }, { failure: failure.message });
    // The stream of a dead holder ends by itself, but fetches from a silent one would keep waiting.
    if (!unwanted.signal.aborted) onFailed?.();
  } finally {
    link.release();
    call.end();
  }
}
