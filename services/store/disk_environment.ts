/**
 * State of the disk tier's LMDB environment, as the control thread knows it.
 *
 *   opening ──opened──► open ──a call fails and the disk says why, or does not answer──► closed ──pause──► opening
 *
 * While the environment has a `fault`, nothing is stored or read, and it is opened again after a pause that doubles. An environment that
 * was created anew has another generation: all entries known of the generation before are gone.
 */
import { Backoff } from '../../shared/base/backoff.ts';
import type { Clock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import type { Log } from '../../shared/base/log.ts';
import { DONE } from '../../shared/base/signal.ts';
import type { Thread } from '../../shared/base/threads.ts';
import type { DiskEntry } from './disk_process.ts';
import type { DiskThread } from './disk_thread.ts';

/**
 * Milliseconds after which a call of the disk thread counts as hung. A batch takes tenths of a second on a slow disk; the disk process
 * alone has 30 s for an answer.
 */
const ANSWER_MS = 90_000;

/** Milliseconds between two attempts to open a failing environment: MIN_RETRY_MS, doubled each time up to MAX_RETRY_MS. */
const MIN_RETRY_MS = 1_000;
const MAX_RETRY_MS = 30_000;

/**
 * Fault before the first opening has ended. Blocks that arrive until then stay in DRAM only, and are written to disk when they are
 * offered again.
 */
const OPENING = 'the environment is still being opened';

/** Dependencies of a DiskEnvironment. */
export interface DiskEnvironmentOptions {
  /** Opens or makes the environment. */
  readonly open: () => Promise<Awaited<ReturnType<DiskThread['open']>>>;
  readonly worker: Pick<Thread<DiskThread>, 'call'>;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly log: Log;
}

interface DiskEnvironmentListener {
  /** Called with the entries that an opening found. */
  readonly onFound: (entries: readonly DiskEntry[]) => Promise<void>;
  /** Called when an opening has ended, successfully or not. */
  readonly onOpened: () => Promise<void>;
  /** Called when all entries known so far are gone. */
  readonly onGone: () => void;
}

/** Keeps the disk tier's environment open: opens it, opens it again after a failure, and knows its generation. */
export class DiskEnvironment {
  readonly #options: DiskEnvironmentOptions;
  readonly #listener: DiskEnvironmentListener;
  #generation = 0;
  #fault: string | undefined;
  #isReopening = false;

  constructor(options: DiskEnvironmentOptions, listener: DiskEnvironmentListener) {
    this.#options = options;
    this.#listener = listener;
  }

  /** Why nothing can be stored or read now; undefined: the environment is open. */
  get fault(): string | undefined {
    return this.#fault;
  }

  get generation(): number {
    return this.#generation;
  }

  /** Opens the environment; after a failure retries until `signal` aborts. Resolves after the first attempt. */
  async start(): Promise<void> {
    this.#fault = OPENING;
    if (!(await this.#open())) void this.#reopen();
  }

  /** Opens the environment once. @returns whether it is open now */
  async #open(): Promise<boolean> {
    const { open, log } = this.#options;
    const { entries, wiped, fault, generation } = await open().catch((error: unknown) => ({
      entries: [],
      wiped: undefined,
      fault: messageOf(error),
      generation: this.#generation,
    }));
    this.#generation = generation;
    if (wiped !== undefined) log.warn({ reason: wiped }, 'the disk tier could not be used as it was, and starts empty');
    const before = this.#fault === OPENING ? undefined : this.#fault;
    if (fault !== undefined && fault !== before) {
      log.error({ fault }, 'the disk tier cannot be opened: the store serves from DRAM and tries again');
    }
    if (fault === undefined && before !== undefined) log.info({ blocks: entries.length }, 'the disk tier is open');
    await this.#listener.onFound(entries);
    this.#fault = fault;
    await this.#listener.onOpened();
    return fault === undefined;
  }

  async #reopen(): Promise<void> {
    if (this.#isReopening) return;
    this.#isReopening = true;
    const { clock, signal } = this.#options;
    const backoff = new Backoff({ clock, firstMs: MIN_RETRY_MS, mostMs: MAX_RETRY_MS });
    while (this.#fault !== undefined) {
      await backoff.pause(signal);
      if (signal.aborted) return;
      await this.#open();
    }
    this.#isReopening = false;
  }

  /** Stops using the environment because of `fault`, and begins to open it again. */
  #leave(fault: string): void {
    if (this.#fault !== undefined) return;
    this.#fault = fault;
    this.#listener.onGone();
    this.#options.log.error({ fault }, 'the disk tier is not usable: the store serves from DRAM and tries again');
    void this.#reopen();
  }

  /**
   * Awaits a call of the disk thread. @throws Error when no answer comes within ANSWER_MS. The environment has a fault then, and its
   * reopening waits for the hung call, because the thread serves calls in order.
   */
  async answered<T>(call: Promise<T>): Promise<T> {
    const answered = new AbortController();
    const late = this.#options.clock.sleep(ANSWER_MS, answered.signal).then((): never => {
      const why = `the disk has not answered a call for ${ANSWER_MS} ms`;
      if (!answered.signal.aborted) this.#leave(why);
      throw new Error(why);
    });
    late.catch(() => undefined);
    try {
      return await Promise.race([call, late]);
    } finally {
      answered.abort(DONE);
    }
  }

  /** Asks the disk thread for the state of the environment, after a call that failed. */
  async look(): Promise<void> {
    // The fault is known already, and a hung thread would not answer.
    if (this.#fault !== undefined) return;
    const { fault, generation } = await this.#options.worker.call('state', undefined);
    if (generation !== this.#generation) {
      this.#generation = generation;
      this.#listener.onGone();
    }
    if (fault !== undefined) this.#leave(fault);
  }
}
