/**
 * Runs one prompt through the cluster and yields its tokens, each once and in order (R1), whatever fails on the way.
 *
 *   place ──► Decode ══tokens══►             a lost decode instance: place again, with the longer list
 *        └──► Prefill (blocks, not tokens)   a lost prefill: decode reports missing_from, place a prefill for the rest
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
import { NO_BLOCKS, RequestChain, type FullBlocks } from './request_chain.ts';
import type { RequestTrace } from './request_log.ts';
import { TokenList } from '../../../shared/base/token_list.ts';

/** Attempts in a row that failed without a token (P1); busy instances are none, they are asked until the request's own deadline. */
const MAX_IDLE_ATTEMPTS = 64;
/** Between two attempts at the same instance; where it is busy twice as long each time, up to the second. */
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
    record: RequestTrace,
    untilMs: number,
    signal: AbortSignal,
  ): AsyncGenerator<GeneratedToken> {
    const { clock, random } = this.#options;
    const inFlight: InFlightRequest = {
      ...{ generation, record, signal, untilMs },
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

  /** True when the request is finished; false when the next attempt is worth it. @throws Failure when none is. */
  async *#attempt(inFlight: InFlightRequest): AsyncGenerator<GeneratedToken, boolean> {
    const { generation, tokens, excluded, record, signal } = inFlight;
    const { chosen, blocks } = await this.#place(inFlight);
    const { name } = chosen.decode.member;
    excluded.beginAttempt();
    inFlight.numAttempts++;
    const attempt = new DecodeAttempt(this.#options, inFlight, chosen, blocks);
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
      // Busy is not broken, and a broken connection is not a lost instance: neither says anything against it.
      if (failure.code === 'overloaded') {
        excluded.busy(chosen.decode);
        await inFlight.backoff.pause(signal);
      } else if (failure.code === 'session_broken') await this.#pause(PAUSE_MS, signal);
      else if (failure.retry === 'elsewhere') {
        excluded.failed(chosen.decode);
        if (failure.code === 'instance_lost') chosen.decode.failed(failure.message);
        this.#options.onFailover();
      } else throw failure;
      record.note(`${name} failed after ${numDone} tokens: ${failure.message}`);
      return false;
    }
  }

  /**
   * Places the request. Waits, until the request's deadline, for an expected decode instance, and notes the wait in the trace.
   * @throws Failure when the request is aborted, rejected or past its deadline; an earlier attempt's failure replaces the last two.
   */
  async #place(inFlight: InFlightRequest): Promise<{ chosen: Chosen; blocks: FullBlocks }> {
    const { tokens, chain, excluded, record, signal } = inFlight;
    const { clock, conductor, view } = this.#options;
    record.phase = 'placing';
    let [isWaiting, retryAvoided] = [false, false];
    for (;;) {
      if (signal.aborted) throw goneFailure(signal);
      const leftMs = inFlight.untilMs - clock.nowMs();
      if (leftMs <= 0) throw inFlight.last ?? new Failure('deadline_exceeded', 'no decode instance came in time');
      const { model } = view;
      const blocks = model ? await chain.blocks(model, tokens.view()) : NO_BLOCKS;
      // Decided after the wait: the cluster may be another by now.
      // Whose rows are asked for is computed where it decodes: no block that somebody has is of use.
      const { promptLogprobs, promptTokens } = inFlight.generation;
      const isReading = promptLogprobs !== undefined && promptLogprobs.length + 1 < promptTokens.length;
      const asked = {
        requestId: record.id,
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
      if (outcome.kind === 'place') return { chosen: outcome.chosen, blocks };
      if (outcome.why === 'all are avoided') {
        // Nobody else is left: those that failed or were busy are tried, after a moment.
        await this.#pause(outcome.forMs, signal);
        retryAvoided = true;
        continue;
      }
      if (!isWaiting) record.note('waits for a decode instance');
      [isWaiting, retryAvoided] = [true, false];
      record.phase = 'waiting';
      await view.changed(Math.min(leftMs, outcome.forMs), signal);
    }
  }

  /** Tokens that an instance must have room for. */
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

/** The client went away, or the router itself is going and says why. */
function goneFailure(signal: AbortSignal): Failure {
  return signal.reason instanceof Failure ? signal.reason : new Failure('cancelled', 'the client went away');
}

/** A server that ends by force cancels its calls; nobody here cancelled this one. */
function lostUnlessNamed(failure: Failure): Failure {
  return failure.code === 'cancelled' ? new Failure('instance_lost', failure.message, { cause: failure }) : failure;
}
