/** A grammar thread as its owner sees it: calls with a time limit, and what the thread died of. */
import type { Clock } from '../../base/clock.ts';
import { Failure, messageOf } from '../../base/failure.ts';
import { inTime, LATE } from '../../base/in_time.ts';
import type { ArgumentOf, NameOf, ResultOf, Thread, Threads } from '../../base/threads.ts';
import type { MaskWorker, start } from './mask_matchers.ts';

/** Module of a grammar thread, for `Threads.spawn`. */
export const maskModule = { url: new URL('./mask_worker.js', import.meta.url) };

/** The thread is gone: its states and grammars are lost, and a new one may be started. */
export class ThreadLost extends Error {
  /** Whether a call took longer than it may. */
  readonly isLate: boolean;
  /** Id of the grammar that the thread worked on; 0 for none. */
  readonly grammar: number;

  constructor(message: string, grammar: number, isLate: boolean) {
    super(message);
    this.name = 'ThreadLost';
    this.grammar = grammar;
    this.isLate = isLate;
  }
}

/** One grammar thread. A call that takes too long, or fails otherwise than by a Failure, ends it. */
export class GrammarThread {
  readonly #thread: Thread<MaskWorker>;
  readonly #clock: Clock;
  readonly #working = new Int32Array(new SharedArrayBuffer(4));
  readonly #onLost: (lost: ThreadLost) => void;
  #lost: ThreadLost | undefined;

  /** @param onLost called once, when the thread is gone without close() */
  constructor(threads: Threads, clock: Clock, onLost: (lost: ThreadLost) => void) {
    this.#clock = clock;
    this.#onLost = onLost;
    this.#thread = threads.spawn<typeof start>(
      maskModule,
      { working: this.#working },
      { onDeath: (error) => this.lose(error.message) },
    );
  }

  get isLost(): boolean {
    return this.#lost !== undefined;
  }

  /** Calls a method. @throws Failure of the method's own, ThreadLost when it takes over `limitMs` or the thread is gone. */
  async call<K extends NameOf<MaskWorker>>(
    method: K,
    argument: ArgumentOf<MaskWorker, K>,
    limitMs: number,
  ): Promise<ResultOf<MaskWorker, K>> {
    if (this.#lost) throw this.#lost;
    try {
      const answer = await inTime(this.#clock, limitMs, this.#thread.call(method, argument));
      if (answer !== LATE) return answer;
    } catch (error) {
      if (error instanceof Failure) throw error;
      throw this.lose(messageOf(error));
    }
    throw this.lose(`it was not done after ${limitMs / 1_000} s`, true);
  }

  /** Ends the thread because it is of no use any more. Returns the error of all further calls. */
  lose(why: string, isLate = false): ThreadLost {
    if (this.#lost) return this.#lost;
    this.#lost = new ThreadLost(why, Atomics.load(this.#working, 0), isLate);
    void this.#thread.close();
    this.#onLost(this.#lost);
    return this.#lost;
  }

  /** Ends the thread. */
  async close(): Promise<void> {
    this.#lost ??= new ThreadLost('it was closed', 0, false);
    await this.#thread.close();
  }
}
