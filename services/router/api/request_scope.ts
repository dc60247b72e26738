/**
 * One request from the arrival of its body to the end of its answer: who can end it, what was opened for it, and the one place
 * that releases everything (R2). Everything that waits for the request does so under its signal, writes to a slow reader included.
 *
 * The signal aborts when the client is gone, when the deadline has passed, when the key of the request is removed, or when the router shuts
 * down; all but the first with a Failure as reason, which is sent to the client.
 */
import type { CallShare } from '../../../shared/base/call_queue.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { DONE, linkSignals, type Link } from '../../../shared/base/signal.ts';
import type { Targets } from '../../../shared/placement/policy.ts';
import type { Body } from './bodies.ts';
import type { Caller } from '../access/caller.ts';
import type { Entrant } from '../conductor/admission.ts';
import type { Allowance } from '../conductor/tenant_limits.ts';
import type { RequestKind } from '../record/request_kind.ts';
import type { RequestOutcome } from '../record/request_outcome.ts';
import type { RequestTrace } from '../record/request_trace.ts';
import type { ApiContext } from './api_context.ts';
import { jsonType } from './errors.ts';
import type { Exchange, RequestNames, Sink } from './exchange.ts';
import { parseTargets } from './request_targets.ts';

/**
 * Milliseconds after the deadline until the scope aborts. The relay ends the request at its deadline; this ends what still waits, such
 * as a write to a slow reader.
 */
const DEADLINE_GRACE_MS = 1_000;

/** Bounds of requests that take no place of others. */
export interface ScopeBounds {
  readonly timeoutMs: number;
  /** Returns the error of a request that took over `timeoutMs`. */
  readonly late: () => Failure;
}

/**
 * Lifetime of one HTTP request: its abort signal, deadline, request traces and runs, all released by {@link
 * RequestScope.dispose}.
 */
export class RequestScope {
  readonly caller: Caller;
  /** Part of the limits of its tenant that the request takes; undefined without limits. */
  readonly allowance: Allowance | undefined;
  readonly sink: Sink;
  /** The request body; empty once read. */
  readonly body: Body;
  /** Deadline of the request, in ms on the router's clock. */
  readonly untilMs: number;
  /** Targets in the headers of the request. */
  readonly targets: Targets;
  readonly #context: ApiContext;
  /** Failure of the headers, which {@link open} throws. */
  readonly #invalid: Failure | undefined;
  /** Whether admission counts the request. */
  readonly #isAdmitted: boolean;
  readonly #link: Link;
  readonly #gone: AbortSignal;
  readonly #traces: RequestTrace[] = [];
  /** Open traces of each prompt that admission still counts, by the trace of its first sample. */
  readonly #admitted = new Map<string, { readonly entrant: Entrant; readonly open: Set<RequestTrace> }>();
  /** Runs that were started: at most those of all traces (P1). */
  readonly #runs: Promise<unknown>[] = [];
  readonly #outcome: RequestOutcome | undefined;
  #names: RequestNames & { readonly tenant: string; readonly key: string };

  /** `bounds`: those of an endpoint that takes no place of requests. */
  constructor(context: ApiContext, exchange: Exchange, bounds?: ScopeBounds) {
    const { caller, allowance, names, targets, body, gone, sink, outcome } = exchange;
    const { clock, requestTimeoutMs, ending } = context;
    this.#context = context;
    this.caller = caller;
    this.allowance = allowance;
    this.#names = { ...names, tenant: caller.tenant, key: caller.key };
    this.#outcome = outcome;
    this.#gone = gone;
    this.sink = sink;
    this.body = body;
    const parsed = parseTargets(targets);
    this.targets = parsed.targets;
    this.#invalid = parsed.failure;
    const timeoutMs = bounds?.timeoutMs ?? Math.min(requestTimeoutMs, this.targets.totalMs ?? Infinity);
    this.#isAdmitted = bounds === undefined;
    this.untilMs = clock.nowMs() + timeoutMs;
    this.#link = caller.revoked ? linkSignals(gone, ending, caller.revoked) : linkSignals(gone, ending);
    const late = (): Failure => new Failure('deadline_exceeded', `the request took over ${timeoutMs} ms`);
    const { signal } = this.#link;
    void clock.sleep(timeoutMs + (bounds ? 0 : DEADLINE_GRACE_MS), signal).then(() => {
      if (!signal.aborted) this.#link.abort((bounds?.late ?? late)());
    });
  }

  get signal(): AbortSignal {
    return this.#link.signal;
  }

