/**
 * Runs one prompt through the cluster and yields its tokens, each once and in order (R1), whatever fails on the way.
 *
 *   place ──► Decode ══tokens══►             a lost decode instance: place again, with the longer list
 *        └──► Prefill (blocks, not tokens)   a lost prefill: decode reports missing_from, place a prefill for the rest
 *
 * The token ids are the truth: nothing else is needed to go on elsewhere. When the consumer stops, every call is cancelled (R2).
 */
import { Failure } from '../../shared/base/failure.ts';
import type { ChainLink } from '../../shared/kv/block_key.ts';
import { toFailure } from '../../shared/protocol/rpc.ts';
import {
  AttemptRun,
  clusterState,
  linksOf,
  type AttemptOptions,
  type GeneratedToken,
  type Generation,
} from './attempt.ts';
import type { Placement } from './placement.ts';
import type { RequestRecord } from './request_log.ts';

/** Decode instances tried for one request; a cluster that loses more is not helped by trying on. */
const MAX_ATTEMPTS = 6;
/** Waiting for a decode instance to (re)appear: a supervised restart takes about a second. */
const WAIT_FOR_DECODE_MS = 5_000;
const WAIT_POLL_MS = 50;

export interface RelayOptions extends AttemptOptions {
  readonly onFailover: () => void;
}

export class Relay {
  readonly #options: RelayOptions;

  constructor(options: RelayOptions) {
    this.#options = options;
  }

  /** @throws Failure when the request cannot be finished; tokens yielded before stay valid. */
  async *generate(generation: Generation, record: RequestRecord, signal: AbortSignal): AsyncGenerator<GeneratedToken> {
    const { clock } = this.#options;
    const tokens = [...generation.tokens];
    const excluded = new Set<string>();
    const untilMs = clock.nowMs() + generation.timeoutMs;
    let last: Failure | undefined;
    for (let numAttempts = 0; numAttempts < MAX_ATTEMPTS; numAttempts++) {
      record.phase = 'placing';
      const { chosen, links } = await this.#place(tokens, excluded, signal, last);
      const attempt = new AttemptRun(
        this.#options,
        { generation, chosen, links, tokens: [...tokens], record, excluded },
        untilMs - clock.nowMs(),
      );
      try {
        for await (const reply of attempt.run(signal)) {
          if (reply.token.position !== tokens.length) {
            throw new Failure('internal', `token ${reply.token.position} came when ${tokens.length} was next`);
          }
          tokens.push(reply.token.id);
          yield reply;
          if (reply.finish) return;
        }
        throw new Failure('instance_lost', `${chosen.decode.member.name} ended the stream before the last token`);
      } catch (error) {
        if (signal.aborted) throw goneFailure(signal);
        last = lostUnlessNamed(toFailure(error, chosen.decode.member.name));
        if (last.retry !== 'elsewhere' && last.code !== 'overloaded') throw last;
        excluded.add(chosen.decode.id);
        if (last.code === 'instance_lost') chosen.decode.isSuspect = true;
        record.note(
          `${chosen.decode.member.name} failed after ${tokens.length - generation.tokens.length} tokens: ${last.message}`,
        );
        this.#options.onFailover();
      }
    }
    throw last ?? new Failure('internal', 'no attempt was made');
  }

  /** Waits a moment for a decode instance, because one that died is restarted. @throws Failure `overloaded` when there is none. */
  async #place(
    tokens: readonly number[],
    excluded: ReadonlySet<string>,
    signal: AbortSignal,
    last: Failure | undefined,
  ): Promise<{ chosen: Placement; links: readonly ChainLink[] }> {
    const { clock, placer } = this.#options;
    const untilMs = clock.nowMs() + WAIT_FOR_DECODE_MS;
    for (;;) {
      const cluster = clusterState(this.#options);
      const links = cluster && linksOf(this.#options, tokens);
      const chosen = cluster && links && placer.place({ numTokens: tokens.length, links, excluded }, cluster);
      if (chosen) return { chosen, links };
      // Nobody is left who could come back: an overloaded instance does not help by waiting for another to start.
      if (clock.nowMs() > untilMs || signal.aborted || last?.code === 'overloaded') {
        throw (
          last ??
          new Failure(
            'overloaded',
            'no decode instance is available: start one with `penstock decode`, or wait until it has loaded',
          )
        );
      }
      await clock.sleep(WAIT_POLL_MS, signal);
    }
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
