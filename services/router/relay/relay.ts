/**
 * Runs one prompt through the cluster and yields its tokens, each once and in order (R1), whatever fails on the way.
 *
 *   place ──► Decode ══tokens══►             a lost decode instance: place again, with the longer list
 *        └──► Prefill (blocks, not tokens)   a lost prefill: decode reports missing, place a prefill for the rest
 *
 * The token ids are the truth: nothing else is needed to go on elsewhere. When the consumer stops, every call is cancelled (R2).
 */
import { Backoff } from '../../../shared/base/backoff.ts';
import { asFailure, Failure } from '../../../shared/base/failure.ts';
import { pause } from '../../../shared/base/pause.ts';
import { DecodeAttempt, type AttemptOptions, type GeneratedToken } from './decode_attempt.ts';
import type { Chosen } from '../conductor/conductor.ts';
import { ChainCache } from './chain_cache.ts';
import { Exclusions } from './exclusions.ts';
import type { Generation } from './generation.ts';
import type { InFlightRequest } from './in_flight_request.ts';
import { NO_BLOCKS, RequestChain } from './request_chain.ts';
import type { RequestTrace } from './request_log.ts';
import type { Placed } from './sample_group.ts';
import { TokenList } from '../../../shared/base/token_list.ts';

/**
 * Upper bound of consecutive failed attempts without a new token (P1). Attempts at busy instances do not count: they go on until the
 * request's deadline.
 */
const MAX_IDLE_ATTEMPTS = 64;
/** Milliseconds between two attempts at the same instance; for a busy instance the pause doubles each time, up to MAX_PAUSE_MS. */
const PAUSE_MS = 100;
const MAX_PAUSE_MS = 1_000;

/** Dependencies of a {@link Relay}. */
export interface RelayOptions extends AttemptOptions {
  readonly onFailover: () => void;
  /** Bits of a block key, as {@link ChainCache} takes them. */
  readonly keyBits?: number | undefined;
}

/** Runs the requests of one model through the cluster, with failover, and caches their block chains. */
export class Relay {
  readonly #options: RelayOptions;
  readonly #chains: ChainCache;

  constructor(options: RelayOptions) {
    this.#options = options;
    this.#chains = new ChainCache(undefined, options.keyBits);
  }

