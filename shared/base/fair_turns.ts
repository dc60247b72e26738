/**
 * Turns at something that does one job at a time, shared fairly among keys (fair_shares.ts). The next job is that of the key that has
 * had the least time by its weight so far, so that one that asks for much delays the others by one job at most:
 *
 *   a: ████████ ████████ ████████        b asks while a's first job runs, and is next
 *   b:    ·····██
 */
import type { CallShare } from './call_queue.ts';
import type { Clock } from './clock.ts';
import { FairShares } from './fair_shares.ts';

/** One job, and who shares: one that waits with several jobs takes turns with the others as if it had one. */
export interface Turn extends CallShare {
  /** Whether the job takes little time: among keys that have had as much, it is first. */
  readonly isSmall?: boolean;
  /** Name of the job, by which others can join it. */
  readonly name?: string;
}

interface Waiting extends Turn {
  /** Keys that want the job: the first, which has its time, and those that joined. */
  readonly keys: Set<string>;
  readonly start: () => void;
  readonly refuse: () => void;
}

/** Runs jobs one after the other. */
export class FairTurns {
  readonly #clock: Clock;
  readonly #maxWaiting: number;
  readonly #refusal: () => Error;
  readonly #waiting: Waiting[] = [];
  readonly #shares = new FairShares();
  #isRunning = false;

  /** @param refusal the error of a job that does not fit: at most `maxWaiting` wait (P1) */
  constructor(clock: Clock, maxWaiting: number, refusal: () => Error) {
    this.#clock = clock;
    this.#maxWaiting = maxWaiting;
    this.#refusal = refusal;
  }

  /**
   * Runs a job when its turn has come. Where too many wait, the last job of the key that waits with the most is refused. A job that first waits for
   * something that an earlier one left behind calls `begins` afterwards: its key is charged from then on. @throws what the job does, or the refusal
   */
  async run<T>(turn: Turn, job: (begins: () => void) => Promise<T>): Promise<T> {
    const { key, weight } = turn;
    this.#shares.wait(key, weight);
    if (this.#isRunning) await this.#wait(turn);
    this.#isRunning = true;
    this.#shares.serve(key);
    let beganMs = this.#clock.nowMs();
    try {
      return await job(() => {
        beganMs = this.#clock.nowMs();
      });
    } finally {
      // A job that takes no time that can be measured counts, too.
      this.#shares.charge(key, Math.max(1, this.#clock.nowMs() - beganMs));
      this.#shares.end(key, false);
      this.#isRunning = false;
      this.#next()?.start();
    }
  }

  /** Lets a waiting job of this name be as early as one of the key's own would be. */
  join(name: string, { key, weight }: CallShare): void {
    const waiting = this.#waiting.find((one) => one.name === name);
    if (!waiting || waiting.keys.has(key)) return;
    waiting.keys.add(key);
    this.#shares.wait(key, weight);
  }

  #wait(turn: Turn): Promise<void> {
    return new Promise((resolve, reject) => {
      const refuse = (): void => {
        this.#shares.end(turn.key, true);
        reject(this.#refusal());
      };
      this.#waiting.push({ ...turn, keys: new Set([turn.key]), start: resolve, refuse });
      if (this.#waiting.length > this.#maxWaiting) this.#refuseOne();
    });
  }

  /** Refuses the last job of the key that waits with the most. */
  #refuseOne(): void {
    const counts = new Map<string, number>();
    for (const { key } of this.#waiting) counts.set(key, (counts.get(key) ?? 0) + 1);
    const most = Math.max(...counts.values());
    const isMost = ({ key }: Waiting): boolean => counts.get(key) === most;
    // A job that others have joined is refused last.
    const own = this.#waiting.findLastIndex((one) => isMost(one) && one.keys.size === 1);
    const last = own < 0 ? this.#waiting.findLastIndex(isMost) : own;
    this.#take(this.#waiting[last])?.refuse();
  }

  /** Takes the job that is next. */
  #next(): Waiting | undefined {
    let next: Waiting | undefined;
    for (const one of this.#waiting) if (!next || this.#isBefore(one, next)) next = one;
    if (next) this.#isRunning = true;
    return this.#take(next);
  }

  /** Takes a job out of those that wait; the keys that joined it do not wait for it any more. */
  #take(one: Waiting | undefined): Waiting | undefined {
    if (!one) return undefined;
    this.#waiting.splice(this.#waiting.indexOf(one), 1);
    for (const key of one.keys) if (key !== one.key) this.#shares.end(key, true);
    return one;
  }

  #isBefore(one: Waiting, other: Waiting): boolean {
    const shares = this.#shares;
    const least = ({ keys }: Waiting, of: (key: string) => number): number => Math.min(...[...keys].map(of));
    const virtualMs = (key: string): number => shares.virtualMs(key);
    const numWaiting = (key: string): number => shares.numWaiting(key);
    // Among keys that have had as much, small jobs are first, then those of the key that waits with fewer.
    const difference =
      least(one, virtualMs) - least(other, virtualMs) ||
      Number(other.isSmall === true) - Number(one.isSmall === true) ||
      least(one, numWaiting) - least(other, numWaiting);
    return difference < 0;
  }
}
