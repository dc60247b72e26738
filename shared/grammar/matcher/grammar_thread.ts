/** A grammar thread as its owner sees it: calls with a limit of CPU time, and what the thread died of. */
import type { Clock } from '../../base/clock.ts';
import { Failure, messageOf } from '../../base/failure.ts';
import { inCpuTime, LATE, SPENT } from '../../base/cpu_limit.ts';
import type { ArgumentOf, NameOf, ResultOf, Thread, Threads } from '../../base/threads.ts';
import type { MaskWorker, start } from './mask_matchers.ts';

/** Module of a grammar thread, for `Threads.spawn`. */
export const maskModule = { url: new URL('./mask_worker.js', import.meta.url) };

/** How a thread was lost: a call took more CPU time than it may, got none for long, or the thread ended. */
type Loss = 'spent' | 'late' | 'ended';

/** The thread is gone: its states and grammars are lost, and a new one may be started. */
export class ThreadLost extends Error {
  readonly how: Loss;
  /** Id of the grammar that the thread worked on; 0 for none. */
  readonly grammar: number;

  constructor(message: string, grammar: number, how: Loss) {
    super(message);
    this.name = 'ThreadLost';
    this.grammar = grammar;
    this.how = how;
  }
}

/** One grammar thread. A call that takes too much CPU time, or fails otherwise than by a Failure, ends it. */
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

  /** Calls a method. @throws Failure of the method's own, ThreadLost when it takes over `cpuMs` of CPU time or the thread is gone. */
  async call<K extends NameOf<MaskWorker>>(
    method: K,
    argument: ArgumentOf<MaskWorker, K>,
    cpuMs: number,
  ): Promise<ResultOf<MaskWorker, K>> {
    if (this.#lost) throw this.#lost;
    try {
      const answer = await inCpuTime(this.#clock, this.#thread, cpuMs, this.#thread.call(method, argument));
      if (answer === SPENT) throw this.lose(`it was not done after ${cpuMs / 1_000} s of CPU time`, 'spent');
      if (answer === LATE) throw this.lose('it was not done, and the machine has no time for it', 'late');
      return answer;
    } catch (error) {
      if (error instanceof Failure || error instanceof ThreadLost) throw error;
      throw this.lose(messageOf(error));
    }
  }

  /** Ends the thread because it is of no use any more. Returns the error of all further calls. */
  lose(why: string, how: Loss = 'ended'): ThreadLost {
    if (this.#lost) return this.#lost;
    this.#lost = new ThreadLost(why, Atomics.load(this.#working, 0), how);
    void this.#thread.close();
    this.#onLost(this.#lost);
    return this.#lost;
  }

  /** Ends the thread. */
  async close(): Promise<void> {
    this.#lost ??= new ThreadLost('it was closed', 0, 'ended');
    await this.#thread.close();
  }
}
