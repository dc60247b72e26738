/**
 * Runs one prompt through the cluster and hands over its tokens, each once and in order (R1), whatever fails on the way.
 *
 *   place ──► Decode ══tokens══►             a lost decode instance: place again, with the longer list
 *        └──► Prefill (blocks, not tokens)   a lost prefill: decode reports missing, place a prefill for the rest
 *
 * The token ids are the truth: nothing else is needed to go on elsewhere. When their taker has enough, every call is cancelled (R2).
 */
import { Backoff } from '../../../shared/base/backoff.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { Taken } from '../../../shared/base/handover.ts';
import type { AttemptOptions } from './attempt_options.ts';
import { DecodeAttempt, type GeneratedToken, type TakeToken } from './decode_attempt.ts';
import type { Chosen } from '../../../shared/placement/conductor.ts';
import { sampleWork } from '../../../shared/placement/placed_work.ts';
import { BusyOrder, rankedOf } from './busy_order.ts';
import { ChainCache } from './chain_cache.ts';
import { EmbeddingRun, type Embedding } from './embedding_run.ts';
import { Exclusions } from './exclusions.ts';
import type { Generation } from './generation.ts';
import { expectedAtStart, expectedTokens, learnLength } from './expected_length.ts';
import type { InFlightRequest } from './in_flight_request.ts';
import { neededLength } from './needed_length.ts';
import { predictedMs } from './predicted_ms.ts';
import { preview, type Preview, type PreviewedRequest } from './preview.ts';
import { NO_BLOCKS, RequestChain } from './request_chain.ts';
import type { RequestTrace } from '../record/request_trace.ts';
import { goneFailure, MAX_IDLE_ATTEMPTS, MAX_PAUSE_MS, PAUSE_MS, retryAfter, untilPlaced } from './retry.ts';
import { RewrittenTextFinder } from './rewritten_text.ts';
import type { Placed } from './sample_group.ts';
import { TokenList } from '../../../shared/base/token_list.ts';

/** Dependencies of a {@link Relay}. */
export interface RelayOptions extends AttemptOptions {
  readonly onFailover: () => void;
  /** Bits of a block key, as {@link ChainCache} takes them. */
  readonly keyBits?: number | undefined;
}

/** How long a request may run. */
export interface GenerationBounds {
  /** Its deadline, in ms on the router's clock. */
  readonly untilMs: number;
  readonly signal: AbortSignal;
}

/** Runs the requests of one model through the cluster, with failover, and caches their block chains. */
export class Relay {
  readonly #options: RelayOptions;
  readonly #chains: ChainCache;
  readonly #rewrittenText: RewrittenTextFinder;
  readonly #order: BusyOrder;
  /** Chains of prompts whose length has been asked for, until they are generated. */
  readonly #prepared = new WeakMap<Generation, RequestChain>();

  constructor(options: RelayOptions) {
    this.#options = options;
    this.#chains = new ChainCache(undefined, options.keyBits);
    this.#order = new BusyOrder(options.clock);
    this.#rewrittenText = new RewrittenTextFinder(options);
  }

  /** Returns the embedding of a prompt, a vector of length 1. @throws Failure when it cannot be computed. */
  embed(embedding: Embedding, trace: RequestTrace, untilMs: number, signal: AbortSignal): Promise<Float32Array> {
    return new EmbeddingRun({ ...this.#options, chains: this.#chains, order: this.#order }, embedding, {
      trace,
      untilMs,
      signal,
    }).run();
  }

