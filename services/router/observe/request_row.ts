/** One request as a row of a list, and the search among the kept requests. */
import { messageOf } from '../../../shared/base/failure.ts';
import type { RequestPhase, RequestTrace } from '../record/request_log.ts';
import type { RequestRow } from '../../../shared/protocol/router_api.ts';
import { NO_SOURCES } from '../record/request_counts.ts';

const phases: Readonly<Record<RequestPhase, true>> = {
  ...{ tokenizing: true, placing: true, waiting: true, prefilling: true, loading: true, decoding: true },
  ...{ finished: true, failed: true, cancelled: true },
};
/** All phases of requests that `/api/requests` can be asked for. */
export const PHASES: readonly string[] = Object.keys(phases);

/** Characters of a reason or an error in a row; the request itself has all. */
const MAX_TEXT = 200;

/** Returns a request as a row. */
export function rowOf(trace: RequestTrace): RequestRow {
  const last = trace.attempts.at(-1);
  return {
    id: trace.id,
    client_id: trace.names.clientId ?? null,
    client: trace.names.address ?? null,
    endpoint: trace.endpoint,
    model: trace.model ?? null,
    started_at: trace.startedAtMs,
    phase: trace.phase,
    finish_reason: trace.finishReason ?? null,
    error: trace.failure === undefined ? null : messageOf(trace.failure).slice(0, MAX_TEXT),
    prompt_tokens: trace.promptTokens,
    output_tokens: trace.outputTokens,
    sources: trace.counts?.sources ?? NO_SOURCES,
    ttft_ms: tenths(trace.ttftMs),
    total_ms: tenths(trace.totalMs ?? trace.elapsedMs) ?? 0,
    decode: last?.decode ?? null,
    prefill: last?.prefills.at(-1)?.name ?? null,
    attempts: trace.attempts.length,
    reason: last?.reason.slice(0, MAX_TEXT) ?? '',
    misses: trace.missTokens,
  };
}

function tenths(ms: number | undefined): number | null {
  return ms === undefined ? null : Math.round(ms * 10) / 10;
}

/** Choice of requests; an absent field chooses all. */
export interface RequestChoice {
  readonly phases?: readonly string[] | undefined;
  readonly model?: string | undefined;
  /** Name of an instance that computed or generated for the request. */
  readonly node?: string | undefined;
  readonly endpoint?: string | undefined;
  readonly minTtftMs?: number | undefined;
  /** `1`: with an error, `0`: without one, else a part of the error's text. */
  readonly error?: string | undefined;
  /** Part of the reason of the last placement, or the reason for which tokens were computed, or the request ended or was refused. */
  readonly reason?: string | undefined;
  /** Earliest start, in milliseconds since 1970. */
  readonly since?: number | undefined;
  /** Part of the request's id, or of the client's. */
  readonly id?: string | undefined;
}

/** Whether a request is one of the chosen. */
export function isChosen(trace: RequestTrace, choice: RequestChoice): boolean {
  const { phases, model, endpoint, minTtftMs, since, id } = choice;
  if (phases && !phases.includes(trace.phase)) return false;
  if (model !== undefined && trace.model !== model) return false;
  if (endpoint !== undefined && trace.endpoint !== endpoint) return false;
  if (minTtftMs !== undefined && (trace.ttftMs ?? -1) < minTtftMs) return false;
  if (since !== undefined && trace.startedAtMs < since) return false;
  if (id !== undefined && !trace.id.includes(id) && !trace.names.clientId?.includes(id)) return false;
  return isOfNode(trace, choice.node) && hasError(trace, choice.error) && hasReason(trace, choice.reason);
}

function isOfNode({ attempts }: RequestTrace, node: string | undefined): boolean {
  if (node === undefined) return true;
  return attempts.some(({ decode, prefills }) => decode === node || prefills.some(({ name }) => name === node));
}

function hasError({ failure }: RequestTrace, error: string | undefined): boolean {
  if (error === undefined) return true;
  if (error === '0' || error === '1') return (failure !== undefined) === (error === '1');
  return failure !== undefined && messageOf(failure).includes(error);
}

function hasReason(trace: RequestTrace, reason: string | undefined): boolean {
  const { attempts, finishReason, expected } = trace;
  if (reason === undefined || finishReason === reason || expected.rejection?.reason === reason) return true;
  if (Object.hasOwn(trace.missTokens, reason)) return true;
  return attempts.at(-1)?.reason.includes(reason) ?? false;
}
