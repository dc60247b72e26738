/**
 * Requests whose instance is stopped (SIGSTOP) in a phase that the test names, so that it can be killed there. On a busy machine a request
 * may leave the phase before the signal comes, and where its instance has little CPU time many tokens come at once: then the instance goes
 * on, and another request is begun.
 *
 *   moment      phase of the request   victim
 *   prompt      prefilling             the instance that computes its prompt, which is in the middle of it
 *   answer      decoding               the instance that generates its answer
 */
import assert from 'node:assert/strict';
import type { Cluster, RequestView } from './cluster.ts';
import { until } from './until.ts';

/** Requests that are begun, at most, until one is stopped in time. */
const ROUNDS = 40;
/** Looks in a row that see nothing change. */
const NUM_SAME = 10;
/** Tokens of an answer that its client has, at least, when its instance is stopped. */
const MIN_TOKENS = 10;
/** Tokens of a prompt that are left to compute, at least, when its instance is stopped. */
const MIN_LEFT = 100;

interface Moment {
  /** Returns the instance to stop; undefined while the request is not there yet. */
  readonly victimOf: (view: RequestView) => string | undefined;
  /** Whether the request is still there, now that the instance is stopped. */
  readonly isIn: (view: RequestView) => boolean;
}

const prefillOf = (view: RequestView): RequestView['attempts'][number]['prefills'][number] | undefined =>
  view.attempts[0]?.prefills[0];

const moments = {
  prompt: {
    victimOf: (view) => ((prefillOf(view)?.ready_tokens ?? 0) > 0 ? prefillOf(view)?.prefill : undefined),
    isIn: (view) =>
      view.phase === 'prefilling' && (prefillOf(view)?.ready_tokens ?? Infinity) <= view.prompt_tokens - MIN_LEFT,
  },
  answer: {
    victimOf: (view) => (view.output_tokens >= MIN_TOKENS ? view.attempts.at(-1)?.decode : undefined),
    isIn: ({ phase }) => phase === 'decoding',
  },
} satisfies Record<string, Moment>;

/** A request that stands still. */
export interface Stopped<T> {
  /** Result of `begin` in the round that succeeded. */
  readonly answer: T;
  readonly view: RequestView;
  /** Name of the instance that is stopped. */
  readonly victim: string;
}

const isOver = ({ phase }: RequestView): boolean => /^(finished|failed|cancelled)$/.test(phase);

/** Requests that are looked at: more than one round begins. */
const NUM_VIEWS = 64;

/** Begins requests with `begin`, one or several each round, until the instance of one is stopped at the moment. */
export async function stoppedIn<T>(
  cluster: Cluster,
  moment: keyof typeof moments,
  begin: (round: number) => Promise<T>,
): Promise<Stopped<Promise<T>>> {
  const { victimOf, isIn }: Moment = moments[moment];
  for (let round = 0; round < ROUNDS; round++) {
    const known = new Set((await cluster.requests(NUM_VIEWS)).map(({ id }) => id));
    const answer = begin(round);
    const found = await until(`a request is in the middle of its ${moment}, or over`, async () => {
      const begun = (await cluster.requests(NUM_VIEWS)).filter((view) => !known.has(view.id));
      for (const view of begun) {
        const victim = isOver(view) ? undefined : victimOf(view);
        if (victim !== undefined) return { id: view.id, victim };
      }
      return begun.length > 0 && begun.every(isOver) && 'over';
    });
    if (found === 'over') {
      await answer;
      continue;
    }
    const { id, victim } = found;
    cluster.kill(victim, 'SIGSTOP');
    const [view] = await settledRequests(cluster, (one) => one.id === id);
    if (view && isIn(view)) return { answer, view, victim };
    cluster.kill(victim, 'SIGCONT');
    await answer;
  }
  return assert.fail(`${ROUNDS} requests had ended their ${moment} before their instance was stopped`);
}

/** Returns the newest requests when nothing of them changes any more: after an instance is stopped, the router first reads what it had sent. */
export async function settledRequests(cluster: Cluster, isOf: (view: RequestView) => boolean): Promise<RequestView[]> {
  let [last, numSame] = ['', 0];
  return until('the router has read what was sent', async () => {
    const views = (await cluster.requests(NUM_VIEWS)).filter(isOf);
    const now = JSON.stringify(views.map((view) => [view.phase, view.output_tokens, view.attempts]));
    numSame = now === last ? numSame + 1 : 0;
    last = now;
    return numSame >= NUM_SAME && views;
  });
}
