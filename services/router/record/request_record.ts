/**
 * Record of one request: a fold of its events (request_events.ts). `/api/requests`, the dashboard and a response header show it; there is
 * one per prompt.
 *
 * All times are durations, measured by this router or by the instance that spent the time. The parts of a TTFT add up to the
 * total, because `transport` is the time that no other part accounts for.
 */
import type { Prediction, Rejection } from '../../../shared/placement/policy.ts';
import type { Report } from '../../../shared/protocol/messages.ts';
import type { Compared } from '../../../shared/protocol/request_detail.ts';
import type { ComparedValues } from './explained_placement.ts';
import type { MissTokens, PromptMisses } from './miss_reasons.ts';
import { CountsFold, type RequestCounts } from './request_counts.ts';
import type { EndPhase, OpenedEvent, PlacedEvent, PrefillEvent, RequestEvent } from './request_events.ts';
import { unread, type RequestFacts } from './request_facts.ts';
import type { RequestKind } from './request_kind.ts';

/** Notes per request (P1). */
const MAX_NOTES = 64;

/** Phase of a request. Failure tests read the phase to show which stage a fault hit. */
export type RequestPhase =
  | 'tokenizing'
  | 'placing'
  /** Waits for a decode instance that is expected. */
  | 'waiting'
  | 'prefilling'
  | 'loading'
  | 'decoding'
  | EndPhase;

/** Time to first token in milliseconds, by where it was spent; the parts add up to the total. */
export interface MeasuredTtft {
  /** Validation, template, tokens, placement. */
  readonly router: number;
  /** Attempts that were lost before the one that gave the first token. */
  readonly failover: number;
  /** On the decode instance: waiting for device blocks. */
  readonly queue: number;
  /** On the decode instance: waiting for blocks to arrive; a prefill elsewhere happens in here. */
  readonly load: number;
  readonly compute: number;
  readonly transport: number;
}

/** Values that are predicted of a request before it runs. */
export interface Expected {
  /** Tokens of the answer; undefined while the request is not placed. */
  readonly outputTokens: number | undefined;
  /** Prompt tokens that the prefix index reported as held when the request was first placed. */
  readonly heldTokens: number;
  /** Times and hits that the policy expects of the first placement; undefined for policies that predict nothing. */
  readonly placement: Prediction | undefined;
  /** Why the request was refused for its targets; undefined when it was not. */
  readonly rejection: Rejection | undefined;
  /** Why tokens of the prompt are computed, if they are; undefined before the first placement, and for further samples. */
  readonly misses: PromptMisses | undefined;
}

/** How a request has ended. */
interface RequestEnd {
  readonly totalMs: number;
  readonly finishReason: string;
  /** Error that ended the request, when it failed; quotes nothing of the prompt. */
  readonly failure: unknown;
}

/** Times of a request, in ms since its start. */
interface RequestTimes {
  /** First placement. */
  placedMs: number | undefined;
  /** Last placement. */
  attemptMs: number | undefined;
  ttftMs: number | undefined;
  ttft: MeasuredTtft | undefined;
  tokenMs: number | undefined;
  /** From the last but one token to the last one. */
  sinceTokenMs: number | undefined;
}

/** Record of a request as all see it but its `RequestTrace`, which alone applies events. */
export type RequestRecord = Omit<RequestFold, 'apply'>;

