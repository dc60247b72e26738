/**
 * Finished requests that are kept for people: the last ones, and for an hour those that failed and the slowest of each minute. Bounded (P1) by
 * their number and by their bytes, whichever is less; beyond either the oldest go first.
 */
const MINUTE_MS = 60_000;
/** Minutes for which failed and slow requests are kept. */
const MINUTES = 60;
/** Requests of a minute that are kept for being slow: so many by their time to the first token, and so many by their total time. */
const SLOWEST = 20;
/** Failed and slow requests kept beyond the last ones (P1). */
const MAX_NOTABLE = 10_000;

/** Fields of a finished request by which it is kept. */
export interface Finished {
  readonly phase: string;
  readonly ttftMs: number | undefined;
  readonly totalMs: number | undefined;
  /** Router time, in ms, of its end. */
  readonly endMs: number;
  /** Bytes that it takes; they change in {@link KeptRequests.change} only. */
  readonly numBytes: number;
}

/** Slowest requests of one minute, by each of two times. */
interface SlowMinute<T> {
  readonly minute: number;
  readonly byTtft: T[];
  readonly byTotal: T[];
}

/** The last finished requests, and notable ones for an hour, in the order in which they ended. */
export class KeptRequests<T extends Finished> {
  readonly #max: number;
  readonly #maxBytes: number;
  /** Forgotten entries are undefined until the array is cut. */
  #recent: (T | undefined)[] = [];
  /** Index of the oldest of `#recent`: the entries before it are gone. */
  #first = 0;
  #notable: T[] = [];
  #slow: SlowMinute<T>[] = [];
  #numBytes = 0;

  /** Keeps the last `max` requests, and at most `maxBytes` of all. */
  constructor(max: number, maxBytes: number) {
    this.#max = max;
    this.#maxBytes = maxBytes;
  }

  /** Bytes of all that is kept. */
  get numBytes(): number {
    return this.#numBytes;
  }

  /** Keeps a request, which has ended just now. */
  add(request: T): void {
    const { endMs } = request;
    this.#recent.push(request);
    this.#numBytes += request.numBytes;
    this.#rank(request, Math.floor(endMs / MINUTE_MS));
    while (this.#recent.length - this.#first > this.#max) this.#leave(endMs);
    this.#shrink(endMs);
    if (this.#first > this.#max) {
      this.#recent = this.#recent.slice(this.#first);
      this.#first = 0;
    }
  }

  /** Changes the request that `isMeant` of the last ones, at router time `nowMs`; does nothing when there is none. */
  change(isMeant: (request: T) => boolean, change: (request: T) => void, nowMs: number): void {
    const isIt = (request: T | undefined): boolean => request !== undefined && isMeant(request);
    // One that changes has ended a moment ago.
    const found = this.#recent.findLast(isIt) ?? this.#notable.findLast(isIt);
    if (!found) return;
    this.#numBytes -= found.numBytes;
    change(found);
    this.#numBytes += found.numBytes;
    this.#shrink(nowMs);
  }

  /** Returns up to `count` requests that ended last, newest end first. */
  last(count: number): T[] {
    if (count <= 0) return [];
    return this.#recent
      .slice(Math.max(this.#first, this.#recent.length - count))
      .flatMap((request) => request ?? [])
      .reverse();
  }

  /** Returns the kept requests, newest end first. */
  list(nowMs: number): T[] {
    this.#forget(nowMs);
    const recent = this.#recent.slice(this.#first).reverse();
    return [...recent, ...this.#notable.toReversed()].flatMap((request) => request ?? []);
  }

  /** Forgets the oldest ones, the notable ones before the last ones, until the bytes are within their bound. */
  #shrink(nowMs: number): void {
    while (this.#numBytes > this.#maxBytes) {
      const [oldest] = this.#notable;
      if (oldest) this.#forgetNotable(1);
      else if (this.#first < this.#recent.length) this.#leave(nowMs);
      else return;
    }
  }

  /** Moves the oldest of the last requests to the notable ones, or forgets it. */
  #leave(nowMs: number): void {
    const oldest = this.#recent[this.#first];
    this.#recent[this.#first++] = undefined;
    if (!oldest) return;
    if (nowMs - oldest.endMs > MINUTES * MINUTE_MS || !this.#isNotable(oldest)) {
      this.#numBytes -= oldest.numBytes;
      return;
    }
    this.#notable.push(oldest);
    this.#forget(nowMs);
  }

  #forget(nowMs: number): void {
    let numOld = Math.max(0, this.#notable.length - MAX_NOTABLE);
    while (numOld < this.#notable.length && nowMs - (this.#notable[numOld]?.endMs ?? 0) > MINUTES * MINUTE_MS) numOld++;
    this.#forgetNotable(numOld);
  }

  /** Forgets so many of the oldest notable requests. */
  #forgetNotable(count: number): void {
    if (count <= 0) return;
    for (const request of this.#notable.slice(0, count)) {
      this.#numBytes -= request.numBytes;
      this.#unrank(request);
    }
    this.#notable = this.#notable.slice(count);
  }

  #rank(request: T, minute: number): void {
    let last = this.#slow.at(-1);
    if (last?.minute !== minute) {
      last = { minute, byTtft: [], byTotal: [] };
      this.#slow.push(last);
      this.#slow = this.#slow.filter((one) => one.minute > minute - MINUTES);
    }
    if (request.ttftMs !== undefined) keepSlowest(last.byTtft, request, ({ ttftMs = 0 }) => ttftMs);
    keepSlowest(last.byTotal, request, ({ totalMs = 0 }) => totalMs);
  }

  /** Takes a request that is forgotten from the slowest of its minute. */
  #unrank(request: T): void {
    const slow = this.#slowOf(request);
    for (const slowest of [slow?.byTtft, slow?.byTotal]) {
      const at = slowest?.indexOf(request) ?? -1;
      if (at >= 0) slowest?.splice(at, 1);
    }
  }

  #isNotable(request: T): boolean {
    if (request.phase === 'failed') return true;
    const slow = this.#slowOf(request);
    return slow !== undefined && (slow.byTtft.includes(request) || slow.byTotal.includes(request));
  }

  #slowOf({ endMs }: T): SlowMinute<T> | undefined {
    const minute = Math.floor(endMs / MINUTE_MS);
    return this.#slow.find((one) => one.minute === minute);
  }
}

/** Puts a request among the slowest, slowest first, if it is one of them. */
function keepSlowest<T>(slowest: T[], request: T, msOf: (request: T) => number): void {
  const ms = msOf(request);
  const last = slowest.at(-1);
  if (slowest.length >= SLOWEST && last && msOf(last) >= ms) return;
  let at = slowest.length;
  while (at > 0 && msOf(slowest[at - 1] as T) < ms) at--;
  slowest.splice(at, 0, request);
  if (slowest.length > SLOWEST) slowest.pop();
}
