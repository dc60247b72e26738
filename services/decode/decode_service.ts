/**
 * `Decode(tokens, sources, sampling) ⇉ tokens`: fetch blocks, compute the tail, sample until it stops.
 *
 *   start ──► fetching ──all came, or little is left──► proceeding ──► tokens ... last token, end
 *                │  ▲
 *    missing_from│  │more (sources, or a higher max_self_compute)
 *                ▼  │
 *              asking              give_up (the sources of this round are lost): report at once
 *
 * The random stream of a token is (seed, absolute position), so a call with a longer list goes on where another instance
 * was lost (R1). When the caller goes away nothing stays behind (R2).
 */
import { Failure } from '../../shared/base/failure.ts';
import type { Clock } from '../../shared/base/clock.ts';
import type { SamplingParams } from '../../shared/engine/sampler.ts';
import type { EngineInstance, SequenceEvent } from '../../shared/instance/engine_instance.ts';
import { checkCall, neutralSampling, reportOf, type CheckedCall } from '../../shared/instance/engine_call.ts';
import type { EngineService } from '../../shared/instance/engine_role.ts';
import type { RoleContext } from '../../shared/instance/role_process.ts';
import type { DecodeCall } from '../../shared/protocol/calls.ts';
import type {
  DecodeReply,
  DecodeRequest,
  DecodeStart,
  MoreSources,
  SamplingMessage,
  TokenMessage,
} from '../../shared/protocol/messages.ts';
import { abortableOnCancel, endWith } from '../../shared/protocol/open_call.ts';
import { services } from '../../shared/protocol/rpc.ts';

/** A router that has not answered `missing_from` by then has lost the request. */
const ASK_TIMEOUT_MS = 30_000;

export function createDecodeService(instance: EngineInstance, { log, clock }: RoleContext): EngineService {
  const decode = (call: DecodeCall): void => {
    const session = new DecodeSession(call, instance, clock);
    call.on('data', (message: DecodeRequest) => {
      session.receive(message);
    });
    session.run().catch((error: unknown) => {
      log.debug({ error: String(error) }, 'a decode ended early');
      endWith(call, error);
    });
  };
  return { definition: services.decode, handlers: { decode } };
}

class DecodeSession {
  readonly #call: DecodeCall;
  readonly #instance: EngineInstance;
  readonly #clock: Clock;
  /** The caller went away, or said so. */
  readonly #left: AbortController;
  readonly #inbox: DecodeRequest[] = [];
  #wake: () => void = () => undefined;
  #isAdmitted = false;
  /** How often missing blocks were reported. */
  #round = 0;
  /** Aborts the fetch of this round. */
  #fetching = new AbortController();
  /** The call is over, however it ended. */
  readonly #ended = new AbortController();
  #fetchedBytes = 0;

  constructor(call: DecodeCall, instance: EngineInstance, clock: Clock) {
    this.#call = call;
    this.#instance = instance;
    this.#clock = clock;
    this.#left = abortableOnCancel(call);
  }

