/** Pauses between retries of an operation that fails: each twice as long as the one before, up to a maximum. */
import type { Clock } from './clock.ts';
import { pause } from './pause.ts';
import type { Random } from './random.ts';

/** Settings of a Backoff; `firstMs` and `mostMs` are the lengths in milliseconds of the first and of the longest pause. */
export interface BackoffOptions {
  readonly clock: Pick<Clock, 'sleep'>;
  /**
   * Source of jitter: each pause lasts between half of its length and all of it, so that callers refused together do not retry
   * together. Undefined: no jitter.
   */
  readonly random?: Random | undefined;
  readonly firstMs: number;
  readonly mostMs: number;
}

/** Pauses between retries that double from `firstMs` up to `mostMs`, until a success resets them. */
export class Backoff {
  readonly #options: BackoffOptions;
  #nextMs: number;

  constructor(options: BackoffOptions) {
    this.#options = options;
    this.#nextMs = options.firstMs;
  }

  /** Greatest length of the next pause, in milliseconds. */
  get nextMs(): number {
    return this.#nextMs;
  }

  /** Whether no pause has been made since the last success. */
  get isFirst(): boolean {
    return this.#nextMs === this.#options.firstMs;
  }

  /** Starts over after a success: the next pause lasts `firstMs` again. */
  reset(): void {
    this.#nextMs = this.#options.firstMs;
  }

  /** Waits for the next pause; returns early when `signal` aborts. */
  async pause(signal?: AbortSignal): Promise<void> {
    const { clock, random } = this.#options;
    const ms = this.lengthen();
    await (random ? pause(clock, random, ms, signal) : clock.sleep(ms, signal));
  }

  /** Returns the length of the next pause in milliseconds, for a caller that waits by itself, and doubles the one after it. */
  lengthen(): number {
    const ms = this.#nextMs;
    this.#nextMs = Math.min(2 * ms, this.#options.mostMs);
    return ms;
  }
}
