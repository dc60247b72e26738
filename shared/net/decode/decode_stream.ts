/**
 * Router's side of the streams that carry its Decode and Prefill calls, one to each instance. A call has a slot from its start until a reply
 * ends it; the listeners of the calls get the replies of a message at once, token by token, without a promise.
 *
 *   free ──start──► running ──last token, report of a prefill, failure──► free
 *                      └──cancelled──► left: replies are dropped ──the instance ends the call──► free
 *
 * When the stream breaks, or replies are malformed, all calls end with a failure, and the next call opens another stream.
 */
import { AsyncQueue } from '../../base/async_queue.ts';
import { asFailure, Failure } from '../../base/failure.ts';
import {
  malformed,
  MAX_SLOTS,
  ReplyReader,
  type CallFailure,
  type Finish,
  type ReplyListener,
} from '../../protocol/decode_replies.ts';
import type {
  DecodeReplies,
  DecodeRequest,
  DecodeStart,
  MissingBlocks,
  MoreSources,
  PrefillReply,
  PrefillRequest,
  Report,
  SampledMessage,
} from '../../protocol/messages.ts';
import type { Network } from '../network.ts';
import { peerFailure } from '../peer_failure.ts';

/** An instance to call. */
export interface DecodePeer {
  readonly member: { readonly address: string };
  /** Aborts with the reason when the instance is lost. */
  readonly lost: { readonly signal: AbortSignal };
}

/** Gets the replies of one Decode call. A Failure that it throws ends the stream: the reply cannot be right. */
export interface DecodeListener {
  /** The instance needs other sources of blocks. */
  onMissing(missing: MissingBlocks): void;
  /** Tokens of the prompt with their log-probabilities. */
  onPrompt(tokens: readonly SampledMessage[]): void;
  /** A token of the output; after the one with `finish` nothing comes. */
  onToken(sampled: SampledMessage, finish: Finish, report: Report | undefined): void;
  /** The call has ended without its last token; nothing comes after it. */
  onFailure(failure: Failure): void;
}

/** Gets the replies of one Prefill call. It must not throw. */
export interface PrefillListener {
  /** Progress; after the reply with a report nothing comes. */
  onPrefill(reply: PrefillReply): void;
  /** The call has ended without its report; nothing comes after it. */
  onFailure(failure: Failure): void;
}

/** A call that was started. After its end each method does nothing. */
export interface StartedCall {
  /** Cancels the call: its listener gets nothing more. */
  leave(): void;
}

/** A Decode call that was started. */
export interface DecodeCall extends StartedCall {
  /** Answers missing blocks. */
  more(sources: MoreSources): void;
  /** Gives up the sources of this round, which are lost. */
  giveUp(round: number): void;
}

/**
 * Longest start of a call, in bytes. The transport refuses messages of over 16 MiB, and with the message it ends the stream of all calls;
 * the difference is room for the parts that {@link sizeOf} does not count.
 */
const MAX_START_BYTES = 15 << 20;

/** Streams to the instances that were called, each opened by its first call and closed when its instance is lost. */
export class DecodeStreams {
  readonly #network: Network;
  readonly #onMalformed: (address: string, failure: Failure) => void;
  readonly #streams = new Map<DecodePeer, DecodeStream>();

  /** `onMalformed` is called when a stream ends because its replies cannot be right. */
  constructor(network: Network, onMalformed: (address: string, failure: Failure) => void = () => undefined) {
    this.#network = network;
    this.#onMalformed = onMalformed;
  }

  /**
   * Starts a Decode call. It ends with its last token, with a failure, or when its caller leaves; a call that cannot be started fails before
   * this returns.
   */
  start(peer: DecodePeer, start: DecodeStart, listener: DecodeListener): DecodeCall {
    return this.#begin(peer, { start }, sizeOf(start), listener);
  }

  /**
   * Starts a Prefill call. It ends with its report, with a failure, or when its caller leaves; a call that cannot be started fails before
   * this returns.
   */
  prefill(peer: DecodePeer, prefill: PrefillRequest, listener: PrefillListener): StartedCall {
    return this.#begin(peer, { prefill }, sizeOf(prefill), listener);
  }