  /** Key of the client, by which clients take turns. */
  get client(): string {
    return this.caller.tenant || (this.#names.address ?? '');
  }

  /** Its share of threads that several clients wait for. */
  get share(): CallShare {
    return { key: this.client, weight: this.caller.weight };
  }

  /** Whether the client is gone. */
  get isGone(): boolean {
    return this.#gone.aborted;
  }

  /** The client's id of the request, else that of its first trace; null before there is one. */
  get requestId(): string | null {
    return this.#names.clientId ?? this.#traces[0]?.id ?? null;
  }

  /**
   * Opens a trace of this request, which is closed with the scope. @throws Failure `overloaded` when too many requests are in flight,
   * ParameterFailure when a header of the request is not allowed.
   */
  open(kind: RequestKind): RequestTrace {
    const { admission, requests, newId } = this.#context;
    if (this.#invalid && this.#isAdmitted) throw this.#invalid;
    const entrant = this.#entrant();
    if (this.#isAdmitted) admission.enter(entrant);
    const trace = requests.open(newId(), kind, this.#names, this.#traces[0]);
    this.#opened(trace);
    if (this.#isAdmitted) this.#admitted.set(trace.id, { entrant, open: new Set([trace]) });
    // Who looks is in the log, whatever becomes of it.
    else if (this.#invalid) throw this.#invalid;
    return trace;
  }

  /** Returns a prompt of this request as admission knows it. A request whose answer has begun is not ended for others. */
  #entrant(): Entrant {
    return {
      tenant: this.client,
      weight: this.caller.weight,
      hasBegun: () => this.#traces.some(({ record }) => record.counts.outputTokens > 0),
      refuse: (failure) => {
        this.#link.abort(failure);
      },
    };
  }

  /** Opens the trace of a further sample of the prompt of `first`, which stays admitted until the last of its samples has ended. */
  openSample(first: RequestTrace): RequestTrace {
    const { requests, newId } = this.#context;
    const trace = requests.openSample(newId(), first);
    this.#opened(trace);
    this.#admitted.get(first.id)?.open.add(trace);
    return trace;
  }

  #opened(trace: RequestTrace): void {
    this.#traces.push(trace);
    this.#outcome?.records.push(trace.record);
  }

  /**
   * Releases the admission of a prompt when its last sample has ended, so that another may enter. A second call for a trace does
   * nothing.
   */
  leave(trace: RequestTrace): void {
    const id = trace.record.sampleOf ?? trace.id;
    const admitted = this.#admitted.get(id);
    if (!admitted?.open.delete(trace) || admitted.open.size > 0) return;
    this.#admitted.delete(id);
    this.#context.admission.leave(admitted.entrant);
  }

  /** Sets the client's request id from the body, unless a header set one, on the traces of this request, opened and future ones. */
  named(clientId: string | undefined): void {
    if (clientId === undefined || this.#names.clientId !== undefined) return;
    this.#names = { ...this.#names, clientId };
    for (const trace of this.#traces) trace.emit({ kind: 'read', facts: { names: this.#names } });
  }

  /** Returns the tokens of all prompts that an instance has worked on, cached ones included, and those that were generated. */
  #usedTokens(): number {
    return this.#traces.reduce((sum, { record: { counts } }) => {
      const { attempts, promptTokens, outputTokens } = counts;
      return attempts.length === 0 ? sum : sum + promptTokens + outputTokens;
    }, 0);
  }

  /** Registers a run that ends with the signal, so that the request ends after it, and returns it. */
  own<T>(run: Promise<T>): Promise<T> {
    this.#runs.push(run);
    return run;
  }

  /** Sends a whole JSON answer with status 200. */
  answer(json: string, headers: Readonly<Record<string, string>>): void {
    this.sink.begin(200, { 'content-type': jsonType, ...headers });
    this.sink.end(json);
  }

  /** Returns the error for the client: the Failure that aborted the signal, else `error`. */
  reason(error: unknown): unknown {
    return this.signal.aborted && this.signal.reason instanceof Failure ? this.signal.reason : error;
  }

  /**
   * Ends everything that was opened for the request. A trace that is still open is closed as failed, or as cancelled when the client
   * has left.
   */
  async dispose(failure?: unknown): Promise<void> {
    this.body.release();
    this.#link.abort(DONE);
    this.#link.release();
    await Promise.allSettled(this.#runs);
    for (const trace of this.#traces) {
      this.leave(trace);
      const reason = this.isGone && !this.#isAdmitted ? 'abort' : 'error';
      trace.end(this.isGone ? 'cancelled' : 'failed', reason, failure);
    }
    this.allowance?.settle(this.#usedTokens());
    this.allowance?.end();
  }
}
