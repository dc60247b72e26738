/**
 * Record of one request: a fold of its events (request_events.ts). `/api/requests`, the dashboard and a response header show it; there is
 * one per prompt.
 *
 * All times are durations, measured by this router or by the instance that spent the time. The parts of a TTFT add up to the
 * total, because `transport` is the time that no other part accounts for.
 */
import type { Report } from '../../../shared/protocol/messages.ts';
import type { Compared } from '../../../shared/protocol/request_detail.ts';
import type { ComparedValues } from './explained_placement.ts';
import type { MissTokens, PromptMisses } from './miss_reasons.ts';
import { CountsFold, noCounts, type RequestCounts } from './request_counts.ts';
import type { OpenedEvent, PlacedEvent, PrefillEvent, RequestEvent } from './request_events.ts';
import { unread, type RequestFacts } from './request_facts.ts';
import type { RequestKind } from './request_kind.ts';
import type { Expected, MeasuredTtft, RecordState, RequestPhase, RequestTimes } from './request_state.ts';

/** Notes per request (P1). */
const MAX_NOTES = 64;

const NO_TIMES: RequestTimes = {
  placedMs: undefined,
  attemptMs: undefined,
  ttftMs: undefined,
  ttft: undefined,
  tokenMs: undefined,
  sinceTokenMs: undefined,
};
const NOT_EXPECTED: Expected = {
  outputTokens: undefined,
  heldTokens: 0,
  placement: undefined,
  rejection: undefined,
  misses: undefined,
};

/** Record of a request as all see it but its `RequestTrace`, which alone applies events. */
export type RequestRecord = Omit<RequestFold, 'apply'>;

/** All that is known of one prompt: phase, times, attempts and result, folded from its events. */
export class RequestFold {
  readonly #state: RecordState;
  readonly #counts: CountsFold;

  /** Continues with what is known of a request; `state` is the fold's from now on. */
  constructor(state: RecordState) {
    this.#state = state;
    this.#counts = new CountsFold(state.counts);
  }

  /** Begins the record of a request that was opened at `atMs`, on the router's clock. */
  static opened(event: OpenedEvent, atMs: number): RequestFold {
    const { id, requestKind: kind, sequence, names, sampleOf, traceId, startedAtMs } = event;
    const { model, promptTokens = 0 } = sampleOf?.facts ?? {};
    const start = { id, kind, sampleOf: sampleOf?.id, startedAtMs, sequence, startMs: atMs, ownTraceId: traceId };
    const facts = { ...unread(names), model, promptTokens };
    const [times, expected] = [{ ...NO_TIMES }, NOT_EXPECTED];
    return new RequestFold({
      ...start,
      notes: [],
      times,
      counts: noCounts(),
      facts,
      phase: 'tokenizing',
      expected,
      end: undefined,
    });
  }

  /** Takes an event that happened at `atMs`, on the router's clock. */
  apply(event: RequestEvent, atMs: number): void {
    const ms = atMs - this.#state.startMs;
    this.#counts.apply(event);
    switch (event.kind) {
      case 'token':
        this.#token(ms);
        break;
      case 'read':
        this.#state.facts = { ...this.#state.facts, ...event.facts };
        break;
      case 'placing':
        this.#state.phase = 'placing';
        break;
      case 'expected':
        this.#expects(event.outputTokens, event.misses);
        break;
      case 'waiting':
        this.#state.phase = 'waiting';
        this.#note(ms, 'waits for a decode instance');
        break;
      case 'rejected':
        this.#state.expected = { ...this.#state.expected, rejection: event.rejection };
        break;
      case 'placed':
        this.#placed(event, ms);
        break;
      case 'prefill':
        this.#prefill(event, ms);
        break;
      case 'missed':
        this.#note(ms, `${event.instance} misses blocks from ${event.block}: ${event.reason}`);
        break;
      case 'firstToken':
        // An embedding is no token.
        if (this.kind.counts !== 'embedding') this.#state.phase = 'decoding';
        if (event.isFirst) this.#firstToken(event.report, ms);
        break;
      case 'lost': {
        const { instance, outputTokens, message } = event;
        const after = outputTokens === undefined ? '' : ` after ${outputTokens} tokens`;
        this.#note(ms, `${instance} failed${after}: ${message}`);
        break;
      }
      case 'ended':
        this.#state.phase = event.phase;
        this.#state.end = { totalMs: ms, finishReason: event.finishReason, failure: event.failure };
        break;
      // Only the counts know these.
      case 'opened':
      case 'reasoningToken':
      case 'attempt':
      case 'rewritten':
    }
  }

  #note(ms: number, text: string): void {
    if (this.#state.notes.length < MAX_NOTES) this.#state.notes.push(`${ms.toFixed(1)} ms: ${text}`);
  }

