/** Log of decisions, for people: nothing reads it to decide. */
import type { ClusterSnapshot, Decision, Policy, Question } from './policy.ts';

/** Upper bounds of the logged decisions, and of the instances and holders in all their snapshots (P1). */
const MAX_LOGGED = 256;
const MAX_LOGGED_INSTANCES = 16_384;

/** Links in a logged snapshot that take as much memory as one instance: the snapshots share them. */
const LINKS_PER_INSTANCE = 16;

/** One entry of the decision log, which `/api/decisions` shows: the question, the snapshot and the decision of the policy. */
export interface LoggedDecision {
  /** Time of the decision on the router's clock, in ms. */
  readonly atMs: number;
  readonly requestId: string;
  readonly question: Question;
  readonly snapshot: ClusterSnapshot;
  readonly decision: Decision;
}

/** The last decisions of a conductor. */
export class DecisionLog {
  readonly #entries: LoggedDecision[] = [];
  #numLogged = 0;

  /** The newest is the last. */
  get entries(): readonly LoggedDecision[] {
    return this.#entries;
  }

  add(entry: LoggedDecision): void {
    this.#entries.push(entry);
    this.#numLogged += sizeOf(entry);
    while (this.#entries.length > MAX_LOGGED || (this.#numLogged > MAX_LOGGED_INSTANCES && this.#entries.length > 1)) {
      const oldest = this.#entries.shift();
      if (oldest) this.#numLogged -= sizeOf(oldest);
    }
  }
}

function sizeOf({ snapshot: { decode, prefill, ranges, links, fetching } }: LoggedDecision): number {
  const numHolders = ranges.reduce((sum, { holders }) => sum + 1 + holders.length, 0);
  const numFetching = Object.keys(fetching?.byReader ?? {}).length + Object.keys(fetching?.byHolder ?? {}).length;
  return decode.length + prefill.length + numHolders + (links.length + numFetching) / LINKS_PER_INSTANCE;
}

/** Decides a logged decision again, from its record alone: with the same policy and options the result is the same. */
export function decideAgain(
  { question, snapshot }: Pick<LoggedDecision, 'question' | 'snapshot'>,
  policy: Policy,
): Decision {
  return policy.decide(question, snapshot);
}
