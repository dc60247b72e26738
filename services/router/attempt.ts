/**
 * One decode instance's turn at a request, with the prefills it needs: one Decode call, a Prefill call beside it, another where
 * one was lost. Which instance comes next when this one fails is the relay's to say.
 *
 * Calls end as their peers mean them to: a finished one is read to its end, one that runs is ended by a message, and only one
 * whose peer is lost is reset (see OpenCall).
 */
import { Failure } from '../../shared/base/failure.ts';
import { linkSignals } from '../../shared/base/signal.ts';
import type { ChainLink } from '../../shared/kv/block_key.ts';
import { decode } from '../../shared/protocol/calls.ts';
import type {
  DecodeReply,
  DecodeRequest,
  DecodeStart,
  RequestContext,
  SamplingMessage,
  Source,
  TokenMessage,
} from '../../shared/protocol/messages.ts';
import type { OpenCall } from '../../shared/protocol/open_call.ts';
import { packDigest, packTokens } from '../../shared/protocol/packing.ts';
import { toFailure, type Peers } from '../../shared/protocol/rpc.ts';
import type { ClusterView, Instance } from './cluster_view.ts';
import type { Exclusions } from './exclusions.ts';
import type { ClusterState, Placement, Placer } from './placement.ts';
import { runPrefill } from './prefill_run.ts';
import type { PrefixIndex } from './prefix_index.ts';
import type { Attempt, RequestRecord } from './request_log.ts';

/** Prefills placed for one attempt; after that the decode instance computes what is left. */
const MAX_PREFILLS = 4;

