/**
 * Computes the embedding of one prompt on one instance, a prefill or a decode one, whatever fails on the way.
 *
 *   place ──► Embed ──► vector             a lost or busy instance: place again
 *
 * The whole prompt runs on the instance, which fetches the blocks that others hold. When the consumer stops, the call is cancelled (R2).
 */
import { Backoff } from '../../../shared/base/backoff.ts';
import { asFailure, Failure } from '../../../shared/base/failure.ts';
import { linkSignals } from '../../../shared/base/signal.ts';
import type { CacheScope } from '../../../shared/kv/format.ts';
import { askOnce } from '../../../shared/net/network.ts';
import { Pooling, type EmbedRequest } from '../../../shared/protocol/messages.ts';
import { unpackFloats } from '../../../shared/protocol/packing.ts';
import type { Chosen } from '../../../shared/placement/conductor.ts';
import { callContext, wireChain } from './attempt_messages.ts';
import { rankedOf, type BusyOrder } from './busy_order.ts';
import type { ChainCache } from './chain_cache.ts';
import type { AttemptOptions } from './attempt_options.ts';
import { Exclusions } from './exclusions.ts';
import type { Origin } from './generation.ts';
import { predictedMs } from './predicted_ms.ts';
import { explainMisses } from './explained_misses.ts';
import { PlacedCall } from './placed_call.ts';
import { NO_BLOCKS, RequestChain, type FullBlocks } from './request_chain.ts';
import type { RequestTrace } from '../record/request_trace.ts';
import { MAX_IDLE_ATTEMPTS, MAX_PAUSE_MS, PAUSE_MS, retryAfter, untilPlaced, type RetryState } from './retry.ts';

/** One prompt whose embedding is wanted. */
export interface Embedding {
  readonly origin: Origin;
  readonly promptTokens: Uint32Array;
  readonly scope: CacheScope;
  readonly pooling: Pooling;
}

/** Dependencies of an {@link EmbeddingRun}. */
export interface EmbeddingRunOptions extends AttemptOptions {
  readonly chains: ChainCache;
  readonly order: BusyOrder;
  readonly onFailover: () => void;
}

/** One embedding on its way through its attempts. */
export class EmbeddingRun {
  readonly #options: EmbeddingRunOptions;
  readonly #embedding: Embedding;
  readonly #state: RetryState;
  readonly #chain: RequestChain;
  #blocks: FullBlocks = NO_BLOCKS;
  #numAttempts = 0;

