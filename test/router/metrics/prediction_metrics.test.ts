/** Predictions of a request next to what came, from its trace to the metrics. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { silentLog } from '../../../shared/base/log.ts';
import type { Explanation } from '../../../shared/placement/policy.ts';
import { RouterMetrics } from '../../../services/router/metrics/metrics.ts';
import { TOKEN } from '../../../services/router/record/request_events.ts';
import { requestJson } from '../../../services/router/record/request_json.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { opened, placedAt } from '../../support/request_events.ts';

const explanation: Explanation = {
  policy: 'priced',
  priceMs: 120,
  parts: { queue: 20, compute: 100 },
  prediction: { ttftMs: 100, waitMs: 20, tbtMs: 20, totalMs: 300, cachedTokens: 64 },
  alternatives: [{ decode: 'd2/e', run: 1, queueLength: 3, priceMs: 150, parts: { queue: 150 } }],
};

/** A request that was predicted so and took other times: decided after 5 ms, first token 150 ms later, 5 tokens in 100 ms. */
async function traced(prediction: Explanation['prediction'], numAttempts = 1) {
  const clock = new SimulatedClock();
  const metrics = new RouterMetrics('m', silentLog, {
    nowMs: () => clock.nowMs(),
    instances: () => ({ all: () => [], model: undefined }),
  });
  const trace = opened(new RequestLog(clock, [metrics], 8), 'r', { promptTokens: 100 });
  trace.emit({ kind: 'expected', outputTokens: 10 });
  await clock.run(5);
  for (let i = 0; i < numAttempts; i++)
    trace.emit(placedAt('d1', { heldTokens: 64, explanation: { ...explanation, prediction } }));
  await clock.run(155);
  const times = { queueMs: 0, loadMs: 0, computeMs: 0, fetchedBytes: 0, links: [], sources: null };
  const report = { cachedTokens: 32, fetchedTokens: 0, computedTokens: 68, ...times };
  for (let attempt = 1; attempt <= numAttempts; attempt++)
    trace.emit({ kind: 'firstToken', attempt, report, isFirst: attempt === 1 });
  await clock.run(255);
  for (let i = 0; i < 5; i++) trace.emit(TOKEN);
  trace.end('finished', 'stop');
  const text = await metrics.text();
  const valueOf = (name: string, ...labels: string[]): number | undefined => {
    const line = text
      .split('\n')
      .find((one) => one.startsWith(`${name}{`) && labels.every((label) => one.includes(label)));
    return line === undefined ? undefined : Number(line.slice(line.lastIndexOf(' ') + 1));
  };
  return { trace: trace.record, valueOf };
}

test('each prediction is compared with what came: times from the decision on, hits and the length', async () => {
  const { trace, valueOf } = await traced(explanation.prediction);
  assert.deepEqual(trace.compared, {
    ttftMs: { predicted: 100, real: 150 },
    tbtMs: { predicted: 20, real: 25 },
    cachedTokens: { predicted: 64, real: 32 },
    outputTokens: { predicted: 10, real: 5 },
  });
  for (const [of, predicted, real, ratio] of [
    ['ttft_ms', 100, 150, 0.5],
    ['tbt_ms', 20, 25, 0.25],
    ['cached_tokens', 64, 32, 0.5],
    ['output_tokens', 10, 5, 0.5],
  ] as const) {
    assert.equal(valueOf('penstock_prediction_sum_total', `of="${of}"`, 'kind="predicted"'), predicted);
    assert.equal(valueOf('penstock_prediction_sum_total', `of="${of}"`, 'kind="real"'), real);
    assert.equal(valueOf('penstock_prediction_error_ratio_sum', `of="${of}"`), ratio);
  }
  assert.equal(valueOf('penstock_prediction_error_seconds_sum', 'of="ttft_ms"'), 0.05);
  assert.equal(valueOf('penstock_prediction_error_seconds_sum', 'tokens"'), undefined);
});

test('without a prediction, and after a failover, only the length is compared', async () => {
  for (const { trace, valueOf } of [await traced(undefined), await traced(explanation.prediction, 2)]) {
    const { outputTokens, ...others } = trace.compared;
    assert.deepEqual(outputTokens, { predicted: 10, real: 5 });
    assert.deepEqual(Object.values(others), [undefined, undefined, undefined]);
    assert.equal(valueOf('penstock_prediction_error_ratio_count', 'of="ttft_ms"'), undefined);
    assert.equal(valueOf('penstock_prediction_error_ratio_count', 'of="output_tokens"'), 1);
  }
});

test('/api/requests has the price, its parts, predictions and what was not taken, of the first four attempts (P1)', async () => {
  const { trace } = await traced(explanation.prediction, 6);
  const { attempts, predictions } = requestJson(trace, 0);
  assert.deepEqual(predictions, {
    ttft_ms: null,
    tbt_ms: null,
    cached_tokens: null,
    output_tokens: { predicted: 10, real: 5 },
  });
  assert.deepEqual(
    attempts.map(({ placement }) => placement !== null),
    [true, true, true, true, false, false],
  );
  assert.deepEqual(attempts[0]?.placement, {
    policy: 'priced',
    price_ms: 120,
    price_parts_ms: { queue: 20, compute: 100 },
    is_late: false,
    prediction: { ttft_ms: 100, wait_ms: 20, tbt_ms: 20, total_ms: 300, cached_tokens: 64 },
    alternatives: [
      {
        decode: 'd2/e',
        prefill: null,
        matched_blocks: 1,
        queue_length: 3,
        price_ms: 150,
        price_parts_ms: { queue: 150 },
        prediction: null,
      },
    ],
  });
});
