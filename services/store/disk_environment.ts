/**
 * Whether the disk tier's environment can be used, as the control thread knows it.
 *
 *   opening ──opened──► open ──a call fails and the disk says why, or does not answer──► closed ──pause──► opening
 *
 * Without an environment (`fault`) nothing is stored and nothing is read; it is opened again, after a pause that doubles. An
 * environment that was begun anew has another generation: what was known of the one before is gone.
 */
import { Backoff } from '../../shared/base/backoff.ts';
import type { Clock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import type { Log } from '../../shared/base/log.ts';
import { DONE } from '../../shared/base/signal.ts';
import type { Thread } from '../../shared/base/threads.ts';
import type { DiskEntry } from './disk_process.ts';
import type { DiskThread } from './disk_worker.ts';

/** A batch of records takes tenths of a second on a slow disk, and the disk process is given 30 s for an answer. */
const ANSWER_MS = 90_000;

/** Between two tries to open an environment that cannot be opened: this, then twice that, up to the second. */
const MIN_RETRY_MS = 1_000;
const MAX_RETRY_MS = 30_000;

/** Until the first opening has come back: what arrives meanwhile stays in DRAM, and is written when it is offered again. */
const OPENING = 'it is being opened';

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
  /** Records that were found by an opening. */
  readonly onFound: (entries: readonly DiskEntry[]) => Promise<void>;
  /** An opening has ended, well or not. */
  readonly onOpened: () => Promise<void>;
  /** Records that were known are there no more. */
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

  /** Opens it; when that fails, again and again until `signal` aborts. Resolves after the first try. */
  async start(): Promise<void> {
    this.#fault = OPENING;
    if (!(await this.#open())) void this.#reopen();
  }

  /** @returns whether it is open. */
  async #open(): Promise<boolean> {
    const { open, log } = this.#options;
    const { entries, wiped, fault, generation } = await open().catch((error: unknown) => ({
      ...{ entries: [], wiped: undefined, fault: messageOf(error), generation: this.#generation },
    }));
    this.#generation = generation;
    if (wiped !== undefined)
      log.warn({ reason: wiped }, 'the disk tier was not usable, was set aside and starts empty');
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

  /** The environment is not used until it has been opened again. */
  #leave(fault: string): void {
    if (this.#fault !== undefined) return;
    this.#fault = fault;
    this.#listener.onGone();
    this.#options.log.error({ fault }, 'the disk tier is not usable: the store serves from DRAM and tries again');
    void this.#reopen();
  }

  /** A call of the disk's thread. @throws Error when the disk does not answer: what opens it again waits behind what hangs. */
  async answered<T>(call: Promise<T>): Promise<T> {
    const answered = new AbortController();
    const late = this.#options.clock.sleep(ANSWER_MS, answered.signal).then((): never => {
      const why = `the disk does not answer for ${ANSWER_MS} ms`;
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

  /** After a call that failed: asks the disk what the environment is now. */
  async look(): Promise<void> {
    // A thread that hangs says nothing of it.
    if (this.#fault !== undefined) return;
    const { fault, generation } = await this.#options.worker.call('state', undefined);
    if (generation !== this.#generation) {
      this.#generation = generation;
      this.#listener.onGone();
    }
    if (fault !== undefined) this.#leave(fault);
  }
}
