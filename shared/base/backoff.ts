/** Pauses between attempts at something that fails: each twice as long as the one before, up to a greatest one. */
import type { Clock } from './clock.ts';
import { pause } from './pause.ts';
import type { Random } from './random.ts';

/** Clock and lengths of the pauses, in milliseconds: the first, and the greatest. */
export interface BackoffOptions {
  readonly clock: Pick<Clock, 'sleep'>;
  /** Pauses are between half of their length and all of it, so that many who were refused at once do not come back at once; undefined: all of it. */
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

  /** The next pause; it ends early when `signal` aborts. */
  async pause(signal?: AbortSignal): Promise<void> {
    const { clock, random } = this.#options;
    const ms = this.lengthen();
    await (random ? pause(clock, random, ms, signal) : clock.sleep(ms, signal));
  }

  /** @returns what the next pause lasts, which its caller waits; the one behind it is longer. */
  lengthen(): number {
    const ms = this.#nextMs;
    this.#nextMs = Math.min(2 * ms, this.#options.mostMs);
    return ms;
  }
}