  #begin(peer: DecodePeer, message: CallStart, numBytes: number, listener: CallListener): DecodeCall {
    const { lost, member } = peer;
    if (lost.signal.aborted) return refused(listener, asFailure(lost.signal.reason));
    if (numBytes > MAX_START_BYTES) {
      const text = `the request takes ${numBytes} bytes on its way to an instance, at most ${MAX_START_BYTES} are possible`;
      return refused(listener, peerFailure(member.address, { code: 'invalid_request', text }));
    }
    const stream = this.#streams.get(peer) ?? this.#opened(peer);
    if (stream.isFull) {
      const text = `${MAX_SLOTS} calls of this router have not ended`;
      return refused(listener, peerFailure(member.address, { code: 'overloaded', text }));
    }
    return stream.begin(message, listener);
  }

  /** Ends all streams; calls that run end with them. */
  close(): void {
    for (const stream of this.#streams.values()) stream.close();
  }

  #opened(peer: DecodePeer): DecodeStream {
    const stream = new DecodeStream(this.#network, peer, (failure) => {
      if (this.#streams.get(peer) === stream) this.#streams.delete(peer);
      if (failure.code === 'internal') this.#onMalformed(peer.member.address, failure);
    });
    this.#streams.set(peer, stream);
    return stream;
  }
}

type CallListener = DecodeListener | PrefillListener;
/** First message of a call, without its slot. */
type CallStart = Pick<DecodeRequest, 'start' | 'prefill'>;

/** Returns about the number of bytes of a start: of the parts that may be large, each number at its longest. */
function sizeOf({
  tokens,
  sources,
  request,
}: Pick<DecodeStart, 'tokens' | 'sources'> & Partial<Pick<DecodeStart, 'request'>>): number {
  const { stopTokenIds = [], sampling, constraint } = request ?? {};
  const { grammar = '', endTokens = [], allowedTokens, forbidden = [] } = constraint ?? {};
  const numIds = stopTokenIds.length + endTokens.length + forbidden.reduce((sum, run) => sum + run.tokens.length, 0);
  const others = 8 * forbidden.length + 14 * (sampling?.biasTokens.length ?? 0) + 300 * sources.length;
  return tokens.length + Buffer.byteLength(grammar) + (allowedTokens?.length ?? 0) + 5 * numIds + others;
}

/** Returns the call that cannot be started. */
function refused(listener: CallListener, failure: Failure): DecodeCall {
  const nothing = (): void => undefined;
  listener.onFailure(failure);
  return { more: nothing, giveUp: nothing, leave: nothing };
}

/** In place of the listener of a call that was cancelled. */
const LEFT = 'left';

class DecodeStream implements ReplyListener {
  readonly #address: string;
  /** Messages that are not sent yet: a few for each call (P1). */
  readonly #requests = new AsyncQueue<DecodeRequest>();
  readonly #ended = new AbortController();
  readonly #reader = new ReplyReader(this);
  readonly #onEnd: (failure: Failure) => void;
  /** Listeners by slot; undefined: the slot is free. Bounded by MAX_SLOTS (P1). */
  readonly #slots: (CallListener | typeof LEFT | undefined)[] = [];
  readonly #free: number[] = [];