  /** Returns where a prompt would be placed now; undefined while the model has no engines. Nothing is recorded. */
  preview(asked: PreviewedRequest): Promise<Preview | undefined> {
    return preview(this.#options, asked);
  }

  /** Returns the tokens that a request of this endpoint is expected to generate, at least 1. Its blocks are hashed, as its placement needs them. */
  async expectedLength(generation: Generation, endpoint: string): Promise<number> {
    const { clock, lengths, view } = this.#options;
    const { promptTokens, request } = generation;
    const chain = new RequestChain(clock, request.scope, this.#chains);
    this.#prepared.set(generation, chain);
    const { model } = view;
    if (model) await chain.blocks(model, promptTokens);
    return expectedAtStart(lengths, { generation, chain, endpoint, isConstrained: Boolean(request.constraint) });
  }

  /** Returns the chain of a generation that begins: the prepared one once, since it grows with the tokens of one answer. */
  #chainFor(generation: Generation): RequestChain {
    const prepared = this.#prepared.get(generation);
    this.#prepared.delete(generation);
    return prepared ?? new RequestChain(this.#options.clock, generation.request.scope, this.#chains);
  }

  /**
   * Gives the tokens to `take` until the last one, or until that has enough. @throws Failure when the request cannot be finished; tokens
   * given before stay valid.
   */
  async generate(
    generation: Generation,
    trace: RequestTrace,
    { untilMs, signal }: GenerationBounds,
    take: TakeToken,
  ): Promise<void> {
    const { clock, random } = this.#options;
    const inFlight: InFlightRequest = {
      generation,
      trace,
      signal,
      untilMs,
      tokens: new TokenList(generation.promptTokens),
      chain: this.#chainFor(generation),
      excluded: new Exclusions(clock, random),
      ranked: rankedOf(generation.origin, clock.nowMs()),
      last: undefined,
      backoff: new Backoff({ clock, random, firstMs: PAUSE_MS, mostMs: MAX_PAUSE_MS }),
      numAttempts: 0,
      numRefused: 0,
    };
    let numIdle = 0;
    try {
      while (numIdle < MAX_IDLE_ATTEMPTS) {
        const numBefore = inFlight.tokens.length;
        if (await this.#attempt(inFlight, take)) return;
        const hasMoved = inFlight.tokens.length > numBefore;
        if (hasMoved) inFlight.backoff.reset();
        numIdle = hasMoved || inFlight.last?.code === 'overloaded' ? 0 : numIdle + 1;
      }
    } finally {
      this.#order.leave(inFlight.ranked);
      learnLength(this.#options.lengths, inFlight);
      void this.#rewrittenText.remember(inFlight);
    }
    throw inFlight.last ?? new Failure('internal', 'no attempt was made');
  }

  /** Runs one attempt. Returns true when the request is finished, false when another attempt may help. @throws Failure when none can. */
  async #attempt(inFlight: InFlightRequest, take: TakeToken): Promise<boolean> {
    const { generation, tokens, excluded, trace, signal } = inFlight;
    trace.emit({ kind: 'placing' });
    const placed = await this.#place(inFlight);
    const { chosen } = placed;
    const { name } = chosen.decode.member;
    const { lengths } = this.#options;
    let isBegun = false;
    excluded.beginAttempt();
    inFlight.numAttempts++;
    const attempt = new DecodeAttempt(this.#options, inFlight, placed);
    /** Resolves when the request is compared, before which no token is given; undefined from then on. */
    let comparing = inFlight.numAttempts === 1 ? this.#rewrittenText.compare(inFlight, chosen) : undefined;
    const compared = (): void => {
      comparing = undefined;
    };
    comparing?.then(compared, compared);
    const give = (generated: GeneratedToken): Taken => {
      tokens.push(generated.sampled.token);
      inFlight.numericsClass = chosen.decode.numericsClass;
      if (!isBegun) this.#order.placed(inFlight.ranked, () => predictedMs(chosen, expectedTokens(lengths, inFlight)));
      isBegun = true;
      return take(generated);
    };
    try {
      await attempt.run(signal, (generated) => comparing?.then(() => give(generated)) ?? give(generated));
      return true;
    } catch (error) {
      const failure = await retryAfter(error, { ...this.#options, order: this.#order }, inFlight, chosen.decode);
      const outputTokens = tokens.length - generation.promptTokens.length;
      trace.emit({ kind: 'lost', instance: name, outputTokens, message: failure.message });
      return false;
    }
  }

  /** Places the request, together with the other samples of its prompt. @throws Failure as {@link #decide} does. */
  #place(inFlight: InFlightRequest): Promise<Placed> {
    const { generation, tokens, chain, excluded, signal } = inFlight;
    const lead = (): Promise<Placed> => this.#decide(inFlight);
    if (!generation.group) return lead();
    return generation.group.place(inFlight, {
      lead,
      mayFollow: (decode) =>
        !decode.lost.signal.aborted &&
        decode.isPlaceable &&
        !excluded.has(decode) &&
        (inFlight.numericsClass ?? decode.numericsClass) === decode.numericsClass,
      follow: async (leader) => {
        const { decode } = leader.chosen;
        const { model } = this.#options.view;
        const numTokens = tokens.length;
        // While neither has output, the full blocks are those of the leader.
        const isPrompt = numTokens === leader.numTokens && numTokens === generation.promptTokens.length;
        const blocks = isPrompt || !model ? leader.blocks : await chain.blocks(model, tokens.view());
        if (signal.aborted) throw goneFailure(signal);
        const chosen: Chosen = {
          decode,
          prefill: undefined,
          decodeSources: [],
          prefillSources: [],
          heldTokens: 0,
          maxSelfCompute: numTokens,
          reason: 'a further sample: starts from the blocks of the first one on its instance',
          work: { decode: sampleWork(numTokens), prefill: undefined },
          explanation: undefined,
        };
        return { chosen, blocks, numTokens };
      },
    });
  }

  /** Places the request by itself. @throws Failure as {@link untilPlaced} does. */
  async #decide(inFlight: InFlightRequest): Promise<Placed> {
    const { tokens, chain, excluded, trace } = inFlight;
    const { conductor, view, lengths } = this.#options;
    let blocks = NO_BLOCKS;
    const chosen = await untilPlaced({ ...this.#options, order: this.#order }, inFlight, async (retryAvoided) => {
      const { model } = view;
      blocks = model ? await chain.blocks(model, tokens.view()) : NO_BLOCKS;
      // Decide after the await: the cluster may have changed meanwhile.
      // With prompt log-probabilities the decode instance computes every prompt row, so held blocks are of no use.
      const { promptLogprobs, promptTokens } = inFlight.generation;
      const isReading = promptLogprobs !== undefined && promptLogprobs.length + 1 < promptTokens.length;
      return conductor.decide({
        requestId: trace.id,
        numTokens: tokens.length,
        avoided: excluded,
        retryAvoided,
        maxLength: neededLength(view, inFlight.generation, tokens.length),
        keys: isReading ? NO_BLOCKS.keys : blocks.keys,
        hashes: blocks.hashes,
        outputTokens: expectedTokens(lengths, inFlight),
        waitedMs: trace.elapsedMs,
        targets: trace.record.facts.targets,
        isBegun: inFlight.numAttempts > 0,
        numericsClass: inFlight.numericsClass,
      });
    });
    return { chosen, blocks, numTokens: tokens.length };
  }
}