export interface Generation {
  readonly requestId: string;
  readonly traceId: string;
  readonly tokens: readonly number[];
  readonly maxLength: number;
  /** The request named no limit: as much as fits where it runs. */
  readonly isOpenEnded: boolean;
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

type DecodeCall = OpenCall<DecodeRequest, DecodeReply>;

interface AttemptInput {
  readonly generation: Generation;
  readonly chosen: Placement;
  /** Full blocks before the tail of `tokens`. */
  readonly links: readonly ChainLink[];
  readonly tokens: readonly number[];
  readonly record: RequestRecord;
  /** Prefill instances that fail, and holders that do not deliver, are added. */
  readonly excluded: Exclusions;
}

/** One decode instance's turn, with the prefills it needs. */
export class AttemptRun {
  readonly #options: AttemptOptions;
  readonly #input: AttemptInput;
  readonly #timeoutMs: number;
  readonly #attempt: Attempt;
  readonly #ended = new AbortController();
  #numPrefills = 0;
  #numMissing = 0;
  /** Ends the prefill of this round, which nobody waits for any more. */
  #unwanted = new AbortController();
  /** Where the decode instance fetches in this round. */
  #sources: readonly Source[];
  /** No longer looks after the holders of the last round. */
  #unwatch: () => void = () => undefined;
  /** Taken in this attempt. */
  #numTokens = 0;

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
    const { name, address } = instance.member;
    const call = decode(this.#options.peers, address, this.#startMessage(), this.#timeoutMs);
    instance.numPlaced++;
    const leave = (): void => {
      call.leave();
    };
    const lose = (): void => {
      call.lose(new Failure('instance_lost', `${name} is lost`));
    };
    signal.addEventListener('abort', leave, { once: true });
    instance.lost.signal.addEventListener('abort', lose, { once: true });
    if (signal.aborted) leave();
    else if (instance.lost.signal.aborted) lose();
    try {
      record.phase = chosen.prefill ? 'prefilling' : 'loading';
      this.#watchSources(call, chosen.prefillSources);
      if (chosen.prefill) void this.#prefill(call, chosen.prefill, chosen.prefillSources);
      for await (const reply of call.replies()) {
        if (reply.missing) this.#answerMissing(call, reply.missing.block, reply.missing.reason);
        // R1: what comes twice is dropped before it counts.
        if (!reply.token || reply.token.position < this.#input.tokens.length + this.#numTokens) continue;
        const generated = this.#take(reply, reply.token);
        if (generated.finish) {
          this.#attempt.outcome = 'finished';
          call.finish();
        }
        yield generated;
      }
      if (this.#attempt.outcome === 'running') this.#attempt.outcome = 'ended before the last token';
    } catch (error) {
      this.#attempt.outcome = signal.aborted ? 'cancelled' : toFailure(error, name).message;
      throw error;
    } finally {
      // Whoever reads has left: the client, or a stop string.
      if (this.#attempt.outcome === 'running') this.#attempt.outcome = signal.aborted ? 'cancelled' : 'stopped';
      instance.numPlaced--;
      this.#unwatch();
      signal.removeEventListener('abort', leave);
      instance.lost.signal.removeEventListener('abort', lose);
      this.#ended.abort();
      call.leave();
    }
  }

  #context(): RequestContext {
    const { generation, record } = this.#input;
    // Of this attempt: an earlier one's prefill that has ended says nothing about this one's.
    const requestId = `${generation.requestId}.${record.attempts.length}`;
    return { requestId, tenant: '', priority: 0, timeoutMs: this.#timeoutMs, traceId: generation.traceId };
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

  #startMessage(): DecodeStart {
    const { generation, chosen } = this.#input;
    return {
      context: this.#context(),
      ...this.#chain(),
      promptLength: generation.tokens.length,
      maxLength: Math.min(generation.maxLength, chosen.decode.maxModelLen),
      stopTokenIds: generation.stopTokenIds,
      sampling: generation.sampling,
      sources: chosen.decodeSources,
      maxSelfCompute: chosen.maxSelfCompute,
    };
  }

  #take(reply: DecodeReply, token: TokenMessage): GeneratedToken {
    const { record } = this.#input;
    if (this.#numTokens === 0) {
      this.#attempt.report = reply.report ?? undefined;
      if (record.ttftMs === undefined) record.firstToken(this.#attempt.report);
      record.phase = 'decoding';
    }
    record.outputTokens++;
    this.#numTokens++;
    const finish = reply.finishReason === 'stop' || reply.finishReason === 'length' ? reply.finishReason : undefined;
    return { token, finish };
  }

  /**
   * A prefill runs beside the decode call until it ends, the attempt does, or another round begins; its end is only news for
   * people, except that a failure excludes its instance.
   */
  async #prefill(decodeCall: DecodeCall, instance: Instance, sources: Placement['prefillSources']): Promise<void> {
    const { record, excluded } = this.#input;
    const { peers } = this.#options;
    const { name } = instance.member;
    const entry: Attempt['prefills'][number] = {
      name,
      readyTokens: 0,
      computedTokens: 0,
      outcome: 'running',
      report: undefined,
    };
    this.#attempt.prefills.push(entry);
    const round = this.#numMissing;
    this.#numPrefills++;
    this.#unwanted = new AbortController();
    const link = linkSignals(this.#ended.signal, this.#unwanted.signal, instance.lost.signal);
    instance.numPlaced++;
    try {
      const request = { context: this.#context(), ...this.#chain(), sources };
      const onAgain = ({ message }: Failure): void => {
        record.note(`prefill ${name} is asked again: ${message}`);
      };
      await runPrefill({ peers, instance, request, timeoutMs: this.#timeoutMs, entry, onAgain }, link.signal);
      entry.outcome = 'finished';
      if (record.phase === 'prefilling') record.phase = 'loading';
    } catch (error) {
      if (this.#ended.signal.aborted || this.#unwanted.signal.aborted) {
        entry.outcome = 'cancelled';
        return;
      }
      const failure = instance.lost.signal.aborted
        ? new Failure('instance_lost', `${name} is lost`)
        : toFailure(error, name);
      excluded.failed(instance);
      if (failure.code === 'instance_lost') instance.isSuspect = true;
      record.note(`prefill ${name} failed at ${entry.readyTokens} tokens: ${failure.message}`);
      entry.outcome = `failed: ${failure.message}`;
      // A dead holder's stream ends by itself; a silent one's would be waited for.
      decodeCall.send({ giveUp: { round } });
    } finally {
      link.release();
      instance.numPlaced--;
    }
  }

  /**
   * A holder that is lost while it is fetched from may only be silent, and nobody who fetches would know: this round's fetches,
   * and a prefill that waits for it, are given up at once.
   */
  #watchSources(call: DecodeCall, prefillSources: readonly Source[]): void {
    this.#unwatch();
    const round = this.#numMissing;
    const addresses = new Set([...this.#sources, ...prefillSources].map(({ address }) => address));
    const { decode: own } = this.#input.chosen;
    const holders = this.#options.view.all().filter((one) => one !== own && addresses.has(one.member.address));
    const giveUp = (): void => {
      call.send({ giveUp: { round } });
    };
    for (const { lost } of holders) lost.signal.addEventListener('abort', giveUp, { once: true });
    this.#unwatch = () => {
      for (const { lost } of holders) lost.signal.removeEventListener('abort', giveUp);
    };
  }

  /** Whoever was to give this block did not: this request asks it no more. */
  #excludeHolderOf(block: number): void {
    const source = this.#sources.find(({ start, end }) => start <= block && block < end);
    const holder = this.#options.view.all().find(({ member }) => member.address === source?.address);
    if (holder && holder !== this.#input.chosen.decode) this.#input.excluded.unhelpful(holder);
  }

  /** The decode instance holds blocks [0, block) and nobody gives it the next one. */
  #answerMissing(call: DecodeCall, block: number, reason: string): void {
    const { tokens, excluded, record, chosen } = this.#input;
    this.#numMissing++;
    // What the last round's prefill still computes would be fetched by nobody.
    this.#unwanted.abort();
    this.#excludeHolderOf(block);
    record.note(`${chosen.decode.member.name} misses blocks from ${block}: ${reason}`);
    const cluster = clusterState(this.#options);
    const question = {
      numTokens: tokens.length,
      links: this.#input.links,
      maxLength: tokens.length + 1,
      excluded,
      decode: { instance: chosen.decode, from: block },
    };
    const placement =
      cluster && this.#numPrefills < MAX_PREFILLS ? this.#options.placer.place(question, cluster) : undefined;
    if (!placement?.prefill) {
      this.#sources = placement?.decodeSources ?? [];
      this.#watchSources(call, []);
      call.send({ more: { sources: this.#sources, maxSelfCompute: tokens.length } });
      return;
    }
    record.phase = 'prefilling';
    this.#sources = placement.decodeSources;
    this.#watchSources(call, placement.prefillSources);
    void this.#prefill(call, placement.prefill, placement.prefillSources);
    call.send({ more: { sources: placement.decodeSources, maxSelfCompute: placement.maxSelfCompute } });
  }
}
