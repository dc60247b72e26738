/**
 * One attempt at a request on one decode instance: a Decode call, a Prefill call beside it, and another Prefill where one was
 * lost. When the attempt fails, the relay chooses the next instance.
 *
 * A call ends when its consumer stops or its signal aborts. When its instance is lost, the call is aborted with the loss as the
 * reason, because the instance cannot be notified.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { asFailure, type Failure } from '../../../shared/base/failure.ts';
import { AsyncQueue } from '../../../shared/base/async_queue.ts';
import type { Random } from '../../../shared/base/random.ts';
import { linkSignals, DONE } from '../../../shared/base/signal.ts';
import type { Network } from '../../../shared/net/network.ts';
import type { DecodeReply, DecodeRequest, Report, Source, SampledMessage } from '../../../shared/protocol/messages.ts';
import type { MembersView } from '../cluster/members_view.ts';
import type { Instance } from '../cluster/instance.ts';
import type { Chosen, Conductor } from '../conductor/conductor.ts';
import { AttemptMessages } from './attempt_messages.ts';
import type { InFlightRequest } from './in_flight_request.ts';
import { runPrefill } from './prefill_run.ts';
import type { FullBlocks } from './request_chain.ts';
import type { AttemptEntry, PrefillEntry } from './request_counts.ts';
import type { Placed } from './sample_group.ts';

/** Prefills placed for one attempt; after that the decode instance computes what is left. */
const MAX_PREFILLS = 4;
/** Longest wait, in ms, for a prefill that has sent all its blocks: blocks are streamed before the step that computes them is complete. */
const REST_MS = 1_000;

/** One output token of a request. */
export interface GeneratedToken {
  readonly sampled: SampledMessage;
  /** Reason why the output ended; only with the last token. */
  readonly finish: 'stop' | 'length' | undefined;
}

/** Dependencies of a {@link DecodeAttempt}. */
export interface AttemptOptions {
  /** The epoch of this router. */
  readonly router: string;
  readonly view: MembersView;
  readonly conductor: Conductor;
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
}

/** Messages from this router to the decode instance; bounded by the rounds of an attempt. */
type RequestQueue = AsyncQueue<DecodeRequest>;

/** One attempt at a request: runs the Decode call and its prefills, and yields the output tokens. */
export class DecodeAttempt {
  readonly #options: AttemptOptions;
  readonly #inFlight: InFlightRequest;
  readonly #chosen: Chosen;
  /** Full blocks before the tail of {@link #tokens}. */
  readonly #blocks: FullBlocks;
  /** The request's tokens when the attempt began: the prompt and the output so far. */
  readonly #tokens: Uint32Array;
  readonly #messages: AttemptMessages;
  readonly #attempt: AttemptEntry;
  readonly #ended = new AbortController();
  #numPrefills = 0;
  #numMissing = 0;
  /** Aborts the prefill of this round, once nobody waits for its blocks any more. */
  #unwanted = new AbortController();
  /** Sources that the decode instance fetches blocks from in this round. */
  #sources: readonly Source[];
  /** The prefill of this round, until it has ended. */
  #prefilling: Promise<void> | undefined;
  /** Removes the listeners that `#watchSources` added for the holders of this round. */
  #unwatch: () => void = () => undefined;
  /** Output tokens received in this attempt. */
  #numTokens = 0;

