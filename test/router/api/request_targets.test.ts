/** Targets of requests: by configuration, caller and headers. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { errorHeaders } from '../../../services/router/api/errors.ts';
import { errorBody } from '../../../services/router/surfaces/openai/errors.ts';
import { errorStatus } from '../../../shared/base/failure.ts';
import { parseTargets, RequestTargets, targetTextsOf } from '../../../services/router/api/request_targets.ts';
import { RejectedFailure } from '../../../services/router/conductor/rejected_failure.ts';

const none = { ttftMs: undefined, tbtMs: undefined, totalMs: undefined };
const configured = new RequestTargets({ slo_ttft_ms: 1_000, slo_tbt_ms: 0 });

test('without configuration and headers a request has no targets', () => {
  const targets = new RequestTargets({ slo_ttft_ms: 0, slo_tbt_ms: 0 });
  assert.equal(targets.of(none), undefined);
  assert.deepEqual(targets.of({ ...none, totalMs: 70 }), { ...none, totalMs: 70 });
});

test("a caller's targets replace the configured ones; a header tightens a target, and loosens none", () => {
  const chat = { ...none, ttftMs: 500, tbtMs: 40 };
  assert.deepEqual(configured.of(none), { ...none, ttftMs: 1_000 });
  assert.deepEqual(configured.of(none, { ...none, ttftMs: 60_000 }), { ...none, ttftMs: 60_000 });
  assert.deepEqual(configured.of(none, chat), chat);
  assert.deepEqual(configured.of({ ...none, ttftMs: 300, tbtMs: 90 }, chat), { ...none, ttftMs: 300, tbtMs: 40 });
  assert.deepEqual(configured.of({ ...none, ttftMs: 5_000, tbtMs: 90 }), { ...none, ttftMs: 1_000, tbtMs: 90 });
});

test('headers are read by their names', () => {
  const texts = targetTextsOf({
    'x-penstock-slo-ttft-ms': '250',
    'x-penstock-slo-tbt-ms': '30',
    'x-penstock-deadline-ms': '4000',
  });
  assert.deepEqual(parseTargets(texts), { targets: { ttftMs: 250, tbtMs: 30, totalMs: 4_000 }, failure: undefined });
  assert.deepEqual(parseTargets(targetTextsOf({})), { targets: none, failure: undefined });
});

test('a header that is no time is refused by its name', () => {
  for (const text of ['', '0', '-1', '1.5', '1e3', 'soon', '86400001', '999999999']) {
    const { failure } = parseTargets({ tbtMs: text });
    assert(failure, text);
    assert.equal(errorStatus(failure), 400);
    assert.equal(errorBody(failure).error.param, 'x-penstock-slo-tbt-ms');
    assert.match(
      failure.message,
      /^x-penstock-slo-tbt-ms: ".*" is no whole number of milliseconds from 1 to 86400000$/,
    );
  }
});

test('a refusal for targets is a rate limit error with the seconds after which to try again', () => {
  const failure = new RejectedFailure('rate_limit_exceeded', 'too much', { reason: 'wait', retryAfterMs: 2_100 });
  assert.equal(errorStatus(failure), 429);
  assert.equal(errorHeaders(failure)['retry-after'], '3');
  const { type, code } = errorBody(failure).error;
  assert.deepEqual([type, code], ['rate_limit_error', 'rate_limit_exceeded']);
  const full = new RejectedFailure('overloaded', 'full', { reason: 'max_requests' });
  assert.deepEqual([errorStatus(full), errorHeaders(full)['retry-after']], [503, '1']);
});