  constructor(
    options: EmbeddingRunOptions,
    embedding: Embedding,
    request: { readonly trace: RequestTrace; readonly untilMs: number; readonly signal: AbortSignal },
  ) {
    const { clock, random, chains } = options;
    this.#options = options;
    this.#embedding = embedding;
    this.#chain = new RequestChain(clock, embedding.scope, chains);
    this.#state = {
      ...request,
      ranked: rankedOf(embedding.origin, clock.nowMs()),
      excluded: new Exclusions(clock, random),
      backoff: new Backoff({ clock, random, firstMs: PAUSE_MS, mostMs: MAX_PAUSE_MS }),
      last: undefined,
    };
  }

  /** Returns the embedding, a vector of length 1. @throws Failure when it cannot be computed. */
  async run(): Promise<Float32Array> {
    try {
      return await this.#untilComputed();
    } finally {
      this.#options.order.leave(this.#state.ranked);
    }
  }

  async #untilComputed(): Promise<Float32Array> {
    for (let numIdle = 0; numIdle < MAX_IDLE_ATTEMPTS;) {
      this.#state.trace.emit({ kind: 'placing' });
      const chosen = await untilPlaced(this.#options, this.#state, (retryAvoided) => this.#decide(retryAvoided));
      try {
        const vector = await this.#attempt(chosen);
        this.#options.order.placed(this.#state.ranked, () => predictedMs(chosen, 0));
        return vector;
      } catch (error) {
        const failure = await retryAfter(error, this.#options, this.#state, chosen.decode);
        const instance = chosen.decode.member.name;
        this.#state.trace.emit({ kind: 'lost', instance, message: failure.message });
        if (failure.code !== 'overloaded') numIdle++;
      }
    }
    throw this.#state.last ?? new Failure('internal', 'no attempt was made');
  }

  async #decide(retryAvoided: boolean): ReturnType<Parameters<typeof untilPlaced>[2]> {
    const { view, conductor } = this.#options;
    const { promptTokens, pooling } = this.#embedding;
    const { trace, excluded } = this.#state;
    const { model } = view;
    this.#blocks = model ? await this.#chain.blocks(model, promptTokens) : NO_BLOCKS;
    return conductor.decide({
      requestId: trace.id,
      numTokens: promptTokens.length,
      maxLength: promptTokens.length,
      avoided: excluded,
      retryAvoided,
      // The mean needs the hidden states of all tokens, so held blocks are of no use.
      keys: pooling === Pooling.MEAN ? NO_BLOCKS.keys : this.#blocks.keys,
      hashes: this.#blocks.hashes,
      isEmbedding: true,
      outputTokens: 0,
      waitedMs: trace.elapsedMs,
    });
  }

  async #attempt({ decode: instance, work, ...chosen }: Chosen): Promise<Float32Array> {
    const { decodeSources: sources, heldTokens, reason, explanation } = chosen;
    const { network, clock, view, conductor } = this.#options;
    const { trace, signal, untilMs } = this.#state;
    this.#numAttempts++;
    const attempt = this.#numAttempts;
    const placed = { decode: instance.member.name, reason, explanation, heldTokens, isPrefilling: true };
    trace.emit({ kind: 'placed', ...placed });
    explainMisses(this.#options, {
      trace,
      chain: this.#chain,
      chosen,
      promptTokens: this.#embedding.promptTokens,
      isComputingAll: this.#embedding.pooling === Pooling.MEAN,
    });
    const call = new PlacedCall(conductor, instance, work.decode).promise(this.#blocks.keys, heldTokens, sources);
    const link = linkSignals(signal, instance.lost.signal);
    const addresses = new Set(sources.map(({ address }) => address));
    const holders = view.all().filter((one) => one !== instance && addresses.has(one.member.address));
    // A lost holder may only be silent, which the fetching instance would not notice.
    const giveUp = (): void => {
      link.abort(new Failure('session_broken', 'a holder of its blocks was lost'));
    };
    for (const { lost } of holders) lost.signal.addEventListener('abort', giveUp, { once: true });
    const timeoutMs = Math.max(1, Math.ceil(untilMs - clock.nowMs()));
    let outcome = 'running';
    try {
      const request = this.#request(sources, call.placement, timeoutMs);
      const options = { signal: link.signal, timeoutMs };
      const { values, report } = await askOnce(network, instance.member.address, 'embed', request, options);
      if (report) conductor.learn(instance, report);
      trace.emit({ kind: 'firstToken', attempt, report: report ?? undefined, isFirst: true });
      outcome = 'finished';
      return unpackFloats(values);
    } catch (error) {
      outcome = signal.aborted ? 'cancelled' : asFailure(error).message;
      throw error;
    } finally {
      for (const { lost } of holders) lost.signal.removeEventListener('abort', giveUp);
      call.end();
      link.release();
      trace.emit({ kind: 'attempt', attempt, outcome });
    }
  }

  #request(sources: EmbedRequest['sources'], placement: number, timeoutMs: number): EmbedRequest {
    const { promptTokens, scope, pooling, origin } = this.#embedding;
    const { trace } = this.#state;
    const { router, view } = this.#options;
    return {
      context: callContext(trace, this.#numAttempts, { ...origin, timeoutMs, router, placement, expectedTokens: 0 }),
      ...wireChain(view.model?.digest, promptTokens, this.#blocks.lastDigest),
      sources,
      scope,
      pooling,
    };
  }
}
