/** Measurements of a run, a row per request, in columns of numbers; and the intervals between tokens of all requests in one array. */

/** Most intervals between tokens that are kept (P1): 64 MB. Those of later requests are left out of the figures of the ITL, and of them alone. */
const MAX_INTERVALS = 2 ** 24;

/** How a request ended. */
export type RequestEnd =
  | { readonly kind: 'done' }
  /** Cut off by the end of the run: neither done nor failed. */
  | { readonly kind: 'cut' }
  /** `error` counts equal failures together. */
  | { readonly kind: 'failed'; readonly error: string; readonly message: string };

/** One request that ended. Times are in milliseconds; `startMs` is after the start of the run. */
export interface MeasuredRequest {
  readonly startMs: number;
  /** Time that the request waited here for one of `--max-concurrency` places. */
  readonly queueMs: number;
  readonly ttftMs: number;
  /** From the start to the last event with a choice. */
  readonly latencyMs: number;
  /** Intervals between events with tokens. */
  readonly intervalsMs: Float32Array;
  readonly inputTokens: number;
  readonly outputTokens: number;
  /** Prompt tokens that were cached; undefined where the server does not say. */
  readonly cachedTokens: number | undefined;
  readonly end: RequestEnd;
}

/** Errors of one kind. */
export interface ErrorCount {
  readonly kind: string;
  readonly count: number;
  /** Message of the first one. */
  readonly first: string;
}

/** Kinds of errors that are told apart (P1); further ones count as `other`. */
const MAX_ERROR_KINDS = 32;

/** Collects requests as they end. */
export class Measurements {
  readonly #requests: MeasuredRequest[] = [];
  readonly #errors = new Map<string, { count: number; readonly first: string }>();
  #numIntervals = 0;
  #numLeftOut = 0;
  #numFailed = 0;
  #numCut = 0;

  add(request: MeasuredRequest): void {
    if (request.end.kind === 'cut') this.#numCut++;
    else if (request.end.kind === 'failed') this.#countError(request.end.error, request.end.message);
    const { length } = request.intervalsMs;
    const isRoom = this.#numIntervals + length <= MAX_INTERVALS;
    if (isRoom) this.#numIntervals += length;
    else this.#numLeftOut += length;
    this.#requests.push(isRoom ? request : { ...request, intervalsMs: new Float32Array() });
  }

  #countError(error: string, message: string): void {
    this.#numFailed++;
    const isNew = !this.#errors.has(error);
    const kind = isNew && this.#errors.size >= MAX_ERROR_KINDS ? 'other' : error;
    const entry = this.#errors.get(kind) ?? { count: 0, first: message };
    entry.count++;
    this.#errors.set(kind, entry);
  }

  /** Requests in the order in which they ended. */
  get requests(): readonly MeasuredRequest[] {
    return this.#requests;
  }

  /** Requests that were answered. */
  get done(): readonly MeasuredRequest[] {
    return this.#requests.filter(({ end }) => end.kind === 'done');
  }

  get numFailed(): number {
    return this.#numFailed;
  }

  /** Requests that the end of the run cut off. */
  get numCut(): number {
    return this.#numCut;
  }

  /** Intervals that were not kept. */
  get numLeftOut(): number {
    return this.#numLeftOut;
  }

  /** Errors by kind, the most frequent first. */
  get errors(): readonly ErrorCount[] {
    return [...this.#errors]
      .map(([kind, { count, first }]) => ({ kind, count, first }))
      .sort((a, b) => b.count - a.count);
  }
}
