/** Requests in the router's log whose events a test emits. */
import type { PlacedEvent, PrefillEntry } from '../../services/router/record/request_events.ts';
import type { RequestFacts } from '../../services/router/record/request_facts.ts';
import type { RequestLog } from '../../services/router/record/request_log.ts';
import type { RequestTrace } from '../../services/router/record/request_trace.ts';
import { kindOf } from './request_kind.ts';

/** Opens a request of which `facts` are read. */
export function opened(log: RequestLog, id: string, facts: Partial<RequestFacts> = {}): RequestTrace {
  const trace = log.open(id, kindOf('/v1/completions'), { clientId: undefined, traceId: undefined });
  trace.emit({ kind: 'read', facts });
  return trace;
}

/** Returns the placement at an instance, which has to fetch nothing. */
export function placedAt(decode: string, more: Partial<PlacedEvent> = {}): PlacedEvent {
  return { kind: 'placed', decode, reason: 'why', heldTokens: 0, isPrefilling: false, ...more };
}

/** Returns a prefill that has computed all of `numTokens`. */
export function prefillAt(name: string, numTokens: number): PrefillEntry {
  const tokens = { readyTokens: numTokens, computedTokens: numTokens, expectedTokens: numTokens };
  return { name, ...tokens, outcome: 'finished', report: undefined };
}
