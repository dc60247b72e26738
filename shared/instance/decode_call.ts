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
import { Failure } from '../base/failure.ts';
import type { Clock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import { AsyncQueue } from '../base/async_queue.ts';
import { linkSignals, DONE } from '../base/signal.ts';
import type { SequenceEvent } from '../engine/engine_events.ts';
import { MAX_ALTERNATIVES } from '../engine/sampler.ts';
import type { Handlers, ServedCall } from '../net/network.ts';
import type { DecodeReply, DecodeRequest, DecodeStart, MoreSources } from '../protocol/messages.ts';
import { mostAlternatives, requestOf, type Request } from '../protocol/request.ts';
import { checkCall, contextOf, fetchEndOf, nothingFetched, reportOf, type CallChain } from './engine_call.ts';
import type { EngineInstance } from './engine_instance.ts';
import { mergeLinks } from './link_reports.ts';
import { runSequence, type Fetch } from './sequence_run.ts';

/** Milliseconds to wait for the caller's next message; a router that has not answered `missing` by then has lost the request. */
const ASK_TIMEOUT_MS = 30_000;
/** A caller sends a start and then at most one message per question; more is not worth keeping (P1). */
const MAX_INBOX = 16;

/** Returns the handler of `decode` calls, which runs one DecodeSession per call. */
export function createDecodeHandler(
  instance: EngineInstance,
  { log, clock }: { readonly log: Log; readonly clock: Clock },
): Pick<Handlers, 'decode'> {
  return {
    async *decode(requests, call) {
      const session = new DecodeSession(call, instance, clock);
      session.listen(requests).catch((error: unknown) => {
        session.replies.end(error);
      });
      session.run().catch((error: unknown) => {
        log.debug({ request: session.requestId, error: String(error) }, 'a decode ended early');
        session.replies.end(error);
      });
      try {
        yield* session.replies;
      } finally {
        session.leave();
      }
    },
  };
}

/** Leading blocks that are in the device: all, and those after which a sequence can begin. */
interface LocalBlocks {
  readonly numLocal: number;
  readonly numUsable: number;
}

class DecodeSession {
  /** Bounded by the tokens that were asked for, and by those of the prompt. */
  readonly replies = new AsyncQueue<DecodeReply>();
  readonly #instance: EngineInstance;
  readonly #clock: Clock;
  /** Aborts when the caller has left, or its replies have ended. */
  readonly #left: ReturnType<typeof linkSignals>;
  readonly #inbox: DecodeRequest[] = [];
  readonly #messageCame = new Condition();
  /** The caller sends nothing more. */
  #callerEnded = false;
  /** How often missing blocks were reported. */
  #round = 0;
  /** Aborts the fetch of this round. */
  #fetching = new AbortController();
  #fetched = nothingFetched;
  /** For the log; empty before the start has come. */
  requestId = '';

  constructor(call: ServedCall, instance: EngineInstance, clock: Clock) {
    this.#instance = instance;
    this.#clock = clock;
    this.#left = linkSignals(call.signal);
  }

  get #signal(): AbortSignal {
    return this.#left.signal;
  }

  async listen(requests: AsyncIterable<DecodeRequest>): Promise<void> {
    for await (const message of requests) {
      if (message.giveUp) {
        if (message.giveUp.round === this.#round) this.#fetching.abort(DONE);
        continue;
      }
      if (this.#inbox.length < MAX_INBOX) this.#inbox.push(message);
      this.#messageCame.notify();
    }
    this.#callerEnded = true;
    this.#messageCame.notify();
  }

  /** Cancels everything that runs for the call (R2). A second call does nothing. */
  leave(): void {
    this.#left.release();
    this.#left.abort();
  }

  async run(): Promise<void> {
    const { start } = await this.#next();
    if (!start) throw new Failure('invalid_request', 'the first message of a Decode call is its start');
    this.requestId = start.context?.requestId ?? '';
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
    this.replies.end();
  }

  /** Resolves with the last token, rejects when refused or left. */
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
    try {
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
          else if (event.kind === 'prompt')
            this.replies.push({ prompt: { tokens: event.tokens }, report: null, finishReason: '' });
        },
      });
    } finally {
      this.leave();
    }
  }

  #reply({ sampled, report, finish }: Extract<SequenceEvent, { kind: 'token' }>): void {
    this.replies.push({
      sampled,
      report: report ? reportOf(report, this.#fetched) : null,
      finishReason: finish ?? '',
    });
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
      this.replies.push({ missing: { block, reason }, report: null, finishReason: '' });
      const more = await this.#answer();
      ({ sources, maxSelfCompute } = more);
      if (left <= maxSelfCompute && sources.length === 0) return;
    }
  }

  async #answer(): Promise<MoreSources> {
    const { more } = await this.#next();
    if (!more) throw new Failure('invalid_request', 'a Decode call starts once');
    return more;
  }

  async #next(): Promise<DecodeRequest> {
    for (;;) {
      const message = this.#inbox.shift();
      if (message) return message;
      if (this.#signal.aborted) throw new Failure('cancelled', 'the caller went away');
      if (this.#callerEnded)
        throw new Failure('invalid_request', 'the caller closed the call before its first message');
      if (await this.#messageCame.within(ASK_TIMEOUT_MS, this.#clock, this.#signal))
        throw new Failure('deadline_exceeded', `the caller sent no message for ${ASK_TIMEOUT_MS} ms`);
    }
  }
}