  get #signal(): AbortSignal {
    return this.#left.signal;
  }

  /** A caller sends a start and then at most one message per question; more is not worth keeping (P1). */
  receive(message: DecodeRequest): void {
    if ('cancel' in message) {
      this.#left.abort();
      return;
    }
    if ('giveUp' in message) {
      if (message.giveUp.round === this.#round) this.#fetching.abort();
      return;
    }
    if (this.#inbox.length < 16) this.#inbox.push(message);
    this.#wake();
  }

  async run(): Promise<void> {
    const first = await this.#next();
    if (!('start' in first)) throw new Failure('invalid_request', 'the first message of a Decode call is its start');
    const checked = checkCall(this.#instance, first.start);
    const { promptLength, maxLength } = first.start;
    const { maxModelLen } = this.#instance.info;
    if (promptLength < 1 || promptLength > checked.tokens.length || maxLength <= checked.tokens.length) {
      throw new Failure(
        'invalid_request',
        `prompt ${promptLength} ≤ tokens ${checked.tokens.length} < max_length ${maxLength} does not hold`,
      );
    }
    if (maxLength > maxModelLen)
      throw new Failure('context_too_long', `max_length ${maxLength} exceeds the context of ${maxModelLen}`);
    await this.#serve(checked, first.start);
  }

  /** Resolves with the last token, rejects when refused or left. */
  async #serve(checked: CheckedCall, start: DecodeStart): Promise<void> {
    const hasFetch =
      checked.links.length > checked.numLocal &&
      checked.tokens.length - this.#tokensOf(checked.numLocal) > start.maxSelfCompute;
    const isFetching = hasFetch || start.sources.some(({ end }) => end > checked.numLocal);
    let id = 0;
    const done = new Promise<void>((resolve, reject) => {
      id = this.#instance.submit(
        {
          kind: 'decode',
          tokens: checked.tokens,
          promptLength: start.promptLength,
          maxLength: start.maxLength,
          stopTokenIds: start.stopTokenIds,
          sampling: samplingOf(start.sampling),
          isFetching,
        },
        this.#listener(checked.tokens.length, resolve, reject),
      );
      const leave = (): void => {
        this.#instance.cancel(id);
        reject(new Failure('cancelled', 'the caller went away'));
      };
      this.#signal.addEventListener('abort', leave, { once: true });
      if (this.#signal.aborted) leave();
    });
    // Both may fail; the first failure is the call's, and the sequence must not outlive it.
    done.catch(() => undefined);
    try {
      if (isFetching) {
        // A refusal does not wait for blocks that nobody will use.
        await Promise.race([this.#fetch(id, checked, start), done]);
        this.#instance.proceed(id);
      }
      await done;
      this.#call.end();
    } finally {
      this.#ended.abort();
      this.#instance.cancel(id);
    }
  }

  #tokensOf(numBlocks: number): number {
    return numBlocks * this.#instance.info.layout.blockSize;
  }

  /** Returns when every block came, or what is left is little enough to compute here. */
  async #fetch(id: number, checked: CheckedCall, start: DecodeStart): Promise<void> {
    const { links, context } = checked;
    let sources = start.sources;
    let maxSelfCompute = start.maxSelfCompute;
    let from = checked.numLocal;
    for (;;) {
      const { reached, fetchedBytes, reason } = await this.#instance.fetcher.run({
        ...{ id, links, from, sources, context, timeoutMs: context.timeoutMs },
        ...{
          isAdmitted: () => this.#isAdmitted,
          signal: AbortSignal.any([this.#signal, this.#fetching.signal, this.#ended.signal]),
        },
      });
      this.#fetchedBytes += fetchedBytes;
      from = reached;
      const left = checked.tokens.length - this.#tokensOf(reached);
      if (reached === links.length || left <= maxSelfCompute || this.#signal.aborted || this.#ended.signal.aborted)
        return;
      this.#round++;
      this.#fetching = new AbortController();
      this.#write({ missing: { block: reached, reason }, report: null, finishReason: '' });
      const more = await this.#answer();
      ({ sources, maxSelfCompute } = more);
      if (left <= maxSelfCompute && sources.length === 0) return;
    }
  }

  async #answer(): Promise<MoreSources> {
    const message = await this.#next();
    if (!('more' in message)) throw new Failure('invalid_request', 'a Decode call starts once');
    return message.more;
  }

  async #next(): Promise<DecodeRequest> {
    for (;;) {
      const message = this.#inbox.shift();
      if (message) return message;
      const arrived = new AbortController();
      this.#wake = () => {
        arrived.abort();
      };
      this.#signal.addEventListener('abort', this.#wake, { once: true });
      await this.#clock.sleep(ASK_TIMEOUT_MS, arrived.signal);
      if (this.#signal.aborted) throw new Failure('cancelled', 'the caller went away');
      if (!arrived.signal.aborted)
        throw new Failure('deadline_exceeded', `the caller said nothing for ${ASK_TIMEOUT_MS} ms`);
    }
  }

  #listener(numTokens: number, resolve: () => void, reject: (error: Error) => void): (event: SequenceEvent) => void {
    let position = numTokens;
    return (event) => {
      if (event.kind === 'admitted') this.#isAdmitted = true;
      else if (event.kind === 'preempted') this.#isAdmitted = false;
      else if (event.kind === 'refused') reject(new Failure(event.code, event.message));
      else if (event.kind === 'token') {
        this.#write({
          token: tokenMessage(event.sampled, position++),
          report: event.report ? reportOf(event.report, this.#fetchedBytes) : null,
          finishReason: event.finish ?? '',
        });
        if (event.finish) resolve();
      }
    };
  }

  #write(reply: DecodeReply): void {
    if (!this.#call.cancelled) this.#call.write(reply);
  }
}

function tokenMessage(sampled: Extract<SequenceEvent, { kind: 'token' }>['sampled'], position: number): TokenMessage {
  return {
    id: sampled.token,
    logprob: sampled.logprob === undefined ? [] : [sampled.logprob],
    topIds: sampled.top?.map(([token]) => token) ?? [],
    topLogprobs: sampled.top?.map(([, logprob]) => logprob) ?? [],
    position,
  };
}

function samplingOf(message: SamplingMessage | null): SamplingParams {
  if (!message) return neutralSampling;
  const { biasTokens, biasValues, ...rest } = message;
  return { ...rest, logitBias: biasTokens.map((token, i): [number, number] => [token, biasValues[i] ?? 0]) };
}
