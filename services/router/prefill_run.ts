/**
 * One prefill instance's turn at the blocks of a request: until they are there, or nobody waits for them any more. One that is busy
 * is asked again, because the decode instance's fetch waits there.
 */
import { Failure } from '../../shared/base/failure.ts';
import { prefill } from '../../shared/protocol/calls.ts';
import type { PrefillRequest } from '../../shared/protocol/messages.ts';
import { toFailure, type Peers } from '../../shared/protocol/rpc.ts';
import type { Instance } from './cluster_view.ts';
import type { Attempt } from './request_log.ts';

/** A busy instance is asked again after a pause of this, then twice that, up to the second. */
const BUSY_PAUSE_MS = 20;
const MAX_BUSY_PAUSE_MS = 500;
/** Connections that broke under one prefill before its instance counts as failed. */
const MAX_BROKEN = 3;

export interface PrefillJob {
  readonly peers: Peers;
  readonly instance: Instance;
  readonly request: PrefillRequest;
  readonly timeoutMs: number;
  /** What people see of it. */
  readonly entry: Attempt['prefills'][number];
  /** Once, when it is asked again for the first time. */
  readonly onAgain: (failure: Failure) => void;
}

/** Resolves when its blocks are there. @throws Failure when it failed, was lost, or `over` aborted. */
export async function runPrefill(job: PrefillJob, over: AbortSignal): Promise<void> {
  let [pauseMs, numBroken] = [BUSY_PAUSE_MS, 0];
  for (;;) {
    try {
      await once(job, over);
      return;
    } catch (error) {
      const failure = toFailure(error, job.instance.member.name);
      const isAgain = failure.code === 'overloaded' || (failure.code === 'session_broken' && ++numBroken <= MAX_BROKEN);
      if (over.aborted || !isAgain) throw failure;
      if (pauseMs === BUSY_PAUSE_MS) job.onAgain(failure);
    }
    await job.peers.pause(pauseMs, over);
    pauseMs = Math.min(2 * pauseMs, MAX_BUSY_PAUSE_MS);
  }
}

async function once({ peers, instance, request, timeoutMs, entry }: PrefillJob, over: AbortSignal): Promise<void> {
  const { name, address } = instance.member;
  if (over.aborted) throw new Failure('cancelled', 'nobody waits for it any more');
  const call = prefill(peers, address, request, timeoutMs);
  const end = (): void => {
    if (instance.lost.signal.aborted) call.lose(new Failure('instance_lost', `${name} is lost`));
    else call.leave();
  };
  over.addEventListener('abort', end, { once: true });
  try {
    for await (const reply of call.replies()) {
      entry.readyTokens = reply.numReady;
      entry.computedTokens = reply.numRun;
      if (reply.report) entry.report = reply.report;
    }
  } finally {
    over.removeEventListener('abort', end);
    call.leave();
  }
}
