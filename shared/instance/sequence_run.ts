/**
 * Runs one sequence of this instance for a Prefill, Decode or Embed call: submits it, fetches its blocks, has it computed, and cancels it
 * when its caller leaves (R2).
 *
 *   submit ──► feed (fetch rounds, as the call's policy has them) ──► proceed ──► its last event
 *      └── refused, or left: the feed is not waited for
 *
 * A preempted sequence gets its blocks back from the outbox when it is admitted again, and proceeds then.
 */
import { Failure } from '../base/failure.ts';
import { DONE, linkSignals } from '../base/signal.ts';
import type { SequenceRequest } from '../engine/sequence_request.ts';
import type { RequestContext, Source } from '../protocol/messages.ts';
import type { FetchOutcome } from './block_fetcher.ts';
import type { Restore, SequenceEvent } from '../engine/engine_events.ts';
import type { EngineInstance } from './engine_instance.ts';

/** Event that ends a successful sequence: its last token, the end of a prefill, or an embedding. */
export type LastEvent = Extract<SequenceEvent, { kind: 'token' | 'prefilled' | 'embedded' }>;

/** Fetches blocks from `from` on for the sequence; returns how far that came. */
export type Fetch = (from: number, sources: readonly Source[], signal: AbortSignal) => Promise<FetchOutcome>;

/** One sequence to run for a call: its request, the fetch of its blocks, and the event callback. */
export interface SequenceRun {
  readonly context: RequestContext;
  readonly request: Omit<SequenceRequest, 'id' | 'isFetching' | 'expectedTokens' | 'priority' | 'sharer'>;
  /** Aborts when the caller leaves. */
  readonly signal: AbortSignal;
  /**
   * Fetches the sequence's blocks; undefined when there is nothing to fetch. The sequence waits until the promise resolves; `signal`
   * aborts when the blocks are no longer needed.
   */
  readonly feed: ((fetch: Fetch, signal: AbortSignal) => Promise<void>) | undefined;
  /** Called for sampled tokens, for tokens of the prompt where log-probabilities are requested, and for progress. */
  readonly onEvent: (event: Extract<SequenceEvent, { kind: 'token' | 'prompt' | 'progress' }>) => void;
  /** Present when `request` awaits ranges of a pipeline; as a fetch has it (block_fetcher.ts). */
  readonly pipelinePatienceMs?: number | undefined;
}

/** Runs a sequence and returns its last event. @throws Failure when the sequence is refused, or its caller leaves. */
export async function runSequence(instance: EngineInstance, run: SequenceRun): Promise<LastEvent> {
  const { context, request, signal, feed, onEvent, pipelinePatienceMs } = run;
  let isAdmitted = false;
  let id = 0;
  const job = { context, timeoutMs: context.timeoutMs, hashes: request.hashes, isAdmitted: () => isAdmitted };
  let restoring = new AbortController();
  const restore = async ({ admission, from, hashes }: Restore): Promise<void> => {
    restoring = new AbortController();
    const until = linkSignals(signal, restoring.signal);
    await instance.fetcher.restore({ ...job, id, hashes, from, signal: until.signal }).finally(() => {
      until.release();
      instance.proceed(id, admission);
    });
  };
  const done = new Promise<LastEvent>((resolve, reject) => {
    const { expectedTokens, priority, tenant, client = '', weight, precedence } = context;
    const asked = { expectedTokens, priority, sharer: { tenant: tenant || client, weight, precedence } };
    id = instance.submit({ ...request, ...asked, isFetching: feed !== undefined }, (event) => {
      if (event.kind === 'admitted') {
        isAdmitted = true;
        if (event.restore) void restore(event.restore);
      } else if (event.kind === 'preempted') {
        isAdmitted = false;
        restoring.abort(DONE);
      } else if (event.kind === 'refused') reject(new Failure(event.code, event.message));
      else if (event.kind === 'prefilled' || event.kind === 'embedded') resolve(event);
      else {
        onEvent(event);
        if (event.kind === 'token' && event.finish) resolve(event);
      }
    });
    const leave = (): void => {
      instance.cancel(id);
      reject(new Failure('cancelled', 'the caller went away'));
    };
    signal.addEventListener('abort', leave, { once: true });
    if (signal.aborted) leave();
  });
  // `done` may reject before it is awaited. The call fails with the first error, and the `finally` below cancels the sequence.
  done.catch(() => undefined);
  const fed = linkSignals(signal);
  const hasOtherSources = request.kind === 'decode';
  const fetch: Fetch = (from, sources, until) =>
    instance.fetcher.run({ ...job, id, from, sources, signal: until, hasOtherSources, pipelinePatienceMs });
  try {
    if (feed) {
      // A refusal does not wait for blocks that nobody will use.
      await Promise.race([feed(fetch, fed.signal), done]);
      fed.abort();
      instance.proceed(id);
    }
    return await done;
  } finally {
    fed.release();
    fed.abort();
    restoring.abort(DONE);
    instance.cancel(id);
  }
}
