/**
 * How much of a step goes to the device at once. Windows ends a GPU's work after 2 s, and a display that shares the card stands still
 * meanwhile: no submit is predicted to take more than a quarter of a second. A step that would is cut between dispatches; where one
 * dispatch alone would, the engine gives fewer rows.
 *
 *   prediction = slowness · (operations / 0.4 TFLOP/s + bytes / 50 GB/s)       slowness: what steps took, 1 before any has
 */
import type { Dispatch } from './dispatch_plan.ts';
import type { AttendedTokens, GridCounts } from './step_state.ts';

/** The most that a submit is predicted to take. */
const MAX_SUBMIT_MS = 250;
/** An integrated GPU of few cores: a first step on a faster one is cut too often, which costs microseconds. */
const [OPERATIONS_PER_MS, BYTES_PER_MS] = [0.4e9, 50e6];
/** Of a faster step in the average. */
const SHARE_DOWN = 0.3;
/** Steps in a row that are slower before that is believed: one may have waited for what is made lazily, or for another program. */
const SLOWER = 3;
/** Of shorter steps much is the way there and back: they say only how slow the device is at most. */
const TELLING_MS = 5;
/** Rows below which a step is not cut down. */
const LEAST_ROWS = 8;

const one: GridCounts = {
  ...{ rows: 1, samples: 1, decodeItems: 1, prefillItems: 1, merges: 1, listed: 1 },
  ...{ drawn: 1, weighed: 1, topK: 0, topP: 0 },
};
const noPairs: AttendedTokens = { decodePairs: 0, prefillPairs: 0 };

export class SubmitBudget {
  readonly #dispatches: readonly Dispatch[];
  readonly #nowMs: () => number;
  /** At a slowness of 1: what a step takes whatever its rows, what a row adds, and a pair of a row and a token that it sees. */
  readonly #stepMs: number;
  readonly #rowMs: number;
  readonly #pairMs: number;
  /** Of the dispatch that takes longest, a row in a sequence half as long as there may be. */
  readonly #longestRowMs: number;
  #slowness = 1;
  /** Of the steps since the last that was not slower. */
  #slower: number[] = [];
  #doneMs = 0;

  /** `maxLength`: tokens of a sequence; `nowMs`: a steady clock. */
  constructor(dispatches: readonly Dispatch[], maxLength: number, nowMs: () => number) {
    this.#dispatches = dispatches;
    this.#nowMs = nowMs;
    const sum = (of: (dispatch: Dispatch) => number): number => dispatches.reduce((ms, each) => ms + of(each), 0);
    const flopsOf = ({ work }: Dispatch, attended: AttendedTokens): number => work(one, attended).flops;
    const pair = { decodePairs: 0.5, prefillPairs: 0.5 };
    this.#stepMs = sum(({ work }) => work(one, noPairs).bytes / BYTES_PER_MS);
    this.#rowMs = sum((dispatch) => flopsOf(dispatch, noPairs) / OPERATIONS_PER_MS);
    this.#pairMs = sum((dispatch) => (flopsOf(dispatch, pair) - flopsOf(dispatch, noPairs)) / OPERATIONS_PER_MS);
    const half = { decodePairs: 0, prefillPairs: maxLength / 2 };
    this.#longestRowMs = Math.max(0, ...dispatches.map((dispatch) => flopsOf(dispatch, half) / OPERATIONS_PER_MS));
  }

  /** Rows of a step in which no dispatch is predicted to take more than a submit may. */
  get maxRows(): number {
    const rows = Math.floor(MAX_SUBMIT_MS / (this.#slowness * this.#longestRowMs));
    return Number.isFinite(rows) ? Math.max(LEAST_ROWS, rows) : Infinity;
  }

  /** Indexes of the dispatches that begin a further submit; none for most steps. */
  cuts(counts: GridCounts, attended: AttendedTokens): number[] {
    const pairs = attended.decodePairs + attended.prefillPairs;
    const most = this.#slowness * (this.#stepMs + counts.rows * this.#rowMs + pairs * this.#pairMs);
    if (most <= MAX_SUBMIT_MS) return [];
    const cuts: number[] = [];
    let ms = 0;
    this.#dispatches.forEach((dispatch, i) => {
      if (dispatch.launch(counts) === undefined) return;
      const its = this.#slowness * rawMs(dispatch, counts, attended);
      if (ms > 0 && ms + its > MAX_SUBMIT_MS) {
        cuts.push(i);
        ms = 0;
      }
      ms += its;
    });
    return cuts;
  }

  /** Call when a step is submitted, and what it returns when that step is done. */
  begin(counts: GridCounts, attended: AttendedTokens): () => void {
    const nowMs = this.#nowMs;
    const submittedMs = nowMs();
    return () => {
      const doneMs = nowMs();
      // It waited for the step before.
      const tookMs = doneMs - Math.max(submittedMs, this.#doneMs);
      this.#doneMs = doneMs;
      const pairs = attended.decodePairs + attended.prefillPairs;
      const predictedMs = this.#stepMs + counts.rows * this.#rowMs + pairs * this.#pairMs;
      if (predictedMs === 0) return;
      const slowness = tookMs / predictedMs;
      if (slowness <= this.#slowness) {
        this.#slowness += SHARE_DOWN * (slowness - this.#slowness);
        this.#slower = [];
      } else if (tookMs >= TELLING_MS) {
        this.#slower = [...this.#slower, slowness].slice(-SLOWER);
        if (this.#slower.length === SLOWER) this.#slowness = Math.min(...this.#slower);
      }
    };
  }
}

function rawMs({ work }: Dispatch, counts: GridCounts, attended: AttendedTokens): number {
  const { bytes, flops } = work(counts, attended);
  return flops / OPERATIONS_PER_MS + bytes / BYTES_PER_MS;
}
