/**
 * `Decode(tokens, sources, sampling) ⇉ tokens`: fetch blocks, compute the tail, sample until it stops.
 *
 *   start ──► fetching ──all came, or little is left──► proceeding ──► tokens ... last token, end
 *                │  ▲
 *    missing│  │more (sources, or a higher max_self_compute)
 *                ▼  │
 *              asking              give_up (the sources of this round are lost): report at once
 *
 * The random stream of a token is (seed, absolute position), so a call with a longer list goes on where another instance
 * was lost (R1). When the caller goes away nothing stays behind (R2).
 */
import { Condition } from '../base/condition.ts';
import { Failure, messageOf } from '../base/failure.ts';
import type { Clock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import { linkSignals, DONE, type Link } from '../base/signal.ts';
import type { Tracing } from '../base/tracing/tracing.ts';
import type { SequenceEvent } from '../engine/engine_events.ts';
import { MAX_ALTERNATIVES } from '../engine/sampler.ts';
import type { DecodeOutput, DecodeSession, StartDecode } from '../net/decode/served_decodes.ts';
import { CallSpan } from '../node/traced_handlers.ts';
import type { DecodeRequest, DecodeStart, MoreSources } from '../protocol/messages.ts';
import { mostAlternatives, requestOf, type Request } from '../protocol/request.ts';
import { checkCall, contextOf, fetchEndOf, nothingFetched, reportOf, type CallChain } from './engine_call.ts';
import type { EngineInstance } from './engine_instance.ts';
import { mergeLinks } from './link_reports.ts';
import { runSequence, type Fetch } from './sequence_run.ts';

/** Milliseconds to wait for the caller's next message; a router that has not answered `missing` by then has lost the request. */
const ASK_TIMEOUT_MS = 30_000;
/** A caller sends at most one message per question; more is not worth keeping (P1). */
const MAX_INBOX = 16;

/** Returns the start of the Decode calls of an instance, with an EngineDecode for each call. */
export function startDecode(
  instance: EngineInstance,
  { log, clock, tracing }: { readonly log: Log; readonly clock: Clock; readonly tracing?: Tracing | undefined },
): StartDecode {
  return (start, { signal }, output) => {
    const span = tracing && new CallSpan('decode', tracing, clock);
    const session = new EngineDecode(instance, clock, signal, span ? spanned(output, span) : output);
    session
      .run(span ? span.begin(start) : start)
      .catch((error: unknown) => {
        log.debug({ request: start.context?.requestId, error: String(error) }, 'a decode ended early');
        if (span) span.error = messageOf(error);
        output.fail(error);
      })
      .finally(() => span?.end());
    return session;
  };
}

/** Returns an output whose tokens are counted in a span. */
function spanned(output: DecodeOutput, span: CallSpan): Pick<DecodeOutput, 'missing' | 'prompt' | 'token'> {
  return {
    missing: (missing) => {
      output.missing(missing);
    },
    prompt: (tokens) => {
      output.prompt(tokens);
    },
    token: (sampled, finish, report) => {
      span.token(report);
      output.token(sampled, finish, report);
    },
  };
}

/** Leading blocks that are in the device: all, and those after which a sequence can begin. */
interface LocalBlocks {
  readonly numLocal: number;
  readonly numUsable: number;
}

/** One Decode call on the engine. */
class EngineDecode implements DecodeSession {
  readonly #instance: EngineInstance;
  readonly #clock: Clock;
  readonly #output: Pick<DecodeOutput, 'missing' | 'prompt' | 'token'>;
  /** Aborts when the caller has left, or the call has ended. */
  readonly #left: Link;
  readonly #inbox: MoreSources[] = [];
  readonly #messageCame = new Condition();
  /** How often missing blocks were reported. */
  #round = 0;
  /** Aborts the fetch of this round. */
  #fetching = new AbortController();
  #fetched = nothingFetched;

  constructor(
    instance: EngineInstance,
    clock: Clock,
    signal: AbortSignal,
    output: Pick<DecodeOutput, 'missing' | 'prompt' | 'token'>,
  ) {
    this.#instance = instance;
    this.#clock = clock;
    this.#left = linkSignals(signal);
    this.#output = output;
  }

  take({ more, giveUp }: DecodeRequest): void {
    if (giveUp && giveUp.round === this.#round) this.#fetching.abort(DONE);
    if (!more) return;
    if (this.#inbox.length < MAX_INBOX) this.#inbox.push(more);
    this.#messageCame.notify();
  }

  /** Resolves with the last token. @throws Failure when the call is refused, or its caller leaves */
  async run(start: DecodeStart): Promise<void> {
    try {
      await this.#run(start);
    } finally {
      this.#left.release();
      this.#left.abort();
    }
  }

  get #signal(): AbortSignal {
    return this.#left.signal;
  }

  async #run(start: DecodeStart): Promise<void> {
    const request = requestOf(start.request);
    if (!request) throw new Failure('invalid_request', 'the start of a Decode call carries a request');
    const chain = await checkCall(this.#instance, start, request.scope);
    const { promptLength, maxLength } = request;
    const { maxModelLen } = this.#instance.info;
    if (promptLength < 1 || promptLength > chain.tokens.length || maxLength <= chain.tokens.length) {
      throw new Failure(
        'invalid_request',
        `prompt ${promptLength} ≤ tokens ${chain.tokens.length} < max_length ${maxLength} does not hold`,
      );
    }
    const numTop = mostAlternatives(request);
    if (numTop > MAX_ALTERNATIVES)
      throw new Failure('invalid_request', `${numTop} alternatives of a token are more than ${MAX_ALTERNATIVES}`);
    if (maxLength > maxModelLen)
      throw new Failure('context_too_long', `max_length ${maxLength} exceeds the context of ${maxModelLen}`);
    await this.#serve(chain, start, request);
  }

  async #serve(chain: CallChain, start: DecodeStart, request: Request): Promise<void> {
    const { tokens, hashes } = chain;
    const numLocal = this.#instance.numLocal(hashes);
    const numUsable = this.#instance.numUsable(hashes);
    const isLeft = hashes.length > numUsable && tokens.length - this.#tokensOf(numUsable) > start.maxSelfCompute;
    // Cached blocks have no logits, so a prompt whose log-probabilities are requested is computed here, whatever its length.
    const isReading = request.promptLogprobs > 0 && start.promptLogprobsFrom < request.promptLength;
    const hasFetch = !isReading && (isLeft || start.sources.some(({ end }) => end > numUsable));
    // With more left than it may compute, the call gets further sources.
    const sourcesEnd = fetchEndOf(start.sources);
    const isMissing = tokens.length - this.#tokensOf(Math.max(numUsable, sourcesEnd)) > start.maxSelfCompute;
    const fetchEnd = isMissing ? undefined : sourcesEnd;
    await runSequence(this.#instance, {
      context: contextOf(start),
      signal: this.#signal,
      request: {
        kind: 'decode',
        ...chain,
        request,
        promptLogprobsFrom: isReading ? Math.max(1, start.promptLogprobsFrom) : request.promptLength,
        group: start.group ?? undefined,
        fetchEnd,
      },
      feed: hasFetch ? (fetch, until) => this.#feed(fetch, until, chain, { numLocal, numUsable }, start) : undefined,
      onEvent: (event) => {
        if (event.kind === 'token') this.#reply(event);
        else if (event.kind === 'prompt') this.#output.prompt(event.tokens);
      },
    });
  }

  #reply({ sampled, report, finish }: Extract<SequenceEvent, { kind: 'token' }>): void {
    this.#output.token(sampled, finish, report && reportOf(report, this.#fetched));
  }

  #tokensOf(numBlocks: number): number {
    return numBlocks * this.#instance.info.layout.spec.blockSize;
  }

  /** Returns when every block came, or what is left is little enough to compute here. */
  async #feed(
    fetch: Fetch,
    until: AbortSignal,
    { tokens, hashes }: CallChain,
    { numLocal, numUsable }: LocalBlocks,
    start: DecodeStart,
  ): Promise<void> {
    let sources = start.sources;
    let maxSelfCompute = start.maxSelfCompute;
    let from = numLocal;
    for (;;) {
      const round = linkSignals(until, this.#fetching.signal);
      const {
        reached,
        hasState,
        missing: block,
        fetchedBytes,
        links,
        reason,
      } = await fetch(from, sources, round.signal);
      round.release();
      this.#fetched = {
        fetchedBytes: this.#fetched.fetchedBytes + fetchedBytes,
        links: mergeLinks(this.#fetched.links, links),
      };
      from = reached;
      const usable = hasState ? reached : Math.min(numUsable, reached);
      const left = tokens.length - this.#tokensOf(usable);
      if (usable === hashes.length || left <= maxSelfCompute || until.aborted) return;
      this.#round++;
      this.#fetching = new AbortController();
      this.#output.missing({ block, reason });
      const more = await this.#answer();
      ({ sources, maxSelfCompute } = more);
      if (left <= maxSelfCompute && sources.length === 0) return;
    }
  }

  async #answer(): Promise<MoreSources> {
    for (;;) {
      const more = this.#inbox.shift();
      if (more) return more;
      if (this.#signal.aborted) throw new Failure('cancelled', 'the caller went away');
      if (await this.#messageCame.within(ASK_TIMEOUT_MS, this.#clock, this.#signal))
        throw new Failure('deadline_exceeded', `the caller sent no message for ${ASK_TIMEOUT_MS} ms`);
    }
  }
}
