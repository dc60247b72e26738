/** One request as a row of a list, and the search among the kept requests. */
import { messageOf } from '../../../shared/base/failure.ts';
import type { LoggedRequest } from '../record/logged_request.ts';
import type { RequestRecord } from '../record/request_record.ts';
import type { RequestPhase } from '../record/request_state.ts';
import type { RequestRow } from '../../../shared/protocol/router_api.ts';

const phases: Readonly<Record<RequestPhase, true>> = {
  tokenizing: true,
  placing: true,
  waiting: true,
  prefilling: true,
  loading: true,
  decoding: true,
  finished: true,
  failed: true,
  cancelled: true,
};
/** All phases of requests that `/api/requests` can be asked for. */
export const PHASES: readonly string[] = Object.keys(phases);

/** Characters of a reason or an error in a row; the request itself has all. */
const MAX_TEXT = 200;

/** Returns a request as a row, at `nowMs` on the router's clock. */
export function rowOf(record: RequestRecord, nowMs: number): RequestRow {
  const { facts, counts, failure } = record;
  const { attempts } = counts;
  const last = attempts.at(-1);
  return {
    id: record.id,
    client_id: facts.names.clientId ?? null,
    client: facts.names.address ?? null,
    key: facts.names.key || null,
    tenant: facts.names.tenant || null,
    endpoint: record.endpoint,
    model: facts.model ?? null,
    started_at: record.startedAtMs,
    phase: record.phase,
    finish_reason: record.finishReason ?? null,
    error: failure === undefined ? null : messageOf(failure).slice(0, MAX_TEXT),
    prompt_tokens: facts.promptTokens,
    output_tokens: counts.outputTokens,
    sources: counts.sources,
    ttft_ms: tenths(record.ttftMs),
    total_ms: tenths(record.elapsedMs(nowMs)) ?? 0,
    decode: last?.decode ?? null,
    prefill: last?.prefills.at(-1)?.name ?? null,
    attempts: attempts.length,
    reason: last?.reason.slice(0, MAX_TEXT) ?? '',
    misses: record.missTokens,
  };
}

function tenths(ms: number | undefined): number | null {
  return ms === undefined ? null : Math.round(ms * 10) / 10;
}

/** Choice of requests; an absent field chooses all. */
export interface RequestChoice {
  readonly phases?: readonly string[] | undefined;
  readonly model?: string | undefined;
  readonly tenant?: string | undefined;
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

/** Whether a request is one of the chosen. Its record is looked at last, and only where its text has what is sought. */
export function isChosen(request: LoggedRequest, choice: RequestChoice): boolean {
  const { phases, model, tenant, endpoint, minTtftMs, since, id } = choice;
  if (phases && !phases.includes(request.phase)) return false;
  if (model !== undefined && request.model !== model) return false;
  if (tenant !== undefined && request.tenant !== tenant) return false;
  if (endpoint !== undefined && request.endpoint !== endpoint) return false;
  if (minTtftMs !== undefined && (request.ttftMs ?? -1) < minTtftMs) return false;
  if (since !== undefined && request.startedAtMs < since) return false;
  if (id !== undefined && !request.id.includes(id) && !request.clientId?.includes(id)) return false;
  return hasError(request, choice.error) && isOfNode(request, choice.node) && hasReason(request, choice.reason);
}

function hasError(request: LoggedRequest, error: string | undefined): boolean {
  if (error === undefined) return true;
  if (error === '0' || error === '1') return request.hasError === (error === '1');
  return request.hasError && request.mayQuote(error) && messageOf(request.record.failure).includes(error);
}

function isOfNode(request: LoggedRequest, node: string | undefined): boolean {
  if (node === undefined) return true;
  if (!request.mayQuote(node)) return false;
  const { attempts } = request.record.counts;
  return attempts.some(({ decode, prefills }) => decode === node || prefills.some(({ name }) => name === node));
}

function hasReason(request: LoggedRequest, reason: string | undefined): boolean {
  if (reason === undefined) return true;
  if (!request.mayQuote(reason)) return false;
  const { counts, finishReason, expected, missTokens } = request.record;
  if (finishReason === reason || expected.rejection?.reason === reason || Object.hasOwn(missTokens, reason))
    return true;
  return counts.attempts.at(-1)?.reason.includes(reason) ?? false;
}
