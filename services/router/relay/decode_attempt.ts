/**
 * One decode instance's turn at a request, with the prefills it needs: one Decode call, a Prefill call beside it, another where
 * one was lost. Which instance comes next when this one fails is the relay's to say.
 *
 * Calls end with their reader or their signal; one whose instance is lost with that as the reason, since nothing can be said to it.
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

/** Prefills placed for one attempt; after that the decode instance computes what is left. */
const MAX_PREFILLS = 4;
/** Blocks leave before the step that computes them is done: the rest of it is waited for no longer than this. */
const REST_MS = 1_000;

/** One output token of a request. */
export interface GeneratedToken {
  readonly sampled: SampledMessage;
  /** With the last token. */
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

/** One decode instance's turn, with the prefills it needs. */
export class DecodeAttempt {
  readonly #options: AttemptOptions;
  readonly #inFlight: InFlightRequest;
  readonly #chosen: Chosen;
  /** Before the tail of {@link #tokens}. */
  readonly #blocks: FullBlocks;
  /** The request's tokens when the attempt began: the prompt and the output so far. */
  readonly #tokens: Uint32Array;
  readonly #messages: AttemptMessages;
  readonly #attempt: AttemptEntry;
  readonly #ended = new AbortController();
  #numPrefills = 0;
  #numMissing = 0;
  /** Ends the prefill of this round, which nobody waits for any more. */
  #unwanted = new AbortController();
  /** Sources that the decode instance fetches blocks from in this round. */
  #sources: readonly Source[];
  /** The prefill of this round, until it has ended. */
  #prefilling: Promise<void> | undefined;
  /** No longer looks after the holders of the last round. */
  #unwatch: () => void = () => undefined;
  /** Output tokens received in this attempt. */
  #numTokens = 0;

  constructor(options: AttemptOptions, inFlight: InFlightRequest, chosen: Chosen, blocks: FullBlocks) {
    this.#options = options;
    this.#inFlight = inFlight;
    this.#chosen = chosen;
    this.#blocks = blocks;
    this.#tokens = inFlight.tokens.view();
    this.#messages = new AttemptMessages({
      ...{ inFlight, tokens: this.#tokens, lastDigest: blocks.lastDigest, router: options.router },
      digest: options.view.model?.digest,
      timeoutMs: Math.max(1, Math.ceil(inFlight.untilMs - options.clock.nowMs())),
    });
    this.#sources = chosen.decodeSources;
    // With prompt log-probabilities every prompt row is computed, so held blocks save nothing.
    const heldTokens = inFlight.generation.promptLogprobs ? 0 : chosen.heldTokens;
    inFlight.record.placed(heldTokens);
    this.#attempt = inFlight.generation.counts.begin(chosen.decode.member.name, chosen.reason);
  }