  /** @throws Failure when the request cannot be finished; tokens yielded before stay valid. */
  async *generate(
    generation: Generation,
    trace: RequestTrace,
    untilMs: number,
    signal: AbortSignal,
  ): AsyncGenerator<GeneratedToken> {
    const { clock, random } = this.#options;
    const inFlight: InFlightRequest = {
      ...{ generation, trace, signal, untilMs },
      tokens: new TokenList(generation.promptTokens),
      chain: new RequestChain(clock, generation.request.scope, this.#chains),
      excluded: new Exclusions(clock, random),
      last: undefined,
      backoff: new Backoff({ clock, random, firstMs: PAUSE_MS, mostMs: MAX_PAUSE_MS }),
      numAttempts: 0,
    };
    let numIdle = 0;
    while (numIdle < MAX_IDLE_ATTEMPTS) {
      const numBefore = inFlight.tokens.length;
      if (yield* this.#attempt(inFlight)) return;
      const hasMoved = inFlight.tokens.length > numBefore;
      if (hasMoved) inFlight.backoff.reset();
      numIdle = hasMoved || inFlight.last?.code === 'overloaded' ? 0 : numIdle + 1;
    }
    throw inFlight.last ?? new Failure('internal', 'no attempt was made');
  }

  /** Runs one attempt. Returns true when the request is finished, false when another attempt may help. @throws Failure when none can. */
  async *#attempt(inFlight: InFlightRequest): AsyncGenerator<GeneratedToken, boolean> {
    const { generation, tokens, excluded, trace, signal } = inFlight;
    const placed = await this.#place(inFlight);
    const { chosen } = placed;
    const { name } = chosen.decode.member;
    excluded.beginAttempt();
    inFlight.numAttempts++;
    const attempt = new DecodeAttempt(this.#options, inFlight, placed);
    try {
      for await (const reply of attempt.run(signal)) {
        if (reply.sampled.position !== tokens.length) {
          throw new Failure('internal', `token ${reply.sampled.position} came when ${tokens.length} was next`);
        }
        tokens.push(reply.sampled.token);
        yield reply;
        if (reply.finish) return true;
      }
      throw new Failure('instance_lost', `${name} ended the stream before the last token`);
    } catch (error) {
      if (signal.aborted) throw goneFailure(signal);
      const failure = lostUnlessNamed(asFailure(error));
      inFlight.last = failure;
      const numDone = tokens.length - generation.promptTokens.length;
      // A busy instance is not broken, and a broken connection is not a lost instance: neither counts as a failure of the instance.
      if (failure.code === 'overloaded') {
        excluded.busy(chosen.decode);
        await inFlight.backoff.pause(signal);
      } else if (failure.code === 'session_broken') await this.#pause(PAUSE_MS, signal);
      else if (failure.retry === 'elsewhere') {
        excluded.failed(chosen.decode);
        if (failure.code === 'instance_lost') chosen.decode.failed(failure.message);
        this.#options.onFailover();
      } else throw failure;
      trace.note(`${name} failed after ${numDone} tokens: ${failure.message}`);
      return false;
    }
  }

  /** Places the request, together with the other samples of its prompt. @throws Failure as {@link #decide} does. */
  #place(inFlight: InFlightRequest): Promise<Placed> {
    const { generation, tokens, chain, excluded, trace, signal } = inFlight;
    const lead = (): Promise<Placed> => this.#decide(inFlight);
    if (!generation.group) return lead();
    trace.phase = 'placing';
    return generation.group.place(inFlight, {
      lead,
      mayFollow: (decode) => !decode.lost.signal.aborted && decode.isPlaceable && !excluded.has(decode),
      follow: async (leader) => {
        const { decode } = leader.chosen;
        const { model } = this.#options.view;
        const numTokens = tokens.length;
        // While neither has output, the full blocks are those of the leader.
        const isPrompt = numTokens === leader.numTokens && numTokens === generation.promptTokens.length;
        const blocks = isPrompt || !model ? leader.blocks : await chain.blocks(model, tokens.view());
        if (signal.aborted) throw goneFailure(signal);
        const chosen: Chosen = {
          ...{ decode, prefill: undefined, decodeSources: [], prefillSources: [], heldTokens: 0 },
          maxSelfCompute: numTokens,
          reason: 'a further sample: starts from the blocks of the first one on its instance',
        };
        return { chosen, blocks, numTokens };
      },
    });
  }

  /**
   * Places the request. Waits, until the request's deadline, for an expected decode instance, and notes the wait in the trace.
   * @throws Failure when the request is aborted, rejected or past its deadline; an earlier attempt's failure replaces the last two.
   */
  async #decide(inFlight: InFlightRequest): Promise<Placed> {
    const { tokens, chain, excluded, trace, signal } = inFlight;
    const { clock, conductor, view } = this.#options;
    trace.phase = 'placing';
    let [isWaiting, retryAvoided] = [false, false];
    for (;;) {
      if (signal.aborted) throw goneFailure(signal);
      const leftMs = inFlight.untilMs - clock.nowMs();
      if (leftMs <= 0)
        throw (
          inFlight.last ??
          new Failure('deadline_exceeded', 'no decode instance became available before the request timed out')
        );
      const { model } = view;
      const blocks = model ? await chain.blocks(model, tokens.view()) : NO_BLOCKS;
      // Decide after the await: the cluster may have changed meanwhile.
      // With prompt log-probabilities the decode instance computes every prompt row, so held blocks are of no use.
      const { promptLogprobs, promptTokens } = inFlight.generation;
      const isReading = promptLogprobs !== undefined && promptLogprobs.length + 1 < promptTokens.length;
      const asked = {
        requestId: trace.id,
        ...{
          numTokens: tokens.length,
          keys: isReading ? NO_BLOCKS.keys : blocks.keys,
          maxLength: this.#needed(inFlight),
          avoided: excluded,
          retryAvoided,
        },
      };
      const outcome = conductor.decide(asked);
      if (outcome.kind === 'reject') throw inFlight.last ?? new Failure(outcome.code, outcome.message);
      if (outcome.kind === 'place') return { chosen: outcome.chosen, blocks, numTokens: tokens.length };
      if (outcome.why === 'all are avoided') {
        // No other instance is left: retry those that failed or were busy, after a pause.
        await this.#pause(outcome.forMs, signal);
        retryAvoided = true;
        continue;
      }
      if (!isWaiting) trace.note('waits for a decode instance');
      [isWaiting, retryAvoided] = [true, false];
      trace.phase = 'waiting';
      await view.changed(Math.min(leftMs, outcome.forMs), signal);
    }
  }

  /**
   * Returns the least maxModelLen of an instance for the request. A request without a limit accepts the largest context in the
   * cluster.
   */
  #needed({ generation, tokens }: InFlightRequest): number {
    const { isOpenEnded, request } = generation;
    const { maxLength } = request;
    const largest = Math.max(0, ...this.#options.view.of('decode').map(({ maxModelLen }) => maxModelLen));
    return isOpenEnded && largest < maxLength ? Math.max(largest, tokens.length + 1) : maxLength;
  }

  #pause(ms: number, signal: AbortSignal): Promise<void> {
    return pause(this.#options.clock, this.#options.random, ms, signal);
  }
}

/** Returns the reason why the signal aborted: its own Failure (deadline or shutdown), else that the client has left. */
function goneFailure(signal: AbortSignal): Failure {
  return signal.reason instanceof Failure ? signal.reason : new Failure('cancelled', 'the client went away');
}

/** Turns `cancelled` into `instance_lost`: a server that is killed cancels its calls, and this router has not cancelled the call. */
function lostUnlessNamed(failure: Failure): Failure {
  return failure.code === 'cancelled' ? new Failure('instance_lost', failure.message, { cause: failure }) : failure;
}
