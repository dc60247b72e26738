/**
 * `Prefill(tokens, sources)`: fetch the blocks that exist, compute the full blocks that are left, sample nothing.
 *
 * Blocks go out by themselves: to whoever waits for them with an open fetch stream, then to their home store. The call only
 * reports progress; when it ends early its blocks stay, they are a cache.
 */
import { Failure } from '../../shared/base/failure.ts';
import type { EngineInstance, SequenceEvent } from '../../shared/instance/engine_instance.ts';
import type { EngineService } from '../../shared/instance/engine_role.ts';
import { checkCall, neutralSampling, reportOf, type CheckedCall } from '../../shared/instance/engine_call.ts';
import type { RoleContext } from '../../shared/instance/role_process.ts';
import type { PrefillCall } from '../../shared/protocol/calls.ts';
import type { PrefillRequest } from '../../shared/protocol/messages.ts';
import { serveStarted } from '../../shared/protocol/open_call.ts';
import { services } from '../../shared/protocol/rpc.ts';

export function createPrefillService(instance: EngineInstance, { clock }: RoleContext): EngineService {
  const prefill = (call: PrefillCall): void => {
    serveStarted(call, clock, (request: PrefillRequest, signal) => servePrefill(call, request, instance, signal));
  };
  return { definition: services.prefill, handlers: { prefill } };
}

async function servePrefill(
  call: PrefillCall,
  request: PrefillRequest,
  instance: EngineInstance,
  signal: AbortSignal,
): Promise<void> {
  const requestId = request.context?.requestId ?? '';
  instance.outbox.begin(requestId);
  let isBusy = false;
  try {
    const checked = checkCall(instance, request);
    const report = await compute(call, request, instance, checked, signal);
    const numReady = checked.links.length * instance.info.layout.blockSize;
    call.write({ numReady, numRun: report.computedTokens, report });
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
  call: PrefillCall,
  request: PrefillRequest,
  instance: EngineInstance,
  { tokens, links, numLocal, context }: CheckedCall,
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
  const hasFetch = request.sources.some(({ end }) => end > numLocal);
  const id = instance.submit(
    {
      kind: 'prefill',
      tokens,
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
        call.write({ numReady: event.numReady, numRun: event.numRun, report: null });
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
    const over = new AbortController();
    const fetching = instance.fetcher.run({
      ...{ id, links, from: numLocal, sources: request.sources, context, timeoutMs: context.timeoutMs },
      ...{ isAdmitted: () => isAdmitted, signal: AbortSignal.any([signal, over.signal]) },
    });
    // A refusal does not wait for blocks that nobody will use.
    const outcome = await Promise.race([fetching, done.then(() => undefined)]);
    over.abort();
    fetchedBytes = outcome?.fetchedBytes ?? 0;
    instance.proceed(id);
  }
  const last = await done;
  if (last.kind === 'refused') throw new Failure(last.code, last.message);
  if (last.kind !== 'prefilled') throw new Failure('internal', `a prefill ended with ${last.kind}`);
  return reportOf(last.report, fetchedBytes);
}
