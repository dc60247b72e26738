/** Counters of messages: which of a sender's a receiver still takes, and which of its own a sender has sent lately. */

/** Counters that a receiver remembers below the highest one (P1). */
export const WINDOW = 1_024;
/**
 * Milliseconds that a message may be overtaken by later ones of its sender. NATS keeps the order of a sender's messages, except while servers of a
 * cluster come and go; nothing legitimate is later than that.
 */
export const LATE_MS = 2_000;
/** Milliseconds within which a sender says that it has sent a message just now. */
export const RECENT_MS = 1_000;

const BITS = 32;

/** Counters of one sender that a receiver has had. Each is taken once, and none that is WINDOW behind, or later than about LATE_MS. */
export class ReplayWindow {
  /** Bit `counter % WINDOW`: whether this counter was taken, of those from `#highest` - WINDOW + 1 to `#highest`. */
  readonly #taken = new Uint32Array(WINDOW / BITS);
  #highest: number;
  /** Least counter that is taken still. */
  #least: number;
  /** Least counter that will be taken from LATE_MS after `#markMs` on: the highest one that was here at that time, and one. */
  #mark: number;
  #markMs: number;

  /** `first`: the least counter that may come. */
  constructor(first: number, nowMs: number) {
    [this.#highest, this.#least, this.#mark, this.#markMs] = [first - 1, first, first, nowMs];
  }

  /** Returns `fresh` for a counter that may be delivered, and remembers it; else `seen`, or `late` for one that is too far behind. */
  take(counter: number, nowMs: number): 'fresh' | 'seen' | 'late' {
    if (nowMs - this.#markMs >= LATE_MS) {
      this.#least = this.#mark;
      [this.#mark, this.#markMs] = [this.#highest + 1, nowMs];
    }
    if (counter < this.#least || counter <= this.#highest - WINDOW) return 'late';
    if (counter > this.#highest) this.#advance(counter);
    const [word, bit] = placeOf(counter);
    const taken = this.#taken[word] ?? 0;
    if ((taken & bit) !== 0) return 'seen';
    this.#taken[word] = taken | bit;
    return 'fresh';
  }

  #advance(highest: number): void {
    if (highest - this.#highest >= WINDOW) this.#taken.fill(0);
    else
      for (let counter = this.#highest + 1; counter <= highest; counter++) {
        const [word, bit] = placeOf(counter);
        this.#taken[word] = (this.#taken[word] ?? 0) & ~bit;
      }
    this.#highest = highest;
  }
}

function placeOf(counter: number): [word: number, bit: number] {
  const at = counter % WINDOW;
  return [Math.floor(at / BITS), 1 << (at % BITS)];
}

/** Which counters a sender has used lately, by its own clock. */
export class RecentCounters {
  /** Two times, and the next counter at each; the second is at most half of RECENT_MS before the last call, or there were no messages since. */
  #older = { ms: -Infinity, next: 0 };
  #newer = { ms: -Infinity, next: 0 };

  /** Notes that `next` is the counter of the message that is sent at `nowMs`. */
  note(next: number, nowMs: number): void {
    if (nowMs - this.#newer.ms < RECENT_MS / 2) return;
    this.#older = this.#newer;
    this.#newer = { ms: nowMs, next };
  }

  /** Returns the least counter of which it is certain that it was used within RECENT_MS; all that were used within half of it are above. */
  least(next: number, nowMs: number): number {
    this.note(next, nowMs);
    return nowMs - this.#older.ms <= RECENT_MS ? this.#older.next : this.#newer.next;
  }
}
