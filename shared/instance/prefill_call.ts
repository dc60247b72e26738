/**
 * `Prefill(tokens, sources)`: fetch the blocks that exist, compute the full blocks that are left, sample nothing. In a pipeline, other
 * instances compute some ranges of the blocks meanwhile, which are fetched as they come.
 *
 * Blocks go out by themselves: to whoever waits for them with an open fetch stream, then to their home store. The call only
 * reports progress; when it ends early its blocks stay, they are a cache.
 */
import type { Clock } from '../base/clock.ts';
import { Failure, messageOf } from '../base/failure.ts';
import type { Tracing } from '../base/tracing/tracing.ts';
import { noScope } from '../kv/format.ts';
import type { StartPrefill } from '../net/decode/served_decodes.ts';
import { CallSpan } from '../node/traced_handlers.ts';
import type { PrefillReply, PrefillRequest, Report } from '../protocol/messages.ts';
import { neutralRequest } from '../protocol/request.ts';
import { checkCall, contextOf, fetchEndOf, nothingFetched, reportOf, type CallChain } from './engine_call.ts';
import type { EngineInstance } from './engine_instance.ts';
import { pipelineRanges } from './fetch_runs.ts';
import { runSequence } from './sequence_run.ts';

/** Sends the replies of a call. */
type Reply = (reply: PrefillReply) => void;

/** Returns the start of the Prefill calls of an instance. */
export function startPrefill(
  instance: EngineInstance,
  { clock, tracing }: { readonly clock: Clock; readonly tracing?: Tracing | undefined },
): StartPrefill {
  return (request, { signal }, output) => {
    const span = tracing && new CallSpan('prefill', tracing, clock);
    const reply: Reply = (message) => {
      span?.replied(message);
      output.prefill(message);
    };
    servePrefill(reply, span ? span.begin(request) : request, instance, signal)
      .catch((error: unknown) => {
        if (span) span.error = messageOf(error);
        output.fail(error);
      })
      .finally(() => span?.end());
  };
}

async function servePrefill(
  reply: Reply,
  request: PrefillRequest,
  instance: EngineInstance,
  signal: AbortSignal,
): Promise<void> {
  const requestId = request.context?.requestId ?? '';
  instance.outbox.begin(requestId);
  let isBusy = false;
  try {
    const chain = await checkCall(instance, request, request.scope ?? noScope);
    const report = await compute(reply, request, instance, chain, signal);
    const numReady = chain.hashes.length * instance.info.layout.spec.blockSize;
    reply({ numReady, numRun: report.computedTokens, report });
  } catch (error) {
    isBusy = error instanceof Failure && error.code === 'overloaded';
    throw error;
  } finally {
    // Readers must not wait in vain for blocks that will not come. But a caller that was refused because this instance is busy
    // retries, so the fetches of its request keep waiting.
    if (!isBusy || signal.aborted) instance.outbox.end(requestId);
    else instance.outbox.postpone(requestId);
  }
}

async function compute(
  reply: Reply,
  { context, sources, scope, pipelinePatienceMs: patienceMs }: PrefillRequest,
  instance: EngineInstance,
  chain: CallChain,
  signal: AbortSignal,
): Promise<Report> {
  const { tokens, hashes } = chain;
  const numLocal = instance.numLocal(hashes);
  const isPipeline = patienceMs > 0;
  let fetched = nothingFetched;
  const last = await runSequence(instance, {
    context: contextOf({ context }),
    signal,
    request: {
      kind: 'prefill',
      ...chain,
      // A prefill samples nothing, so its request needs only the scope.
      request: { ...neutralRequest(tokens.length, tokens.length), scope: scope ?? noScope },
      promptLogprobsFrom: tokens.length,
      fetchEnd: fetchEndOf(sources),
      awaited: isPipeline ? pipelineRanges(sources, numLocal, hashes.length) : undefined,
    },
    pipelinePatienceMs: isPipeline ? patienceMs : undefined,
    feed: sources.some(({ end }) => end > instance.numUsable(hashes))
      ? async (fetch, until) => {
          fetched = await fetch(numLocal, sources, until);
        }
      : undefined,
    onEvent: (event) => {
      if (event.kind === 'progress') reply({ numReady: event.numReady, numRun: event.numRun, report: null });
    },
  });
  if (last.kind !== 'prefilled') throw new Failure('internal', `a prefill ended with ${last.kind}`);
  return reportOf(last.report, fetched);
}