  #token(ms: number): void {
    const times = this.#state.times;
    times.sinceTokenMs = times.tokenMs === undefined ? undefined : ms - times.tokenMs;
    times.tokenMs = ms;
  }

  /** Only the first prediction is compared with the answer: later ones know a part of it. */
  #expects(outputTokens: number | undefined, misses: PromptMisses | undefined): void {
    const before = this.#state.expected;
    this.#state.expected = {
      ...before,
      outputTokens: before.outputTokens ?? outputTokens,
      misses: before.misses ?? misses,
    };
  }

  #placed({ explanation, heldTokens, isPrefilling }: PlacedEvent, ms: number): void {
    if (explanation?.isLate) this.#note(ms, 'misses a target by its own work alone, and is served');
    const times = this.#state.times;
    // Only the first placement tests index and policy: later ones follow a failure.
    if (times.placedMs === undefined)
      this.#state.expected = { ...this.#state.expected, heldTokens, placement: explanation?.prediction };
    times.placedMs ??= ms;
    times.attemptMs = ms;
    this.#state.phase = isPrefilling ? 'prefilling' : 'loading';
  }

  #prefill({ entry, begins, again, failure }: PrefillEvent, ms: number): void {
    const { name, readyTokens, outcome } = entry;
    if (begins) this.#state.phase = 'prefilling';
    else if (again !== undefined) this.#note(ms, `prefill ${name} is asked again: ${again}`);
    else if (failure !== undefined) this.#note(ms, `prefill ${name} failed at ${readyTokens} tokens: ${failure}`);
    else if (outcome === 'finished' && this.#state.phase === 'prefilling') this.#state.phase = 'loading';
  }

  /** Measures the TTFT and its parts. */
  #firstToken(report: Report | undefined, ms: number): void {
    const times = this.#state.times;
    const router = times.placedMs ?? ms;
    const failover = (times.attemptMs ?? router) - router;
    const { queueMs: queue = 0, loadMs: load = 0, computeMs: compute = 0 } = report ?? {};
    times.ttftMs = ms;
    const transport = ms - router - failover - queue - load - compute;
    times.ttft = { router, failover, queue, load, compute, transport };
  }

  /** All that is known, as values that change with further events. */
  get state(): RecordState {
    return this.#state;
  }

  get id(): string {
    return this.#state.id;
  }

  get kind(): RequestKind {
    return this.#state.kind;
  }

  /** Id of the first sample, for a further sample of the same prompt. */
  get sampleOf(): string | undefined {
    return this.#state.sampleOf;
  }

  /** Start in milliseconds since 1970. */
  get startedAtMs(): number {
    return this.#state.startedAtMs;
  }

  /** Number of the request in the order of their starts at this router, from 1. */
  get sequence(): number {
    return this.#state.sequence;
  }

  get counts(): RequestCounts {
    return this.#counts;
  }

  get facts(): RequestFacts {
    return this.#state.facts;
  }

  get notes(): readonly string[] {
    return this.#state.notes;
  }

  get expected(): Expected {
    return this.#state.expected;
  }

  get phase(): RequestPhase {
    return this.#state.phase;
  }

  get endpoint(): string {
    return this.kind.endpoint;
  }

  /** Trace id of the client, else that of the request's own spans. */
  get traceId(): string | undefined {
    return this.#state.facts.names.traceId ?? this.#state.ownTraceId;
  }

  get ttftMs(): number | undefined {
    return this.#state.times.ttftMs;
  }

  get ttft(): MeasuredTtft | undefined {
    return this.#state.times.ttft;
  }

  /** Milliseconds from the token before the last one to the last one; undefined before the second one. */
  get sinceTokenMs(): number | undefined {
    return this.#state.times.sinceTokenMs;
  }

  /** Undefined until the request has ended. */
  get totalMs(): number | undefined {
    return this.#state.end?.totalMs;
  }

  get finishReason(): string | undefined {
    return this.#state.end?.finishReason;
  }

  /** Error that ended the request, when it failed; quotes nothing of the prompt. */
  get failure(): unknown {
    return this.#state.end?.failure;
  }

  /** Milliseconds that the request has taken, at `nowMs` on the router's clock. */
  elapsedMs(nowMs: number): number {
    return this.totalMs ?? nowMs - this.#state.startMs;
  }

  /**
   * Milliseconds from the first placement to the first token, and from one token to the next until `endMs` after the start, of a request
   * that one attempt has served so far; undefined where they are not known.
   */
  measured(endMs: number): { readonly ttftMs: number | undefined; readonly tbtMs: number | undefined } {
    const { ttftMs, placedMs = 0 } = this.#state.times;
    const { attempts, outputTokens } = this.counts;
    if (ttftMs === undefined || attempts.length !== 1) return { ttftMs: undefined, tbtMs: undefined };
    return { ttftMs: ttftMs - placedMs, tbtMs: outputTokens > 1 ? (endMs - ttftMs) / (outputTokens - 1) : undefined };
  }

  /** Predicted values of the request and the real ones, as far as both are known; of the first attempt's times and hits only. */
  get compared(): ComparedValues {
    const { placement, outputTokens } = this.#state.expected;
    const { totalMs, finishReason } = this;
    const { ttftMs, tbtMs } = this.measured(totalMs ?? 0);
    const isWhole = finishReason === 'stop' || finishReason === 'length';
    const both = (predicted: number | undefined, real: number | undefined): Compared | undefined =>
      predicted === undefined || real === undefined ? undefined : { predicted, real };
    const isFirst = this.sampleOf === undefined && ttftMs !== undefined;
    return {
      ttftMs: both(placement?.ttftMs, ttftMs),
      tbtMs: both(placement?.tbtMs, totalMs === undefined ? undefined : tbtMs),
      cachedTokens: both(placement?.cachedTokens, isFirst ? this.counts.tokens.cached : undefined),
      outputTokens: both(outputTokens, isWhole ? this.counts.outputTokens : undefined),
    };
  }

  /** Computed tokens of the prompt by reason; empty until the prompt was computed. */
  get missTokens(): MissTokens {
    return (this.ttftMs !== undefined && this.#state.expected.misses?.tokens(this.counts.tokens.computed)) || {};
  }
}
