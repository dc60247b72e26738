/**
 * `Prefill(tokens, sources)`: fetch the blocks that exist, compute the full blocks that are left, sample nothing.
 *
 * Blocks go out by themselves: to whoever waits for them with an open fetch stream, then to their home store. The call only
 * reports progress; when it ends early its blocks stay, they are a cache.
 */
import { Failure } from '../../shared/base/failure.ts';
import { Pushed } from '../../shared/base/pushed.ts';
import { linkSignals } from '../../shared/base/signal.ts';
import type { EngineInstance, SequenceEvent } from '../../shared/instance/engine_instance.ts';
import { checkCall, contextOf, neutralSampling, reportOf, type CallChain } from '../../shared/instance/engine_call.ts';
import { answering, type Handlers } from '../../shared/net/network.ts';
import type { PrefillReply, PrefillRequest } from '../../shared/protocol/messages.ts';

export function createPrefillHandlers(instance: EngineInstance): Handlers {
  return {
    prefill: answering<'prefill'>(async function* (request, call) {
      const left = linkSignals(call.signal);
      // Bounded by the chunks of the prompt.
      const replies = new Pushed<PrefillReply>();
      servePrefill(replies, request, instance, left.signal).then(
        () => replies.end(),
        (error: unknown) => replies.end(error),
      );
      try {
        yield* replies;
      } finally {
        left.release();
        left.abort();
      }
    }),
  };
}

async function servePrefill(
  replies: Pushed<PrefillReply>,
  request: PrefillRequest,
  instance: EngineInstance,
  signal: AbortSignal,
): Promise<void> {
  const requestId = request.context?.requestId ?? '';
  instance.outbox.begin(requestId);
  let isBusy = false;
  try {
    const chain = await checkCall(instance, request);
    const report = await compute(replies, request, instance, chain, signal);
    const numReady = chain.links.length * instance.info.layout.blockSize;
    replies.push({ numReady, numRun: report.computedTokens, report });
  } catch (error) {
    isBusy = error instanceof Failure && error.code === 'overloaded';
    throw error;
  } finally {
    // Whoever waits for a block that is not here now must not wait in vain; but a caller that was refused because this instance
    // is busy comes back, and its fetch waits.
    if (!isBusy || signal.aborted) instance.outbox.end(requestId);
    else instance.outbox.postpone(requestId);
  }
}

async function compute(
  replies: Pushed<PrefillReply>,
  request: PrefillRequest,
  instance: EngineInstance,
  chain: CallChain,
  signal: AbortSignal,
): Promise<ReturnType<typeof reportOf>> {
  let isAdmitted = false;
  let settle: (event: SequenceEvent) => void = () => undefined;
  let fail: (error: Error) => void = () => undefined;
  const done = new Promise<SequenceEvent>((resolve, reject) => {
    settle = resolve;
    fail = reject;
  });
  // It may fail while blocks are still fetched; the failure is taken up below.
  done.catch(() => undefined);
  const context = contextOf(request);
  const { tokens, links } = chain;
  const numLocal = instance.numLocal(links);
  const hasFetch = request.sources.some(({ end }) => end > numLocal);
  const id = instance.submit(
    {
      kind: 'prefill',
      ...chain,
      promptLength: tokens.length,
      maxLength: tokens.length,
      stopTokenIds: [],
      sampling: neutralSampling,
      isFetching: hasFetch,
    },
    (event) => {
      if (event.kind === 'admitted') isAdmitted = true;
      else if (event.kind === 'preempted') isAdmitted = false;
      else if (event.kind === 'progress') {
        replies.push({ numReady: event.numReady, numRun: event.numRun, report: null });
      } else settle(event);
    },
  );
  const giveUp = (): void => {
    instance.cancel(id);
    fail(new Failure('cancelled', 'the caller went away'));
  };
  signal.addEventListener('abort', giveUp, { once: true });
  if (signal.aborted) giveUp();
  let fetchedBytes = 0;
  if (hasFetch) {
    const over = linkSignals(signal);
    const fetching = instance.fetcher.run({
      ...{ id, links, from: numLocal, sources: request.sources, context, timeoutMs: context.timeoutMs },
      ...{ isAdmitted: () => isAdmitted, signal: over.signal },
    });
    // A refusal does not wait for blocks that nobody will use.
    const outcome = await Promise.race([fetching, done.then(() => undefined)]);
    over.release();
    over.abort();
    fetchedBytes = outcome?.fetchedBytes ?? 0;
    instance.proceed(id);
  }
  const last = await done;
  if (last.kind === 'refused') throw new Failure(last.code, last.message);
  if (last.kind !== 'prefilled') throw new Failure('internal', `a prefill ended with ${last.kind}`);
  return reportOf(last.report, fetchedBytes);
}
