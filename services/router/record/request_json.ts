/** A request as `/api/requests/{id}` and the `x-penstock-request` header show it. */
import { messageOf } from '../../../shared/base/failure.ts';
import type { AttemptPart, RequestFull } from '../../../shared/protocol/request_detail.ts';
import { comparedJson, explanationJson, rejectionJson } from './explained_placement.ts';
import { inThousandths, partsJson, reportJson, rounded } from './report_json.ts';
import type { AttemptEntry } from './request_counts.ts';
import { factsJson } from './request_facts.ts';
import type { RequestRecord } from './request_record.ts';

/** Returns a request with all that the router knows of it, at `nowMs` on the router's clock. */
export function requestJson(record: RequestRecord, nowMs: number): RequestFull {
  const { counts, expected, failure, ttftMs, ttft } = record;
  const { attempts, tokens } = counts;
  return {
    ...factsJson(record.facts),
    id: record.id,
    trace_id: record.traceId ?? null,
    endpoint: record.endpoint,
    sample_of: record.sampleOf ?? null,
    started_at: new Date(record.startedAtMs).toISOString(),
    phase: record.phase,
    finish_reason: record.finishReason ?? null,
    error: failure === undefined ? null : messageOf(failure),
    reason: attempts.at(-1)?.reason ?? '',
    output_tokens: counts.outputTokens,
    tokens,
    sources: counts.sources,
    ...counts.lost,
    miss_tokens: record.missTokens,
    misses: (ttftMs !== undefined && expected.misses?.of(tokens.computed)) || [],
    fetched_bytes: attempts.reduce((sum, attempt) => sum + fetchedBytes(attempt), 0),
    ttft_ms: rounded(ttftMs),
    ttft_parts_ms: ttft ? partsJson(ttft) : null,
    total_ms: inThousandths(record.elapsedMs(nowMs)),
    predictions: comparedJson(record.compared),
    rejection: rejectionJson(expected.rejection),
    attempts: attempts.map(attemptJson),
    notes: record.notes,
  };
}

function fetchedBytes({ report, prefills }: AttemptEntry): number {
  const own = report?.fetchedBytes ?? 0;
  return prefills.reduce((sum, prefill) => sum + (prefill.report?.fetchedBytes ?? 0), own);
}

function attemptJson({ decode, reason, explanation, outcome, report, prefills }: AttemptEntry): AttemptPart {
  return {
    decode,
    reason,
    outcome,
    placement: explanation ? explanationJson(explanation) : null,
    report: report ? reportJson(report) : null,
    prefills: prefills.map((prefill) => ({
      prefill: prefill.name,
      ready_tokens: prefill.readyTokens,
      outcome: prefill.outcome,
      report: prefill.report ? reportJson(prefill.report) : null,
    })),
  };
}

/**
 * Returns the value of the `x-penstock-request` header: the request and its last attempt as one line of JSON; with `isWhole` false its id and
 * its tokens only.
 */
export function requestHeader({ id, counts, facts, ttftMs, ttft }: RequestRecord, isWhole: boolean): string {
  const { attempts, tokens, lost } = counts;
  if (!isWhole) return JSON.stringify({ id, prompt_tokens: facts.promptTokens, tokens, ...lost });
  const last = attempts.at(-1);
  return JSON.stringify({
    id,
    decode: last?.decode ?? null,
    prefill: last?.prefills.at(-1)?.name ?? null,
    prompt_tokens: facts.promptTokens,
    tokens,
    ...lost,
    ttft_ms: rounded(ttftMs),
    ttft_parts_ms: ttft ? partsJson(ttft) : null,
    attempts: attempts.length,
  });
}
