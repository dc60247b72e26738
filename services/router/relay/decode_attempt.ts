/**
 * One attempt at a request on one decode instance: a Decode call, a Prefill call alongside it, and another Prefill where one was
 * lost. When the attempt fails, the relay chooses the next instance.
 *
 * A call ends when its consumer stops or its signal aborts. When its instance is lost, the call is aborted with the loss as the
 * reason, because the instance cannot be notified.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { asFailure } from '../../../shared/base/failure.ts';
import { AsyncQueue } from '../../../shared/base/async_queue.ts';
import type { Random } from '../../../shared/base/random.ts';
import { linkSignals, DONE } from '../../../shared/base/signal.ts';
import type { Network } from '../../../shared/net/network.ts';
import type { DecodeReply, DecodeRequest, Report, Source, SampledMessage } from '../../../shared/protocol/messages.ts';
import type { MembersView } from '../../../shared/placement/members_view.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { Chosen, Conductor } from '../../../shared/placement/conductor.ts';
import type { LengthPredictor } from '../conductor/length_predictor.ts';
import type { MissReasons } from '../record/miss_reasons.ts';
import { AttemptMessages } from './attempt_messages.ts';
import { expectedTokens } from './expected_length.ts';
import { explainMisses } from './explained_misses.ts';
import type { InFlightRequest } from './in_flight_request.ts';
import { PlacedCall } from './placed_call.ts';
import { runPlacedPrefill, type PlacedPrefill, type PrefillingAttempt } from './placed_prefill.ts';
import type { FullBlocks } from './request_chain.ts';
import { TOKEN } from '../record/request_events.ts';
import type { Placed } from './sample_group.ts';

/** Prefills placed for one attempt; after that the decode instance computes what is left. */
const MAX_PREFILLS = 4;
/**
 * Longest wait, in ms, for a prefill that has sent all its blocks, and so of an answer for its counts: blocks are streamed before the step
 * that computes them is complete.
 */
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
  readonly lengths: LengthPredictor;
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
  /** Finds why prompts are computed; undefined where nobody asks. */
  readonly misses?: MissReasons | undefined;
  /** Called once for each prompt with the keys of its full blocks, two words each; undefined: nobody counts them. */
  readonly onLookup?: ((keys: Int32Array) => void) | undefined;
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
  /** Number of the attempt, from 1. */
  readonly #number: number;
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
  /** The Decode call, while it is open. */
  #call: PlacedCall | undefined;

  constructor(options: AttemptOptions, inFlight: InFlightRequest, { chosen, blocks, group }: Placed) {
    this.#options = options;
    this.#inFlight = inFlight;
    this.#chosen = chosen;
    this.#blocks = blocks;
    this.#tokens = inFlight.tokens.view();
    this.#messages = new AttemptMessages({
      inFlight,
      tokens: this.#tokens,
      lastDigest: blocks.lastDigest,
      router: options.router,
      digest: options.view.model?.digest,
      group,
      expectedTokens: expectedTokens(options.lengths, inFlight),
      timeoutMs: Math.max(1, Math.ceil(inFlight.untilMs - options.clock.nowMs())),
    });
    this.#sources = chosen.decodeSources;
    // With prompt log-probabilities every prompt row is computed, so held blocks save nothing.
    const heldTokens = inFlight.generation.promptLogprobs ? 0 : chosen.heldTokens;
    const { decode, reason, explanation, prefill } = chosen;
    const placed = { decode: decode.member.name, reason, explanation, heldTokens, isPrefilling: Boolean(prefill) };
    inFlight.trace.emit({ kind: 'placed', ...placed });
    this.#number = inFlight.numAttempts;
  }

  async *run(signal: AbortSignal): AsyncGenerator<GeneratedToken> {
    const { trace, chain, generation } = this.#inFlight;
    const chosen = this.#chosen;
    const { decode: instance } = chosen;
    const { address } = instance.member;
    const requests: RequestQueue = new AsyncQueue();
    const call = (this.#call = new PlacedCall(this.#options.conductor, instance, chosen.work.decode));
    const link = linkSignals(signal, instance.lost.signal);
    const options = { signal: link.signal, timeoutMs: this.#messages.timeoutMs };
    const replies = this.#options.network.open(address, 'decode', requests, options);
    let outcome = 'running';
    let report: Report | undefined;
    try {
      requests.push({ start: this.#messages.start(chosen, call.placement) });
      explainMisses(this.#options, {
        trace,
        chain,
        chosen,
        promptTokens: generation.promptTokens,
        isComputingAll: generation.promptLogprobs !== undefined,
      });
      this.#watchSources(requests, chosen.prefillSources);
      if (chosen.prefill) {
        call.fetch(chosen.decodeSources);
        this.#prefilling = this.#prefillAll(requests, chosen.prefill, chosen);
      } else call.promise(this.#blocks.keys, chosen.heldTokens, chosen.decodeSources);
      for await (const reply of replies) {
        if (reply.missing) this.#answerMissing(requests, reply.missing.block, reply.missing.reason);
        if (reply.prompt) this.#applyPrompt(reply.prompt.tokens);
        // R1: drop a token that arrives twice, before it is counted.
        if (!reply.sampled || reply.sampled.position < this.#tokens.length + this.#numTokens) continue;
        if (this.#numTokens === 0) report = reply.report ?? undefined;
        const generated = this.#applyToken(reply, reply.sampled);
        if (generated.finish) {
          outcome = 'finished';
          trace.emit({ kind: 'attempt', attempt: this.#number, outcome });
          this.#learn('tbtMs');
        }
        yield generated;
      }
      if (outcome === 'running') outcome = 'ended before the last token';
    } catch (error) {
      outcome = signal.aborted ? 'cancelled' : asFailure(error).message;
      throw error;
    } finally {
      // The consumer stopped reading: the client disconnected, or a stop string matched.
      if (outcome === 'running') outcome = signal.aborted ? 'cancelled' : 'stopped';
      call.end();
      this.#unwatch();
      link.release();
      if (outcome === 'finished') void this.#restOfPrefill(report);
      else this.#ended.abort(DONE);
      requests.end();
      void replies.return?.();
      if (outcome !== 'finished') trace.emit({ kind: 'attempt', attempt: this.#number, outcome });
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
  async #restOfPrefill(report: Report | undefined): Promise<void> {
    const { clock } = this.#options;
    const { cachedTokens = 0, fetchedTokens = 0 } = report ?? {};
    if (this.#prefilling && !this.#unwanted.signal.aborted && cachedTokens + fetchedTokens >= this.#numFull) {
      const waiting = new AbortController();
      await Promise.race([this.#prefilling, clock.sleep(REST_MS, waiting.signal)]);
      waiting.abort(DONE);
    }
    this.#ended.abort(DONE);
  }

  /** Appends log-probabilities of prompt tokens, in order of position; tokens that arrive twice are dropped (R1). */
  #applyPrompt(tokens: readonly SampledMessage[]): void {
    const known = this.#inFlight.generation.promptLogprobs;
    for (const token of tokens) if (token.position === (known?.length ?? 0) + 1) known?.push(token);
  }

  /** Lets later predictions know how this request's time compares with what the policy predicted. */
  #learn(time: 'ttftMs' | 'tbtMs'): void {
    const { record, elapsedMs } = this.#inFlight.trace;
    const prediction = this.#chosen.explanation?.uncorrected;
    const ms = record.measured(elapsedMs)[time];
    // Further samples of a prompt start after the first one's.
    if (prediction && ms !== undefined && record.sampleOf === undefined)
      this.#options.conductor.correction.learn(time, prediction, ms);
  }

  #applyToken(reply: DecodeReply, sampled: SampledMessage): GeneratedToken {
    const { trace, generation } = this.#inFlight;
    if (this.#numTokens === 0) {
      this.#call?.computed();
      const report = reply.report ?? undefined;
      if (report) this.#options.conductor.learn(this.#chosen.decode, report);
      const isFirst = trace.record.ttftMs === undefined;
      trace.emit({ kind: 'firstToken', attempt: this.#number, report, isFirst });
      if (isFirst) this.#learn('ttftMs');
    }
    // The one token of a prompt that is wanted alone is no output.
    if (!generation.isPromptOnly) trace.emit(TOKEN);
    this.#numTokens++;
    const finish = reply.finishReason === 'stop' || reply.finishReason === 'length' ? reply.finishReason : undefined;
    return { sampled, finish };
  }

  /** Runs the prefill of a placement, and with it the second one of a pipeline; resolves when the first of these has ended. */
  #prefillAll(
    requests: RequestQueue,
    instance: Instance,
    { prefillSources, heldTokens, work, second }: Chosen,
  ): Promise<void> {
    const isFirst = this.#numPrefills === 0;
    const expectedTokens = isFirst ? Math.max(0, this.#numFull - this.#chosen.heldTokens) : 0;
    this.#numPrefills++;
    // Its own, also when the next round has begun by the time that it ends.
    const unwanted = (this.#unwanted = new AbortController());
    const { tokens = 0, patienceMs = 0 } = second ?? {};
    const attempt: PrefillingAttempt = {
      ...this.#options,
      inFlight: this.#inFlight,
      messages: this.#messages,
      keys: this.#blocks.keys,
      number: this.#number,
      ended: this.#ended.signal,
    };
    const run = (part: PlacedPrefill): Promise<void> => runPlacedPrefill(part, attempt);
    const round = this.#numMissing;
    if (second) {
      // Without it the other one computes all.
      void run({ ...second, work: work.second, heldTokens, expectedTokens: isFirst ? tokens : 0, unwanted });
    }
    return run({
      instance,
      sources: prefillSources,
      work: work.prefill,
      heldTokens,
      patienceMs,
      unwanted,
      onFailed: () => {
        requests.push({ giveUp: { round } });
      },
      expectedTokens: Math.max(0, expectedTokens - tokens),
    });
  }

  /**
   * Ends this round's fetches as soon as one of their holders is lost. A lost holder may only be silent, which the fetching instances
   * would not notice. A prefill that fetches from the lost holder ends with the round: the decode instance may be busy or hang, and
   * would let it wait.
   */
  #watchSources(requests: RequestQueue, prefillSources: readonly Source[]): void {
    this.#unwatch();
    const round = this.#numMissing;
    const ofPrefill = new Set(prefillSources.map(({ address }) => address));
    const addresses = new Set([...this.#sources.map(({ address }) => address), ...ofPrefill]);
    const { decode: own } = this.#chosen;
    const holders = this.#options.view.all().filter((one) => one !== own && addresses.has(one.member.address));
    const giveUp = (): void => {
      requests.push({ giveUp: { round } });
    };
    const giveUpPrefill = (): void => {
      this.#unwanted.abort(DONE);
      giveUp();
    };
    const watched = holders.map(({ lost, member }) => ({
      lost,
      onLost: ofPrefill.has(member.address) ? giveUpPrefill : giveUp,
    }));
    for (const { lost, onLost } of watched) lost.signal.addEventListener('abort', onLost, { once: true });
    this.#unwatch = () => {
      for (const { lost, onLost } of watched) lost.signal.removeEventListener('abort', onLost);
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
    this.#unwanted.abort(DONE);
    this.#excludeHolderOf(block);
    trace.emit({ kind: 'missed', instance: decode.member.name, block, reason });
    const asked = {
      requestId: trace.id,
      numTokens,
      keys: this.#blocks.keys,
      hashes: this.#blocks.hashes,
      maxLength: numTokens + 1,
      avoided: excluded,
      decode: { instance: decode, from: block },
    };
    const outcome = this.#numPrefills < MAX_PREFILLS ? this.#options.conductor.decide(asked) : undefined;
    const placement = outcome?.kind === 'place' ? outcome.chosen : undefined;
    if (!placement?.prefill) {
      if (this.#numTokens === 0)
        this.#call?.promise(this.#blocks.keys, placement?.heldTokens ?? 0, placement?.decodeSources ?? []);
      this.#sources = placement?.decodeSources ?? [];
      this.#watchSources(requests, []);
      requests.push({ more: { sources: this.#sources, maxSelfCompute: numTokens } });
      return;
    }
    this.#sources = placement.decodeSources;
    this.#watchSources(requests, placement.prefillSources);
    this.#prefilling = this.#prefillAll(requests, placement.prefill, placement);
    requests.push({ more: { sources: placement.decodeSources, maxSelfCompute: placement.maxSelfCompute } });
  }
}
