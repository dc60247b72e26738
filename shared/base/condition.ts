/** Something that others wait to see changed. */

export class Condition {
  /** Of all who wait: one promise. */
  #next: Promise<void> | undefined;
  #resolve: () => void = () => undefined;

  /** Resolves at the next change. */
  changed(): Promise<void> {
    this.#next ??= new Promise((resolve) => {
      this.#resolve = resolve;
    });
    return this.#next;
  }

  /** It has changed: all who wait look again. */
  notify(): void {
    if (!this.#next) return;
    this.#next = undefined;
    this.#resolve();
  }

  /** Until `holds`, which is looked at now and after each change, or `signal` aborts. @returns whether it holds. */
  async until(holds: () => boolean, signal?: AbortSignal): Promise<boolean> {
    if (holds()) return true;
    const notify = (): void => {
      this.notify();
    };
    signal?.addEventListener('abort', notify);
    try {
      while (!holds()) {
        if (signal?.aborted) return false;
        await this.changed();
      }
      return true;
    } finally {
      signal?.removeEventListener('abort', notify);
    }
  }
}
