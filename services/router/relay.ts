/**
 * Runs one prompt through the cluster and yields its tokens, each once and in order (R1), whatever fails on the way.
 *
 *   place ──► Decode ══tokens══►             a lost decode instance: place again, with the longer list
 *        └──► Prefill (blocks, not tokens)   a lost prefill: decode reports missing_from, place a prefill for the rest
 *
 * The token ids are the truth: nothing else is needed to go on elsewhere. When the consumer stops, every call is cancelled (R2).
 */
import type { ClientDuplexStream } from '@grpc/grpc-js';
import type { Clock } from '../../shared/base/clock.ts';
import { Failure } from '../../shared/base/failure.ts';
import type { Log } from '../../shared/base/log.ts';
import { chainOf, numPrefillBlocks, type ChainLink } from '../../shared/kv/block_key.ts';
import { decode, prefill } from '../../shared/protocol/calls.ts';
import type {
  DecodeReply,
  DecodeRequest,
  PrefillReply,
  RequestContext,
  SamplingMessage,
  Source,
  TokenMessage,
} from '../../shared/protocol/messages.ts';
import { packDigest, packTokens } from '../../shared/protocol/packing.ts';
import { toFailure, type Peers } from '../../shared/protocol/rpc.ts';
import type { ClusterView, Instance } from './cluster_view.ts';
import { Mailbox } from './mailbox.ts';
import type { ClusterState, Placement, Placer } from './placement.ts';
import type { PrefixIndex } from './prefix_index.ts';
import type { Attempt, RequestRecord } from './request_log.ts';

/** Decode instances tried for one request; a cluster that loses more is not helped by trying on. */
const MAX_ATTEMPTS = 6;
/** Prefills placed for one attempt; after that the decode instance computes what is left. */
const MAX_PREFILLS = 4;
/** Waiting for a decode instance to (re)appear: a supervised restart takes about a second. */
const WAIT_FOR_DECODE_MS = 5_000;
const WAIT_POLL_MS = 50;

export interface Generation {
  readonly requestId: string;
  readonly tokens: readonly number[];
  readonly maxLength: number;
  readonly stopTokenIds: readonly number[];
  readonly sampling: SamplingMessage;
  readonly timeoutMs: number;
}

export interface GeneratedToken {
  readonly token: TokenMessage;
  /** With the last token. */
  readonly finish: 'stop' | 'length' | undefined;
}