  /** Opens the stream. `onEnd` is called once, when it has ended. */
  constructor(network: Network, { member, lost }: DecodePeer, onEnd: (failure: Failure) => void) {
    this.#address = member.address;
    this.#onEnd = onEnd;
    const follow = (): void => {
      this.#end(asFailure(lost.signal.reason));
    };
    lost.signal.addEventListener('abort', follow, { once: true });
    const options = { signal: this.#ended.signal, timeoutMs: undefined };
    const run = async (): Promise<void> => {
      for await (const replies of network.open(this.#address, 'decode', this.#requests, options)) this.#read(replies);
      throw peerFailure(this.#address, { code: 'instance_lost', text: 'it ended the stream of its calls' });
    };
    void run()
      .catch((error: unknown) => {
        this.#end(asFailure(error));
      })
      .finally(() => {
        lost.signal.removeEventListener('abort', follow);
      });
  }

  /** Whether all slots are taken. */
  get isFull(): boolean {
    return this.#free.length === 0 && this.#slots.length >= MAX_SLOTS;
  }

  /** Sends the first message of a call, and returns the call in its slot. */
  begin(first: CallStart, listener: CallListener): DecodeCall {
    const slot = this.#free.pop() ?? this.#slots.length;
    this.#slots[slot] = listener;
    this.#requests.push({ slot, ...first });
    const send = (message: Omit<DecodeRequest, 'slot'>): void => {
      if (this.#slots[slot] === listener) this.#requests.push({ slot, ...message });
    };
    return {
      more: (more) => {
        send({ more });
      },
      giveUp: (round) => {
        send({ giveUp: { round } });
      },
      leave: () => {
        send({ cancel: {} });
        if (this.#slots[slot] === listener) this.#slots[slot] = LEFT;
      },
    };
  }

  /** Ends the requests: the instance ends the calls and the stream. */
  close(): void {
    this.#requests.end();
  }

  onMissing(slot: number, missing: MissingBlocks): void {
    this.#decodeIn(slot)?.onMissing(missing);
  }

  onPrompt(slot: number, tokens: readonly SampledMessage[]): void {
    this.#decodeIn(slot)?.onPrompt(tokens);
  }

  onToken(slot: number, sampled: SampledMessage, finish: Finish, report: Report | undefined): void {
    const listener = this.#decodeIn(slot);
    if (finish) this.#release(slot);
    try {
      listener?.onToken(sampled, finish, report);
    } catch (error) {
      // Its slot is free, so that the end of the stream would not reach it.
      if (finish) listener?.onFailure(failureOfCall(asFailure(error)));
      throw error;
    }
  }

  onPrefill(slot: number, reply: PrefillReply): void {
    const listener = this.#listenerIn(slot);
    if (listener && !('onPrefill' in listener)) throw malformed(`slot ${slot} has no Prefill call`);
    if (reply.report) this.#release(slot);
    listener?.onPrefill(reply);
  }

  onFailure(slot: number, { code, message: text, told }: CallFailure): void {
    const listener = this.#listenerIn(slot);
    this.#release(slot);
    listener?.onFailure(peerFailure(this.#address, { code, text, told }));
  }

  #read(replies: DecodeReplies): void {
    try {
      this.#reader.read(replies);
    } catch (error) {
      const { code, message: text } = asFailure(error);
      throw peerFailure(this.#address, { code, text, cause: error });
    }
  }

  /** Returns the listener of the call in a slot; undefined when it was cancelled. @throws Failure `internal` when there is no call */
  #listenerIn(slot: number): CallListener | undefined {
    const listener = this.#slots[slot];
    if (listener === undefined) throw malformed(`slot ${slot} has no call`);
    return listener === LEFT ? undefined : listener;
  }

  /** Returns the listener of the Decode call in a slot; undefined when it was cancelled. @throws Failure `internal` when there is none */
  #decodeIn(slot: number): DecodeListener | undefined {
    const listener = this.#listenerIn(slot);
    if (listener && !('onToken' in listener)) throw malformed(`slot ${slot} has no Decode call`);
    return listener;
  }

  #release(slot: number): void {
    this.#slots[slot] = undefined;
    this.#free.push(slot);
  }

  /** Ends the stream and all of its calls with a failure. A second call does nothing. */
  #end(failure: Failure): void {
    if (this.#ended.signal.aborted) return;
    this.#ended.abort(failure);
    this.#requests.end();
    this.#onEnd(failure);
    const ofCall = failureOfCall(failure);
    for (const listener of this.#slots.splice(0)) if (listener !== LEFT) listener?.onFailure(ofCall);
  }
}

/**
 * Returns the failure of a stream as the failure of one of its calls. A message that one side cannot take is no fault of the request, which
 * another instance may compute.
 */
function failureOfCall(failure: Failure): Failure {
  if (failure.code !== 'internal' && failure.code !== 'invalid_request') return failure;
  return new Failure('unavailable', failure.message, { told: 'an instance failed: try again', cause: failure });
}
