/**
 * Host memory for blocks on their way into the device: a bounded window of slots (P1).
 *
 * A full window stops reading the streams. Sequences that are not admitted yet may hold at most half of it: their slots only
 * drain after admission, and an admitted one that found none would wait for them forever.
 */
import type { RecordCache } from '../kv/record_cache.ts';

interface Waiter {
  readonly isAdmitted: () => boolean;
  resolve: (slot: number) => void;
}

/** Bounded window of slab slots for arriving records, shared between admitted and waiting sequences. */
export class FetchSlots {
  readonly #cache: RecordCache;
  readonly #recordBytes: number;
  readonly #size: number;
  readonly #waiters: Waiter[] = [];
  /** Slots in use: whether their sequence is admitted, a preempted one is no longer; and how many have it. */
  readonly #inUse = new Map<number, { readonly isAdmitted: () => boolean; numPins: number }>();

  constructor(cache: RecordCache, recordBytes: number, size: number) {
    this.#cache = cache;
    this.#recordBytes = recordBytes;
    this.#size = size;
  }

  get numInUse(): number {
    return this.#inUse.size;
  }

  /** A slot, at once where there is one and nobody waits before; rejects when `signal` aborts. */
  acquire(isAdmitted: () => boolean, signal: AbortSignal): number | Promise<number> {
    if (signal.aborted) return Promise.reject(new Error('the fetch was given up'));
    let here: number | undefined;
    const waiter: Waiter = {
      isAdmitted,
      resolve: (slot) => {
        here = slot;
      },
    };
    this.#waiters.push(waiter);
    this.pump();
    return here ?? this.#wait(waiter, signal);
  }

  #wait(waiter: Waiter, signal: AbortSignal): Promise<number> {
    return new Promise((resolve, reject) => {
      const abort = (): void => {
        const at = this.#waiters.indexOf(waiter);
        if (at >= 0) this.#waiters.splice(at, 1);
        reject(new Error('the fetch was given up'));
      };
      waiter.resolve = (slot) => {
        signal.removeEventListener('abort', abort);
        resolve(slot);
      };
      signal.addEventListener('abort', abort, { once: true });
    });
  }

  /** One more has it, and gives it. */
  pin(slot: number): void {
    const used = this.#inUse.get(slot);
    if (used) used.numPins++;
  }

  release(slot: number): void {
    const used = this.#inUse.get(slot);
    if (used && --used.numPins > 0) return;
    this.#inUse.delete(slot);
    this.#cache.releaseSlot(slot);
    this.pump();
  }

  /**
   * Whether what has arrived in this slot may wait there. Slots that were given to a sequence before it was preempted count as early
   * now; more of them than the half would keep those that could be admitted, and it with them, from ever going on.
   */
  mayKeep(slot: number): boolean {
    const used = this.#inUse.get(slot);
    return used === undefined || used.isAdmitted() || this.#numEarly() <= Math.ceil(this.#size / 2);
  }

  /** Slots of sequences that are not admitted. */
  #numEarly(): number {
    return [...this.#inUse.values()].filter(({ isAdmitted }) => !isAdmitted()).length;
  }

  /** Serves who can be served; call after an admission. */
  pump(): void {
    for (let i = 0; i < this.#waiters.length && this.#inUse.size < this.#size;) {
      const waiter = this.#waiters[i];
      if (!waiter) return;
      const isEarly = !waiter.isAdmitted();
      if (isEarly && this.#numEarly() >= this.#size / 2) {
        i++;
        continue;
      }
      const slot = this.#cache.acquireSlot(this.#recordBytes);
      if (slot === undefined) return;
      this.#waiters.splice(i, 1);
      this.#inUse.set(slot, { isAdmitted: waiter.isAdmitted, numPins: 1 });
      waiter.resolve(slot);
    }
  }
}
