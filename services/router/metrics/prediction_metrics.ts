/**
 * Errors of predictions as metrics: the times and hits that the placement policy expected of a request, and the length of its answer,
 * next to those that came. The two sums tell the bias, the histograms how far single predictions are off.
 */
import { Counter, Histogram, type Registry } from 'prom-client';
import type { Compared } from '../../../shared/protocol/request_detail.ts';
import type { ComparedValues } from '../record/explained_placement.ts';

/** Relative errors: |real / predicted - 1|. */
const RATIO_BUCKETS = [0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10];
const ERROR_BUCKETS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60];
/** Least predicted value that an error is relative to: one millisecond or one token. */
const LEAST = 1;

/** Names of the predicted values, as the label `of` has them. */
const names = {
  ttftMs: 'ttft_ms',
  tbtMs: 'tbt_ms',
  cachedTokens: 'cached_tokens',
  outputTokens: 'output_tokens',
} as const satisfies Record<keyof ComparedValues, string>;

/** Metrics of prediction errors of one model's requests. */
export class PredictionMetrics {
  readonly #ratio: Histogram<'of'>;
  readonly #errorSeconds: Histogram<'of'>;
  readonly #sums: Counter<'of' | 'kind'>;

  constructor(registry: Registry) {
    const registers = [registry];
    this.#ratio = new Histogram({
      name: 'penstock_prediction_error_ratio',
      help: 'how far a predicted value was off, as a share of it: |real / predicted - 1|',
      labelNames: ['of'],
      buckets: RATIO_BUCKETS,
      registers,
    });
    this.#errorSeconds = new Histogram({
      name: 'penstock_prediction_error_seconds',
      help: 'how far a predicted time was off: |real - predicted|',
      labelNames: ['of'],
      buckets: ERROR_BUCKETS,
      registers,
    });
    this.#sums = new Counter({
      name: 'penstock_prediction_sum_total',
      help: 'sum of predicted values and of the real ones, in milliseconds or tokens; their quotient is the bias',
      labelNames: ['of', 'kind'],
      registers,
    });
  }

  /** Records the predictions of a request that has ended. */
  observe(compared: ComparedValues): void {
    for (const key of Object.keys(names) as (keyof ComparedValues)[]) {
      const value = compared[key];
      if (value) this.#observe(names[key], value);
    }
  }

  #observe(of: (typeof names)[keyof ComparedValues], { predicted, real }: Compared): void {
    const error = Math.abs(real - predicted);
    this.#ratio.observe({ of }, error / Math.max(LEAST, predicted));
    if (of === 'ttft_ms' || of === 'tbt_ms') this.#errorSeconds.observe({ of }, error / 1_000);
    this.#sums.inc({ of, kind: 'predicted' }, Math.max(0, predicted));
    this.#sums.inc({ of, kind: 'real' }, Math.max(0, real));
  }
}
