/** Counts the loops of production engines that have something to do at the present simulated time, so that time waits for them. */
import { messageOf } from '../../shared/base/failure.ts';

/** Loops that run until each waits for a later time. */
export class Activity {
  #numActive = 0;
  #error: Error | undefined;
  #onQuiet: () => void = () => undefined;

  get isQuiet(): boolean {
    return this.#numActive === 0 && !this.#error;
  }

  /** A loop begins, or goes on. */
  begin(): void {
    this.#numActive++;
  }

  /** A loop waits, or has nothing to do. */
  end(): void {
    this.#numActive--;
    if (this.#numActive === 0) this.#onQuiet();
  }

  /** A loop ended by an error, which `quiet` reports. */
  fail(error: unknown): void {
    this.#error ??= error instanceof Error ? error : new Error(messageOf(error));
    this.#onQuiet();
  }

  /** Resolves when no loop has anything to do. Rejects with the error of a loop. */
  async quiet(): Promise<void> {
    if (!this.isQuiet && !this.#error)
      await new Promise<void>((resolve) => {
        this.#onQuiet = resolve;
      });
    if (this.#error) throw this.#error;
  }
}
