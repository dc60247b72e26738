/**
 * How much of a step goes to the device at once. Windows ends a GPU's work after 2 s, and a display that shares the card stands still
 * meanwhile: no submit is predicted to take more than a quarter of a second. A step that would is cut between dispatches; where one
 * dispatch alone would, the engine gives fewer rows.
 *
 *   prediction = slowness · (operations / 0.4 TFLOP/s + bytes / 50 GB/s)       slowness: measured / predicted time, 1 at first
 */
import type { Dispatch } from './dispatch_plan.ts';
import type { AttendedTokens, GridCounts } from './step_state.ts';

/** The most that a submit is predicted to take. */
const MAX_SUBMIT_MS = 250;
/**
 * Rates of an integrated GPU with few cores, assumed at a slowness of 1: a first step on a faster GPU is cut too often, which costs
 * microseconds.
 */
const [OPERATIONS_PER_MS, BYTES_PER_MS] = [0.4e9, 50e6];
/** Share of a faster step in the moving average of the slowness. */
const SHARE_DOWN = 0.3;
/**
 * Consecutive slower steps after which the slowness rises: a single one may have waited for lazy initialisation, or for another
 * program.
 */
const SLOWER = 3;
/** Steps shorter than this consist mostly of the round trip to the device: they can lower the slowness, never raise it. */
const MIN_MEASURED_MS = 5;
/** Rows below which a step is not cut down. */
const LEAST_ROWS = 8;

const one: GridCounts = {
  rows: 1,
  samples: 0,
  hidden: 0,
  segments: 1,
  decodeItems: 1,
  prefillItems: 1,
  merges: 1,
  listed: 0,
  sampled: 0,
  weighed: 0,
  topK: 0,
  topP: 0,
};

/** Predicts how long steps take, limits their rows, and cuts long ones into several submits. */
export class SubmitBudget {
  readonly #dispatches: readonly Dispatch[];
  readonly #nowMs: () => number;
  /**
   * Milliseconds that one row takes, at a slowness of 1, in the dispatch with the most operations, with half the maximum sequence
   * length before it.
   */
  readonly #longestRowMs: number;
  #slowness = 1;
  /** Slowness of each long enough step since the last one that was not slower than predicted; at most SLOWER of them. */
  #slower: number[] = [];
  #doneMs = 0;
  /** Last prediction at a slowness of 1, and the counts it was made for. */
  #last = { rows: -1, samples: -1, pairs: -1, ms: 0 };

  /** `maxLength`: tokens of a sequence; `nowMs`: a steady clock. */
  constructor(dispatches: readonly Dispatch[], maxLength: number, nowMs: () => number) {
    this.#dispatches = dispatches;
    this.#nowMs = nowMs;
    const half = { decodePairs: 0, prefillPairs: maxLength / 2 };
    const longest = Math.max(0, ...dispatches.map(({ work }) => work(one, half).flops));
    this.#longestRowMs = longest / OPERATIONS_PER_MS;
  }

  /** Rows of a step in which no dispatch is predicted to take more than a submit may. */
  get maxRows(): number {
    const rows = Math.floor(MAX_SUBMIT_MS / (this.#slowness * this.#longestRowMs));
    return Number.isFinite(rows) ? Math.max(LEAST_ROWS, rows) : Infinity;
  }

  /** Indexes of the dispatches that begin a further submit; none for most steps. */
  cuts(counts: GridCounts, attended: AttendedTokens): number[] {
    if (this.#slowness * this.#rawMs(counts, attended) <= MAX_SUBMIT_MS) return [];
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

  /**
   * Call when a step is submitted; call the returned function when that step is done. `isComplete` is false for a step whose time does
   * not show the device's speed (a section, or a step with exports): only its end is noted, because the next step starts then.
   */
  begin(counts: GridCounts, attended: AttendedTokens, isComplete = true): () => void {
    const submittedMs = this.#nowMs();
    const predictedMs = isComplete ? this.#rawMs(counts, attended) : 0;
    return () => {
      const doneMs = this.#nowMs();
      // A step starts only when the step before is done.
      const tookMs = doneMs - Math.max(submittedMs, this.#doneMs);
      this.#doneMs = doneMs;
      if (predictedMs > 0) this.#learn(tookMs / predictedMs, tookMs);
    };
  }

  #learn(slowness: number, tookMs: number): void {
    if (slowness <= this.#slowness) {
      this.#slowness += SHARE_DOWN * (slowness - this.#slowness);
      this.#slower = [];
    } else if (tookMs >= MIN_MEASURED_MS) {
      this.#slower = [...this.#slower, slowness].slice(-SLOWER);
      if (this.#slower.length === SLOWER) this.#slowness = Math.min(...this.#slower);
    }
  }

  /**
   * Returns the predicted milliseconds of the whole step at a slowness of 1. A step with the counts of the last one and up to 5 % more
   * attended tokens keeps the last prediction, so that decoding does not add up all dispatches for every token.
   */
  #rawMs(counts: GridCounts, attended: AttendedTokens): number {
    const { rows, samples } = counts;
    const pairs = attended.decodePairs + attended.prefillPairs;
    const last = this.#last;
    const isLike = rows === last.rows && samples === last.samples && pairs >= last.pairs && pairs <= 1.05 * last.pairs;
    if (!isLike) {
      const ms = this.#dispatches.reduce(
        (sum, dispatch) => (dispatch.launch(counts) === undefined ? sum : sum + rawMs(dispatch, counts, attended)),
        0,
      );
      this.#last = { rows, samples, pairs, ms };
    }
    return this.#last.ms;
  }
}

function rawMs({ work }: Dispatch, counts: GridCounts, attended: AttendedTokens): number {
  const { bytes, flops } = work(counts, attended);
  return flops / OPERATIONS_PER_MS + bytes / BYTES_PER_MS;
}