  constructor(options: AttemptOptions, inFlight: InFlightRequest, { chosen, blocks, group }: Placed) {
    this.#options = options;
    this.#inFlight = inFlight;
    this.#chosen = chosen;
    this.#blocks = blocks;
    this.#tokens = inFlight.tokens.view();
    this.#messages = new AttemptMessages({
      ...{ inFlight, tokens: this.#tokens, lastDigest: blocks.lastDigest, router: options.router },
      ...{ digest: options.view.model?.digest, group },
      timeoutMs: Math.max(1, Math.ceil(inFlight.untilMs - options.clock.nowMs())),
    });
    this.#sources = chosen.decodeSources;
    // With prompt log-probabilities every prompt row is computed, so held blocks save nothing.
    const heldTokens = inFlight.generation.promptLogprobs ? 0 : chosen.heldTokens;
    inFlight.trace.placed(heldTokens);
    this.#attempt = inFlight.generation.counts.begin(chosen.decode.member.name, chosen.reason);
  }

  async *run(signal: AbortSignal): AsyncGenerator<GeneratedToken> {
    const { trace } = this.#inFlight;
    const chosen = this.#chosen;
    const { decode: instance } = chosen;
    const { address } = instance.member;
    const requests: RequestQueue = new AsyncQueue();
    const placement = instance.place();
    requests.push({ start: this.#messages.start(this.#chosen, placement) });
    const link = linkSignals(signal, instance.lost.signal);
    const options = { signal: link.signal, timeoutMs: this.#messages.timeoutMs };
    const replies = this.#options.network.open(address, 'decode', requests, options);
    try {
      trace.phase = chosen.prefill ? 'prefilling' : 'loading';
      this.#watchSources(requests, chosen.prefillSources);
      if (chosen.prefill) this.#prefilling = this.#prefill(requests, chosen.prefill, chosen.prefillSources);
      for await (const reply of replies) {
        if (reply.missing) this.#answerMissing(requests, reply.missing.block, reply.missing.reason);
        if (reply.prompt) this.#applyPrompt(reply.prompt.tokens);
        // R1: drop a token that arrives twice, before it is counted.
        if (!reply.sampled || reply.sampled.position < this.#tokens.length + this.#numTokens) continue;
        const generated = this.#applyToken(reply, reply.sampled);
        if (generated.finish) this.#attempt.outcome = 'finished';
        yield generated;
      }
      if (this.#attempt.outcome === 'running') this.#attempt.outcome = 'ended before the last token';
    } catch (error) {
      this.#attempt.outcome = signal.aborted ? 'cancelled' : asFailure(error).message;
      throw error;
    } finally {
      // The consumer stopped reading: the client disconnected, or a stop string matched.
      if (this.#attempt.outcome === 'running') this.#attempt.outcome = signal.aborted ? 'cancelled' : 'stopped';
      instance.end(placement);
      this.#unwatch();
      link.release();
      if (this.#attempt.outcome === 'finished') void this.#restOfPrefill();
      else this.#ended.abort();
      requests.end();
      void replies.return?.();
    }
  }

  /** Number of tokens in the full blocks. */
  get #numFull(): number {
    // Two words a key.
    return (this.#blocks.keys.length / 2) * (this.#options.view.model?.format.blockSize ?? 0);
  }

  /**
   * Ends the attempt after its last prefill. When all blocks have arrived, the prefill is about to end; aborted now, its last blocks
   * would not stay on its device, and its computed tokens would not be counted. The client already has its last token.
   */
  async #restOfPrefill(): Promise<void> {
    const { clock } = this.#options;
    const { cachedTokens = 0, fetchedTokens = 0 } = this.#attempt.report ?? {};
    if (this.#prefilling && !this.#unwanted.signal.aborted && cachedTokens + fetchedTokens >= this.#numFull) {
      const waiting = new AbortController();
      await Promise.race([this.#prefilling, clock.sleep(REST_MS, waiting.signal)]);
      waiting.abort(DONE);
    }
    this.#ended.abort();
  }

  /** Appends log-probabilities of prompt tokens, in order of position; tokens that arrive twice are dropped (R1). */
  #applyPrompt(tokens: readonly SampledMessage[]): void {
    const known = this.#inFlight.generation.promptLogprobs;
    for (const token of tokens) if (token.position === (known?.length ?? 0) + 1) known?.push(token);
  }

  #applyToken(reply: DecodeReply, sampled: SampledMessage): GeneratedToken {
    const { trace, generation } = this.#inFlight;
    if (this.#numTokens === 0) {
      this.#attempt.report = reply.report ?? undefined;
      if (reply.report) this.#options.conductor.learn(this.#chosen.decode, reply.report);
      if (trace.ttftMs === undefined) trace.firstToken(this.#attempt.report);
      trace.phase = 'decoding';
    }
    generation.counts.outputTokens++;
    this.#numTokens++;
    const finish = reply.finishReason === 'stop' || reply.finishReason === 'length' ? reply.finishReason : undefined;
    return { sampled, finish };
  }

  /**
   * Runs a prefill beside the decode call until the prefill ends, the attempt ends or another round begins. Success is only logged and
   * counted; a failure also excludes the instance, and ends this round's fetches.
   */
  async #prefill(requests: RequestQueue, instance: Instance, sources: Chosen['prefillSources']): Promise<void> {
    const { trace, excluded, generation } = this.#inFlight;
    const { counts } = generation;
    const { network, clock, random, conductor } = this.#options;
    const { name } = instance.member;
    const entry: PrefillEntry = {
      name,
      readyTokens: 0,
      computedTokens: 0,
      expectedTokens: this.#numPrefills === 0 ? Math.max(0, this.#numFull - this.#chosen.heldTokens) : 0,
      outcome: 'running',
      report: undefined,
    };
    this.#attempt.prefills.push(entry);
    const round = this.#numMissing;
    this.#numPrefills++;
    // Its own, also when the next round has begun by the time that it ends.
    const unwanted = (this.#unwanted = new AbortController());
    const link = linkSignals(this.#ended.signal, unwanted.signal, instance.lost.signal);
    const placement = instance.place();
    try {
      const request = this.#messages.prefill(sources, placement);
      const onReport = (report: Report): void => {
        entry.report = report;
        conductor.learn(instance, report);
      };
      const onAgain = ({ message }: Failure): void => {
        trace.note(`prefill ${name} is asked again: ${message}`);
      };
      await runPrefill(
        {
          ...{ network, clock, random, instance, request, entry, onReport, onAgain },
          timeoutMs: this.#messages.timeoutMs,
        },
        link.signal,
      );
      counts.prefilled(entry, 'finished');
      if (trace.phase === 'prefilling') trace.phase = 'loading';
    } catch (error) {
      const failure = asFailure(error);
      // A process that dies breaks its prefill and the fetches from it, in any order: its prefill has failed, also when the decode
      // instance has reported missing blocks in the meantime.
      const isLost = failure.retry === 'elsewhere';
      if (this.#ended.signal.aborted || (unwanted.signal.aborted && !isLost)) {
        counts.prefilled(entry, 'cancelled');
        return;
      }
      excluded.failed(instance);
      if (failure.code === 'instance_lost') instance.failed(failure.message);
      trace.note(`prefill ${name} failed at ${entry.readyTokens} tokens: ${failure.message}`);
      counts.prefilled(entry, `failed: ${failure.message}`);
      // The stream of a dead holder ends by itself, but fetches from a silent one would keep waiting.
      if (!unwanted.signal.aborted) requests.push({ giveUp: { round } });
    } finally {
      link.release();
      instance.end(placement);
    }
  }

  /**
   * Ends this round's fetches as soon as one of their holders is lost, those of the prefill's fetches included. A lost holder may only
   * be silent, which the fetching instances would not notice.
   */
  #watchSources(requests: RequestQueue, prefillSources: readonly Source[]): void {
    this.#unwatch();
    const round = this.#numMissing;
    const addresses = new Set([...this.#sources, ...prefillSources].map(({ address }) => address));
    const { decode: own } = this.#chosen;
    const holders = this.#options.view.all().filter((one) => one !== own && addresses.has(one.member.address));
    const giveUp = (): void => {
      requests.push({ giveUp: { round } });
    };
    for (const { lost } of holders) lost.signal.addEventListener('abort', giveUp, { once: true });
    this.#unwatch = () => {
      for (const { lost } of holders) lost.signal.removeEventListener('abort', giveUp);
    };
  }

  /** Excludes the holder that should have delivered `block` for the rest of this attempt, unless it is the decode instance. */
  #excludeHolderOf(block: number): void {
    const source = this.#sources.find(({ start, end }) => start <= block && block < end);
    const holder = this.#options.view.all().find(({ member }) => member.address === source?.address);
    if (holder && holder !== this.#chosen.decode) this.#inFlight.excluded.unhelpful(holder);
  }

  /**
   * Answers a decode instance that has blocks [0, block) and cannot fetch the next one: sends other sources, with another prefill when
   * the conductor chooses one.
   */
  #answerMissing(requests: RequestQueue, block: number, reason: string): void {
    const { excluded, trace } = this.#inFlight;
    const { decode } = this.#chosen;
    const numTokens = this.#tokens.length;
    this.#numMissing++;
    // Abort the previous round's prefill: no fetch waits for its blocks any more.
    this.#unwanted.abort();
    this.#excludeHolderOf(block);
    trace.note(`${decode.member.name} misses blocks from ${block}: ${reason}`);
    const asked = {
      requestId: trace.id,
      numTokens,
      keys: this.#blocks.keys,
      maxLength: numTokens + 1,
      avoided: excluded,
      decode: { instance: decode, from: block },
    };
    const outcome = this.#numPrefills < MAX_PREFILLS ? this.#options.conductor.decide(asked) : undefined;
    const placement = outcome?.kind === 'place' ? outcome.chosen : undefined;
    if (!placement?.prefill) {
      this.#sources = placement?.decodeSources ?? [];
      this.#watchSources(requests, []);
      requests.push({ more: { sources: this.#sources, maxSelfCompute: numTokens } });
      return;
    }
    trace.phase = 'prefilling';
    this.#sources = placement.decodeSources;
    this.#watchSources(requests, placement.prefillSources);
    this.#prefilling = this.#prefill(requests, placement.prefill, placement.prefillSources);
    requests.push({ more: { sources: placement.decodeSources, maxSelfCompute: placement.maxSelfCompute } });
  }
}
