/**
 * Turns at something that does one job at a time, shared fairly among keys (start-time fair queueing, 1996). The next job is that
 * of the key that has had the least time so far, so that one that asks for much delays the others by one job at most:
 *
 *   a: ████████ ████████ ████████        b asks while a's first job runs, and is next
 *   b:    ·····██
 */
import type { Clock } from './clock.ts';

/** Keys whose time is remembered (P1). */
const MAX_KEYS = 4_096;

/** One job. */
export interface Turn {
  /** Who shares: one that waits with several jobs takes turns with the others as if it had one. */
  readonly key: string;
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
  /** Time up to which each key has had its share, on the scale of `#shared`. */
  readonly #had = new Map<string, number>();
  /** Time that the key of the last job had had when it began. */
  #shared = 0;
  #isRunning = false;

  /** @param refusal the error of a job that does not fit: at most `maxWaiting` wait (P1) */
  constructor(clock: Clock, maxWaiting: number, refusal: () => Error) {
    this.#clock = clock;
    this.#maxWaiting = maxWaiting;
    this.#refusal = refusal;
  }

  /**
   * Runs a job when its turn has come. Where too many wait, the last job of the key that waits with the most is refused. @throws what the job
   * does, or the refusal
   */
  async run<T>(turn: Turn, job: () => Promise<T>): Promise<T> {
    if (this.#isRunning) await this.#wait(turn);
    this.#isRunning = true;
    const { key } = turn;
    this.#shared = this.#hadOf(key);
    const beganMs = this.#clock.nowMs();
    try {
      return await job();
    } finally {
      // A job that takes no time that can be measured counts, too.
      this.#remember(key, this.#shared + Math.max(1, this.#clock.nowMs() - beganMs));
      this.#isRunning = false;
      this.#next()?.start();
    }
  }

  /** Lets a waiting job of this name be as early as one of the key's own would be. */
  join(name: string, key: string): void {
    this.#waiting.find((one) => one.name === name)?.keys.add(key);
  }

  #wait(turn: Turn): Promise<void> {
    return new Promise((resolve, reject) => {
      const refuse = (): void => {
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
    this.#waiting.splice(last, 1)[0]?.refuse();
  }

  /** Takes the job that is next. */
  #next(): Waiting | undefined {
    let next: Waiting | undefined;
    for (const one of this.#waiting) if (!next || this.#isBefore(one, next)) next = one;
    if (next) {
      this.#waiting.splice(this.#waiting.indexOf(next), 1);
      this.#isRunning = true;
    }
    return next;
  }

  #isBefore(one: Waiting, other: Waiting): boolean {
    const least = ({ keys }: Waiting): number => Math.min(...[...keys].map((key) => this.#hadOf(key)));
    const [own, its] = [least(one), least(other)];
    return own === its ? one.isSmall === true && other.isSmall !== true : own < its;
  }

  /** Returns the time up to which a key has had its share; one that has not asked for long has had as much as the last. */
  #hadOf(key: string): number {
    return Math.max(this.#shared, this.#had.get(key) ?? 0);
  }

  #remember(key: string, had: number): void {
    this.#had.delete(key);
    this.#had.set(key, had);
    const [oldest] = this.#had.keys();
    if (this.#had.size > MAX_KEYS && oldest !== undefined) this.#had.delete(oldest);
  }
}