/** All that is known of one prompt: phase, times, attempts and result, folded from its events. */
export class RequestFold {
  readonly id: string;
  readonly kind: RequestKind;
  /** Id of the first sample, for a further sample of the same prompt (`n`, `best_of`). */
  readonly sampleOf: string | undefined;
  /** Start in milliseconds since 1970. */
  readonly startedAtMs: number;
  /** Number of the request in the order of their starts at this router, from 1. */
  readonly sequence: number;
  readonly #notes: string[] = [];
  readonly #counts = new CountsFold();
  readonly #startMs: number;
  readonly #ownTraceId: string | undefined;
  readonly #times: RequestTimes = {
    placedMs: undefined,
    attemptMs: undefined,
    ttftMs: undefined,
    ttft: undefined,
    tokenMs: undefined,
    sinceTokenMs: undefined,
  };
  #facts: RequestFacts;
  #phase: RequestPhase = 'tokenizing';
  #expected: Expected = {
    outputTokens: undefined,
    heldTokens: 0,
    placement: undefined,
    rejection: undefined,
    misses: undefined,
  };
  #end: RequestEnd | undefined;

  /** `atMs`: when the request was opened, on the router's clock. */
  constructor({ id, requestKind, sequence, names, sampleOf, traceId, startedAtMs }: OpenedEvent, atMs: number) {
    this.id = id;
    this.sequence = sequence;
    this.kind = requestKind;
    this.sampleOf = sampleOf?.id;
    this.startedAtMs = startedAtMs;
    const { model, promptTokens = 0 } = sampleOf?.facts ?? {};
    this.#facts = { ...unread(names), model, promptTokens };
    this.#startMs = atMs;
    this.#ownTraceId = traceId;
  }

  /** Takes an event that happened at `atMs`, on the router's clock. */
  apply(event: RequestEvent, atMs: number): void {
    const ms = atMs - this.#startMs;
    this.#counts.apply(event);
    switch (event.kind) {
      case 'token':
        this.#token(ms);
        break;
      case 'read':
        this.#facts = { ...this.#facts, ...event.facts };
        break;
      case 'placing':
        this.#phase = 'placing';
        break;
      case 'expected':
        this.#expects(event.outputTokens, event.misses);
        break;
      case 'waiting':
        this.#phase = 'waiting';
        this.#note(ms, 'waits for a decode instance');
        break;
      case 'rejected':
        this.#expected = { ...this.#expected, rejection: event.rejection };
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
        if (this.kind.counts !== 'embedding') this.#phase = 'decoding';
        if (event.isFirst) this.#firstToken(event.report, ms);
        break;
      case 'lost': {
        const { instance, outputTokens, message } = event;
        const after = outputTokens === undefined ? '' : ` after ${outputTokens} tokens`;
        this.#note(ms, `${instance} failed${after}: ${message}`);
        break;
      }
      case 'ended':
        this.#phase = event.phase;
        this.#end = { totalMs: ms, finishReason: event.finishReason, failure: event.failure };
        break;
      // Only the counts know these.
      case 'opened':
      case 'reasoningToken':
      case 'attempt':
      case 'rewritten':
    }
  }

  #note(ms: number, text: string): void {
    if (this.#notes.length < MAX_NOTES) this.#notes.push(`${ms.toFixed(1)} ms: ${text}`);
  }

  #token(ms: number): void {
    const times = this.#times;
    times.sinceTokenMs = times.tokenMs === undefined ? undefined : ms - times.tokenMs;
    times.tokenMs = ms;
  }

  /** Only the first prediction is compared with the answer: later ones know a part of it. */
  #expects(outputTokens: number | undefined, misses: PromptMisses | undefined): void {
    const before = this.#expected;
    this.#expected = {
      ...before,
      outputTokens: before.outputTokens ?? outputTokens,
      misses: before.misses ?? misses,
    };
  }

  #placed({ explanation, heldTokens, isPrefilling }: PlacedEvent, ms: number): void {
    if (explanation?.isLate) this.#note(ms, 'misses a target by its own work alone, and is served');
    const times = this.#times;
    // Only the first placement tests index and policy: later ones follow a failure.
    if (times.placedMs === undefined)
      this.#expected = { ...this.#expected, heldTokens, placement: explanation?.prediction };
    times.placedMs ??= ms;
    times.attemptMs = ms;
    this.#phase = isPrefilling ? 'prefilling' : 'loading';
  }

  #prefill({ entry, begins, again, failure }: PrefillEvent, ms: number): void {
    const { name, readyTokens, outcome } = entry;
    if (begins) this.#phase = 'prefilling';
    else if (again !== undefined) this.#note(ms, `prefill ${name} is asked again: ${again}`);
    else if (failure !== undefined) this.#note(ms, `prefill ${name} failed at ${readyTokens} tokens: ${failure}`);
    else if (outcome === 'finished' && this.#phase === 'prefilling') this.#phase = 'loading';
  }

  /** Measures the TTFT and its parts. */
  #firstToken(report: Report | undefined, ms: number): void {
    const times = this.#times;
    const router = times.placedMs ?? ms;
    const failover = (times.attemptMs ?? router) - router;
    const { queueMs: queue = 0, loadMs: load = 0, computeMs: compute = 0 } = report ?? {};
    times.ttftMs = ms;
    const transport = ms - router - failover - queue - load - compute;
    times.ttft = { router, failover, queue, load, compute, transport };
  }

  /** Forgets what only a recent request needs. */
  thin(): void {
    this.#counts.thin();
  }

  get counts(): RequestCounts {
    return this.#counts;
  }

  get facts(): RequestFacts {
    return this.#facts;
  }

  get notes(): readonly string[] {
    return this.#notes;
  }

  get expected(): Expected {
    return this.#expected;
  }

  get phase(): RequestPhase {
    return this.#phase;
  }

  get endpoint(): string {
    return this.kind.endpoint;
  }

  /** Trace id of the client, else that of the request's own spans. */
  get traceId(): string | undefined {
    return this.#facts.names.traceId ?? this.#ownTraceId;
  }

  get ttftMs(): number | undefined {
    return this.#times.ttftMs;
  }

  get ttft(): MeasuredTtft | undefined {
    return this.#times.ttft;
  }

  /** Milliseconds from the token before the last one to the last one; undefined before the second one. */
  get sinceTokenMs(): number | undefined {
    return this.#times.sinceTokenMs;
  }

  /** Undefined until the request has ended. */
  get totalMs(): number | undefined {
    return this.#end?.totalMs;
  }

  get finishReason(): string | undefined {
    return this.#end?.finishReason;
  }

  /** Error that ended the request, when it failed; quotes nothing of the prompt. */
  get failure(): unknown {
    return this.#end?.failure;
  }

  /** Milliseconds that the request has taken, at `nowMs` on the router's clock. */
  elapsedMs(nowMs: number): number {
    return this.totalMs ?? nowMs - this.#startMs;
  }

  /**
   * Milliseconds from the first placement to the first token, and from one token to the next until `endMs` after the start, of a request
   * that one attempt has served so far; undefined where they are not known.
   */
  measured(endMs: number): { readonly ttftMs: number | undefined; readonly tbtMs: number | undefined } {
    const { ttftMs, placedMs = 0 } = this.#times;
    const { attempts, outputTokens } = this.counts;
    if (ttftMs === undefined || attempts.length !== 1) return { ttftMs: undefined, tbtMs: undefined };
    return { ttftMs: ttftMs - placedMs, tbtMs: outputTokens > 1 ? (endMs - ttftMs) / (outputTokens - 1) : undefined };
  }

  /** Predicted values of the request and the real ones, as far as both are known; of the first attempt's times and hits only. */
  get compared(): ComparedValues {
    const { placement, outputTokens } = this.#expected;
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
    return (this.ttftMs !== undefined && this.#expected.misses?.tokens(this.counts.tokens.computed)) || {};
  }
}