export interface RelayOptions {
  readonly view: ClusterView;
  readonly index: PrefixIndex;
  readonly placer: Placer;
  readonly peers: Peers;
  readonly clock: Clock;
  readonly log: Log;
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
      const chosen = await this.#place(tokens, excluded, signal, last);
      const attempt = new AttemptRun(
        this.#options,
        { generation, chosen, tokens: [...tokens], record, excluded },
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
  ): Promise<Placement> {
    const { clock, placer } = this.#options;
    const untilMs = clock.nowMs() + WAIT_FOR_DECODE_MS;
    for (;;) {
      const cluster = clusterState(this.#options);
      const links = cluster && linksOf(this.#options, tokens);
      const placement = cluster && links && placer.place({ numTokens: tokens.length, links, excluded }, cluster);
      if (placement) return placement;
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

function clusterState({ view, index }: RelayOptions): ClusterState | undefined {
  if (!view.model) return undefined;
  return {
    blockSize: view.model.namespace.blockSize,
    decode: view.of('decode'),
    prefill: view.of('prefill'),
    byHolder: (id) => view.byHolder(id),
    runs: (links) => index.runs(links),
  };
}

function linksOf({ view }: RelayOptions, tokens: readonly number[]): readonly ChainLink[] {
  if (!view.model) return [];
  const { digest, namespace } = view.model;
  return chainOf(digest, namespace.blockSize, tokens, numPrefillBlocks(tokens.length, namespace.blockSize));
}

type DecodeStream = ClientDuplexStream<DecodeRequest, DecodeReply>;

interface AttemptInput {
  readonly generation: Generation;
  readonly chosen: Placement;
  readonly tokens: readonly number[];
  readonly record: RequestRecord;
  /** Prefill instances that fail are added. */
  readonly excluded: Set<string>;
}

/** One decode instance's turn, with the prefills it needs. */
class AttemptRun {
  readonly #options: RelayOptions;
  readonly #input: AttemptInput;
  readonly #timeoutMs: number;
  readonly #links: readonly ChainLink[];
  readonly #attempt: Attempt;
  readonly #inbox = new Mailbox<DecodeReply>();
  readonly #ended = new AbortController();
  #numPrefills = 0;
  #numMissing = 0;
  /** Where the decode instance fetches in this round. */
  #sources: readonly Source[];
  #hasToken = false;

  constructor(options: RelayOptions, input: AttemptInput, timeoutMs: number) {
    this.#options = options;
    this.#input = input;
    this.#timeoutMs = Math.max(1, Math.floor(timeoutMs));
    this.#links = linksOf(options, input.tokens);
    this.#sources = input.chosen.decodeSources;
    this.#attempt = input.record.attempt(input.chosen.decode.member.name, input.chosen.reason);
  }

  async *run(signal: AbortSignal): AsyncGenerator<GeneratedToken> {
    const { chosen, record } = this.#input;
    const { decode: instance } = chosen;
    const call = decode(this.#options.peers, instance.member.address, this.#timeoutMs);
    instance.numPlaced++;
    const leave = (): void => {
      this.#inbox.fail(new Failure(signal.aborted ? 'cancelled' : 'instance_lost', `${instance.member.name} is lost`));
    };
    for (const source of [signal, instance.lost.signal]) source.addEventListener('abort', leave, { once: true });
    if (signal.aborted || instance.lost.signal.aborted) leave();
    call.on('data', (reply: DecodeReply) => {
      this.#inbox.put(reply);
    });
    call.on('error', (error) => {
      this.#inbox.fail(toFailure(error, instance.member.name));
    });
    call.on('end', () => {
      this.#inbox.end();
    });
    try {
      record.phase = chosen.prefill ? 'prefilling' : 'loading';
      call.write({ start: this.#startMessage() });
      if (chosen.prefill) this.#startPrefill(call, chosen.prefill, chosen.prefillSources);
      for await (const reply of this.#inbox.items()) {
        if (reply.missing) this.#answerMissing(call, reply.missing.block, reply.missing.reason);
        if (reply.token) yield this.#take(reply, reply.token);
      }
      this.#attempt.outcome = 'finished';
    } catch (error) {
      this.#attempt.outcome = toFailure(error, instance.member.name).message;
      throw error;
    } finally {
      instance.numPlaced--;
      for (const source of [signal, instance.lost.signal]) source.removeEventListener('abort', leave);
      this.#ended.abort();
      call.cancel();
    }
  }

  #context(): RequestContext {
    const { requestId } = this.#input.generation;
    return { requestId, tenant: '', priority: 0, timeoutMs: this.#timeoutMs, traceId: requestId };
  }

  #chain(): { namespace: Buffer; tokens: Buffer; lastDigest: Buffer } {
    const digest = this.#options.view.model?.digest;
    const last = this.#links.at(-1)?.digest;
    return {
      namespace: digest ? packDigest(digest) : Buffer.alloc(0),
      tokens: packTokens(this.#input.tokens),
      lastDigest: last ? packDigest(last) : Buffer.alloc(0),
    };
  }

  #startMessage(): Extract<DecodeRequest, { start: unknown }>['start'] {
    const { generation, chosen } = this.#input;
    return {
      context: this.#context(),
      ...this.#chain(),
      promptLength: generation.tokens.length,
      maxLength: generation.maxLength,
      stopTokenIds: generation.stopTokenIds,
      sampling: generation.sampling,
      sources: chosen.decodeSources,
      maxSelfCompute: chosen.maxSelfCompute,
    };
  }

  #take(reply: DecodeReply, token: TokenMessage): GeneratedToken {
    const { record } = this.#input;
    if (!this.#hasToken) {
      this.#attempt.report = reply.report ?? undefined;
      if (record.ttftMs === undefined) record.firstToken(this.#attempt.report);
      record.phase = 'decoding';
      this.#hasToken = true;
    }
    record.outputTokens++;
    const finish = reply.finishReason === 'stop' || reply.finishReason === 'length' ? reply.finishReason : undefined;
    return { token, finish };
  }

  /** A prefill runs beside the decode call; its end is only news for people, except that a failure excludes it. */
  #startPrefill(decodeCall: DecodeStream, instance: Instance, sources: Placement['prefillSources']): void {
    const { record, excluded } = this.#input;
    const entry: Attempt['prefills'][number] = {
      name: instance.member.name,
      readyTokens: 0,
      computedTokens: 0,
      outcome: 'running',
      report: undefined,
    };
    this.#attempt.prefills.push(entry);
    const round = this.#numMissing;
    this.#numPrefills++;
    instance.numPlaced++;
    const call = prefill(
      this.#options.peers,
      instance.member.address,
      { context: this.#context(), ...this.#chain(), sources },
      this.#timeoutMs,
    );
    const stop = (): void => {
      call.cancel();
    };
    const end = (outcome: string): void => {
      if (entry.outcome !== 'running') return;
      entry.outcome = outcome;
      instance.numPlaced--;
      this.#ended.signal.removeEventListener('abort', stop);
      instance.lost.signal.removeEventListener('abort', stop);
    };
    this.#ended.signal.addEventListener('abort', stop, { once: true });
    instance.lost.signal.addEventListener('abort', stop, { once: true });
    call.on('data', (reply: PrefillReply) => {
      entry.readyTokens = reply.numReady;
      entry.computedTokens = reply.numRun;
      if (reply.report) entry.report = reply.report;
    });
    call.on('error', (error) => {
      if (this.#ended.signal.aborted) {
        end('cancelled');
        return;
      }
      const failure = toFailure(error, instance.member.name);
      excluded.add(instance.id);
      if (failure.code === 'instance_lost') instance.isSuspect = true;
      record.note(`prefill ${instance.member.name} failed at ${entry.readyTokens} tokens: ${failure.message}`);
      end(`failed: ${failure.message}`);
      // A dead holder's stream ends by itself; a silent one's would be waited for.
      decodeCall.write({ giveUp: { round } });
    });
    call.on('end', () => {
      end('finished');
      if (record.phase === 'prefilling') record.phase = 'loading';
    });
  }

  /** Whoever was to give this block did not: this request asks it no more. */
  #excludeHolderOf(block: number): void {
    const source = this.#sources.find(({ start, end }) => start <= block && block < end);
    const holder = this.#options.view.all().find(({ member }) => member.address === source?.address);
    if (holder && holder !== this.#input.chosen.decode) this.#input.excluded.add(holder.id);
  }

  /** The decode instance holds blocks [0, block) and nobody gives it the next one. */
  #answerMissing(call: DecodeStream, block: number, reason: string): void {
    const { tokens, excluded, record, chosen } = this.#input;
    this.#numMissing++;
    this.#excludeHolderOf(block);
    record.note(`${chosen.decode.member.name} misses blocks from ${block}: ${reason}`);
    const cluster = clusterState(this.#options);
    const question = {
      numTokens: tokens.length,
      links: this.#links,
      excluded,
      decode: { instance: chosen.decode, from: block },
    };
    const placement =
      cluster && this.#numPrefills < MAX_PREFILLS ? this.#options.placer.place(question, cluster) : undefined;
    if (!placement?.prefill) {
      this.#sources = placement?.decodeSources ?? [];
      call.write({ more: { sources: this.#sources, maxSelfCompute: tokens.length } });
      return;
    }
    record.phase = 'prefilling';
    this.#sources = placement.decodeSources;
    this.#startPrefill(call, placement.prefill, placement.prefillSources);
    call.write({ more: { sources: placement.decodeSources, maxSelfCompute: placement.maxSelfCompute } });
  }
}
