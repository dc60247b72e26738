/**
 * One decode instance's turn at a request, with the prefills it needs: one Decode call, a Prefill call beside it, another where
 * one was lost. Which instance comes next when this one fails is the relay's to say.
 */
import type { ClientDuplexStream } from '@grpc/grpc-js';
import type { Clock } from '../../shared/base/clock.ts';
import { Failure } from '../../shared/base/failure.ts';
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

/** Prefills placed for one attempt; after that the decode instance computes what is left. */
const MAX_PREFILLS = 4;

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

export interface AttemptOptions {
  readonly view: ClusterView;
  readonly index: PrefixIndex;
  readonly placer: Placer;
  readonly peers: Peers;
  readonly clock: Clock;
}

export function clusterState({ view, index }: AttemptOptions): ClusterState | undefined {
  if (!view.model) return undefined;
  return {
    blockSize: view.model.namespace.blockSize,
    decode: view.of('decode'),
    prefill: view.of('prefill'),
    byHolder: (id) => view.byHolder(id),
    runs: (links) => index.runs(links),
  };
}

export function linksOf({ view }: AttemptOptions, tokens: readonly number[]): readonly ChainLink[] {
  if (!view.model) return [];
  const { digest, namespace } = view.model;
  return chainOf(digest, namespace.blockSize, tokens, numPrefillBlocks(tokens.length, namespace.blockSize));
}

type DecodeStream = ClientDuplexStream<DecodeRequest, DecodeReply>;

interface AttemptInput {
  readonly generation: Generation;
  readonly chosen: Placement;
  /** Full blocks before the tail of `tokens`. */
  readonly links: readonly ChainLink[];
  readonly tokens: readonly number[];
  readonly record: RequestRecord;
  /** Prefill instances that fail are added. */
  readonly excluded: Set<string>;
}

/** One decode instance's turn, with the prefills it needs. */
export class AttemptRun {
  readonly #options: AttemptOptions;
  readonly #input: AttemptInput;
  readonly #timeoutMs: number;
  readonly #attempt: Attempt;
  readonly #inbox = new Mailbox<DecodeReply>();
  readonly #ended = new AbortController();
  #numPrefills = 0;
  #numMissing = 0;
  /** Where the decode instance fetches in this round. */
  #sources: readonly Source[];
  #hasToken = false;

  constructor(options: AttemptOptions, input: AttemptInput, timeoutMs: number) {
    this.#options = options;
    this.#input = input;
    this.#timeoutMs = Math.max(1, Math.floor(timeoutMs));
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
    const { generation, record } = this.#input;
    // Of this attempt: an earlier one's prefill that has ended says nothing about this one's.
    const requestId = `${generation.requestId}.${record.attempts.length}`;
    return { requestId, tenant: '', priority: 0, timeoutMs: this.#timeoutMs, traceId: generation.requestId };
  }

  #chain(): { namespace: Buffer; tokens: Buffer; lastDigest: Buffer } {
    const digest = this.#options.view.model?.digest;
    const last = this.#input.links.at(-1)?.digest;
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
      links: this.#input.links,
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
