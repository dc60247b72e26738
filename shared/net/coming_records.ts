/** What one fetch has asked for, in the order in which it is read: its reader waits for the first of it. */
import type { Failure } from '../base/failure.ts';
import type { Arrival, ComingRecord } from './lane.ts';

/** Something that comes, and what it is. */
export interface Coming extends ComingRecord {
  readonly index: number;
  readonly slot: number;
  readonly frame: number | undefined;
  readonly bytes: number;
}

export type Here = Exclude<Arrival, { readonly error: Failure }>;

export class ComingRecords {
  readonly #all: Coming[] = [];
  /** Nothing more will be asked for, and why. */
  #ended: { readonly error: Failure | undefined } | undefined;
  #wake: () => void = () => undefined;

  get hasEnded(): boolean {
    return this.#ended !== undefined;
  }

  /** Whoever reads is told what to wait for: patience begins with it. */
  expect(...coming: readonly Coming[]): void {
    this.#all.push(...coming);
    this.#wake();
  }

  /** Something of it is there, or will not come. */
  changed(): void {
    this.#wake();
  }

  end(error: Failure | undefined): void {
    this.#ended ??= { error };
    this.#wake();
  }

  /**
   * Until the first is there; false when all was read and nothing more comes. `watched` is told of every wait for something that was asked
   * for. @throws Failure of the first, or of the end.
   */
  async some(watched: (awaited: Promise<void>) => Promise<void>): Promise<boolean> {
    for (;;) {
      const [first] = this.#all;
      const arrival = first?.arrival;
      if (arrival && 'error' in arrival) throw arrival.error;
      if (arrival) return true;
      if (first) await watched(this.#change());
      else if (!this.#ended) await this.#change();
      else if (this.#ended.error) throw this.#ended.error;
      else return false;
    }
  }

  /** The first, when it is there. */
  take(): { readonly coming: Coming; readonly arrival: Here } | undefined {
    const [coming] = this.#all;
    const arrival = coming?.arrival;
    if (!arrival || 'error' in arrival) return undefined;
    this.#all.shift();
    return { coming, arrival };
  }

  #change(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }
}