  async *run(signal: AbortSignal): AsyncGenerator<GeneratedToken> {
    const { record } = this.#inFlight;
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
      record.phase = chosen.prefill ? 'prefilling' : 'loading';
      this.#watchSources(requests, chosen.prefillSources);
      if (chosen.prefill) this.#prefilling = this.#prefill(requests, chosen.prefill, chosen.prefillSources);
      for await (const reply of replies) {
        if (reply.missing) this.#answerMissing(requests, reply.missing.block, reply.missing.reason);
        if (reply.prompt) this.#takePrompt(reply.prompt.tokens);
        // R1: what comes twice is dropped before it counts.
        if (!reply.sampled || reply.sampled.position < this.#tokens.length + this.#numTokens) continue;
        const generated = this.#take(reply, reply.sampled);
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

  /** Tokens of full blocks. */
  get #numFull(): number {
    // Two words a key.
    return (this.#blocks.keys.length / 2) * (this.#options.view.model?.format.blockSize ?? 0);
  }

  /**
   * Ends the attempt once its last prefill has: all blocks of that came, and it is about to end. Cut off now, its last blocks would not
   * stay in its device, and what it has computed would not be counted. The client has its last token by then, and waits for nothing.
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

  /** R1: what comes twice is dropped. */
  #takePrompt(tokens: readonly SampledMessage[]): void {
    const known = this.#inFlight.generation.promptLogprobs;
    for (const token of tokens) if (token.position === (known?.length ?? 0) + 1) known?.push(token);
  }

  #take(reply: DecodeReply, sampled: SampledMessage): GeneratedToken {
    const { record, generation } = this.#inFlight;
    if (this.#numTokens === 0) {
      this.#attempt.report = reply.report ?? undefined;
      if (reply.report) this.#options.conductor.learn(this.#chosen.decode, reply.report);
      if (record.ttftMs === undefined) record.firstToken(this.#attempt.report);
      record.phase = 'decoding';
    }
    generation.counts.outputTokens++;
    this.#numTokens++;
    const finish = reply.finishReason === 'stop' || reply.finishReason === 'length' ? reply.finishReason : undefined;
    return { sampled, finish };
  }

  /**
   * A prefill runs beside the decode call until it ends, the attempt does, or another round begins; its end is only news for
   * people, except that a failure excludes its instance.
   */
  async #prefill(requests: RequestQueue, instance: Instance, sources: Chosen['prefillSources']): Promise<void> {
    const { record, excluded, generation } = this.#inFlight;
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
    this.#unwanted = new AbortController();
    const link = linkSignals(this.#ended.signal, this.#unwanted.signal, instance.lost.signal);
    const placement = instance.place();
    try {
      const request = this.#messages.prefill(sources, placement);
      const onReport = (report: Report): void => {
        entry.report = report;
        conductor.learn(instance, report);
      };
      const onAgain = ({ message }: Failure): void => {
        record.note(`prefill ${name} is asked again: ${message}`);
      };
      await runPrefill(
        {
          ...{ network, clock, random, instance, request, entry, onReport, onAgain },
          timeoutMs: this.#messages.timeoutMs,
        },
        link.signal,
      );
      counts.prefilled(entry, 'finished');
      if (record.phase === 'prefilling') record.phase = 'loading';
    } catch (error) {
      if (this.#ended.signal.aborted || this.#unwanted.signal.aborted) {
        counts.prefilled(entry, 'cancelled');
        return;
      }
      const failure = asFailure(error);
      excluded.failed(instance);
      if (failure.code === 'instance_lost') instance.failed(failure.message);
      record.note(`prefill ${name} failed at ${entry.readyTokens} tokens: ${failure.message}`);
      counts.prefilled(entry, `failed: ${failure.message}`);
      // A dead holder's stream ends by itself; a silent one's would be waited for.
      requests.push({ giveUp: { round } });
    } finally {
      link.release();
      instance.end(placement);
    }
  }

  /**
   * A holder that is lost while it is fetched from may only be silent, and nobody who fetches would know: this round's fetches,
   * and a prefill that waits for it, are given up at once.
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

  /** The decode instance holds blocks [0, block) and nobody gives it the next one. */
  #answerMissing(requests: RequestQueue, block: number, reason: string): void {
    const { excluded, record } = this.#inFlight;
    const { decode } = this.#chosen;
    const numTokens = this.#tokens.length;
    this.#numMissing++;
    // Abort the previous round's prefill: no fetch waits for its blocks any more.
    this.#unwanted.abort();
    this.#excludeHolderOf(block);
    record.note(`${decode.member.name} misses blocks from ${block}: ${reason}`);
    const asked = {
      requestId: record.id,
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
    record.phase = 'prefilling';
    this.#sources = placement.decodeSources;
    this.#watchSources(requests, placement.prefillSources);
    this.#prefilling = this.#prefill(requests, placement.prefill, placement.prefillSources);
    requests.push({ more: { sources: placement.decodeSources, maxSelfCompute: placement.maxSelfCompute } });
  }
}
