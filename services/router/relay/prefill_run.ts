/**
 * Runs a prefill on one instance, until its blocks are computed or nobody waits for them. A busy instance is called again, because the
 * decode instance's fetch already waits there.
 */
import { Backoff } from '../../../shared/base/backoff.ts';
import type { Clock } from '../../../shared/base/clock.ts';
import { asFailure, Failure } from '../../../shared/base/failure.ts';
import type { Random } from '../../../shared/base/random.ts';
import type { DecodeStreams, StartedCall } from '../../../shared/net/decode/decode_stream.ts';
import type { PrefillReply, PrefillRequest } from '../../../shared/protocol/messages.ts';
import type { Instance } from '../../../shared/placement/instance.ts';

/** Milliseconds before a busy instance is called again: the first pause, which doubles each time up to the longest. */
const BUSY_PAUSE_MS = 20;
const MAX_BUSY_PAUSE_MS = 500;
/** Connections that broke under one prefill before its instance counts as failed. */
const MAX_BROKEN = 3;

/** One Prefill call to run: instance, request and callbacks. */
export interface PrefillJob {
  readonly decodes: DecodeStreams;
  readonly clock: Clock;
  readonly random: Random;
  readonly instance: Instance;
  readonly request: PrefillRequest;
  /** Called with each answer: how far the prefill has come. */
  readonly onReply: (reply: PrefillReply) => void;
  /** Called once, with the failure, before the first retry. */
  readonly onAgain: (failure: Failure) => void;
}

/**
 * Runs a prefill, and resolves when its blocks are computed. Rejects with a Failure when the prefill failed, its instance was lost, or
 * `over` aborted; the code is `cancelled` only when the instance could be reached until `over` aborted.
 */
export async function runPrefill(job: PrefillJob, over: AbortSignal): Promise<void> {
  const { clock, random } = job;
  const backoff = new Backoff({ clock, random, firstMs: BUSY_PAUSE_MS, mostMs: MAX_BUSY_PAUSE_MS });
  let numBroken = 0;
  let broken: Failure | undefined;
  for (;;) {
    try {
      if (over.aborted) throw broken ?? new Failure('cancelled', 'its blocks are not waited for any more');
      await once(job, over);
      return;
    } catch (error) {
      const failure = asFailure(error);
      const isAgain = failure.code === 'overloaded' || (failure.code === 'session_broken' && ++numBroken <= MAX_BROKEN);
      if (over.aborted || !isAgain) throw failure;
      if (backoff.isFirst) job.onAgain(failure);
      broken = failure.code === 'session_broken' ? failure : undefined;
    }
    await backoff.pause(over);
  }
}

/** Makes the call once. The attempt that it is made for ends it by `over` at its deadline. */
async function once({ decodes, instance, request, onReply }: PrefillJob, over: AbortSignal): Promise<void> {
  let call: StartedCall | undefined;
  let leave: () => void = () => undefined;
  try {
    await new Promise<void>((resolve, reject) => {
      leave = () => {
        const { reason } = over as { reason: unknown };
        reject(reason instanceof Failure ? reason : new Failure('cancelled', 'its blocks are not waited for any more'));
      };
      over.addEventListener('abort', leave);
      call = decodes.prefill(instance, request, {
        onPrefill: (reply) => {
          try {
            onReply(reply);
          } catch (error) {
            reject(asFailure(error));
          }
          if (reply.report) resolve();
        },
        onFailure: reject,
      });
    });
  } finally {
    over.removeEventListener('abort', leave);
    call?.leave();
  }
}
