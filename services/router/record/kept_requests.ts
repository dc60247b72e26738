/** Finished requests that are kept for people: the last ones, and for an hour those that failed and the slowest of each minute. */
const MINUTE_MS = 60_000;
/** Minutes for which failed and slow requests are kept. */
const MINUTES = 60;
/** Requests of a minute that are kept for being slow: so many by their time to the first token, and so many by their total time. */
const SLOWEST = 20;
/** Last requests that are kept whole; of older ones {@link Finished.thin} makes less. */
const MAX_WHOLE = 2_048;
/** Failed and slow requests kept beyond the last ones (P1). */
const MAX_NOTABLE = 10_000;

/** Fields of a finished request by which it is kept. */
export interface Finished {
  readonly phase: string;
  readonly ttftMs: number | undefined;
  readonly totalMs: number | undefined;
  /** Forgets what only a recent request needs. */
  readonly thin: () => void;
}

/** A finished request, and when it ended. */
interface Ended<T> {
  readonly request: T;
  readonly endMs: number;
}

/** Slowest requests of one minute, by each of two times. */
interface SlowMinute<T> {
  readonly minute: number;
  readonly byTtft: T[];
  readonly byTotal: T[];
}

/** The last `max` finished requests, and notable ones for an hour, in the order in which they ended. */
export class KeptRequests<T extends Finished> {
  readonly #max: number;
  /** Forgotten entries are undefined until the array is cut. */
  #recent: (Ended<T> | undefined)[] = [];
  /** Index of the oldest of `#recent`: the entries before it are gone. */
  #first = 0;
  #notable: Ended<T>[] = [];
  #slow: SlowMinute<T>[] = [];

  constructor(max: number) {
    this.#max = max;
  }

  /** Keeps a request that ended at router time `nowMs`. */
  add(request: T, nowMs: number): void {
    this.#recent.push({ request, endMs: nowMs });
    this.#rank(request, Math.floor(nowMs / MINUTE_MS));
    const older = this.#recent[this.#recent.length - 1 - MAX_WHOLE];
    if (older && !this.#isNotable(older)) older.request.thin();
    while (this.#recent.length - this.#first > this.#max) this.#leave(nowMs);
    if (this.#first > this.#max) {
      this.#recent = this.#recent.slice(this.#first);
      this.#first = 0;
    }
  }

  /** Returns up to `count` requests that ended last, newest end first. */
  last(count: number): T[] {
    if (count <= 0) return [];
    return this.#recent
      .slice(Math.max(this.#first, this.#recent.length - count))
      .flatMap((ended) => (ended ? [ended.request] : []))
      .reverse();
  }

  /** Returns the kept requests, newest end first. */
  list(nowMs: number): T[] {
    this.#forget(nowMs);
    const recent = this.#recent.slice(this.#first).reverse();
    return [...recent, ...this.#notable.toReversed()].flatMap((ended) => (ended ? [ended.request] : []));
  }

  /** Moves the oldest of the last requests to the notable ones, or forgets it. */
  #leave(nowMs: number): void {
    const oldest = this.#recent[this.#first];
    this.#recent[this.#first++] = undefined;
    if (!oldest || nowMs - oldest.endMs > MINUTES * MINUTE_MS || !this.#isNotable(oldest)) return;
    this.#notable.push(oldest);
    this.#forget(nowMs);
  }

  #forget(nowMs: number): void {
    let numOld = Math.max(0, this.#notable.length - MAX_NOTABLE);
    while (numOld < this.#notable.length && nowMs - (this.#notable[numOld]?.endMs ?? 0) > MINUTES * MINUTE_MS) numOld++;
    if (numOld > 0) this.#notable = this.#notable.slice(numOld);
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

  #isNotable({ request, endMs }: Ended<T>): boolean {
    if (request.phase === 'failed') return true;
    const minute = Math.floor(endMs / MINUTE_MS);
    const slow = this.#slow.find((one) => one.minute === minute);
    return slow !== undefined && (slow.byTtft.includes(request) || slow.byTotal.includes(request));
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
