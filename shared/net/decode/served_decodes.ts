/**
 * Instance's side of the streams that carry the Decode and Prefill calls of routers: starts each call, and sends the replies of all.
 *
 *   start ──► session ══ tokens, missing blocks, progress ══► ReplyWriter ──one message after the other──► router
 *   cancel, deadline, end of the stream ──► the session's signal aborts (R2)
 *
 * While a message is sent, further replies wait and become the next one: a router that is behind gets fewer, larger messages.
 */
import { setMaxListeners } from 'node:events';
import type { Clock } from '../../base/clock.ts';
import { Condition } from '../../base/condition.ts';
import { asFailure, Failure } from '../../base/failure.ts';
import { DONE } from '../../base/signal.ts';
import { MAX_SLOTS, ReplyWriter, type Finish } from '../../protocol/decode_replies.ts';
import type {
  DecodeReplies,
  DecodeRequest,
  DecodeStart,
  MissingBlocks,
  PrefillReply,
  PrefillRequest,
  Report,
  RequestContext,
  SampledMessage,
} from '../../protocol/messages.ts';
import type { Handler, ServedCall } from '../network.ts';

/** Messages that may wait to be sent; beyond it no request is read (P1). */
const MAX_WAITING = 4;

/** Takes the end of a call. Replies after it are dropped. */
interface CallOutput {
  /** Ends the call before its last token or its report. */
  fail(error: unknown): void;
}

/** Takes the replies of a Decode call. */
export interface DecodeOutput extends CallOutput {
  /** Asks for other sources of the blocks. */
  missing(missing: MissingBlocks): void;
  /** Sends tokens of the prompt with their log-probabilities. */
  prompt(tokens: readonly SampledMessage[]): void;
  /** Sends a token; the last one, with `finish`, ends the call. */
  token(sampled: SampledMessage, finish: Finish, report: Report | undefined): void;
}

/** Takes the replies of a Prefill call. */
export interface PrefillOutput extends CallOutput {
  /** Sends progress; the reply with a report ends the call. */
  prefill(reply: PrefillReply): void;
}

/** One Decode call at the instance. */
export interface DecodeSession {
  /** Takes an answer to missing blocks, or a give-up. */
  take(message: DecodeRequest): void;
}

/** Starts the session of a Decode call. Its signal aborts when the caller cancels it or is gone, and at its deadline. */
export type StartDecode = (start: DecodeStart, call: ServedCall, output: DecodeOutput) => DecodeSession;
/** Starts a Prefill call, with such a signal. */
export type StartPrefill = (request: PrefillRequest, call: ServedCall, output: PrefillOutput) => void;

interface Starts {
  readonly decode: StartDecode;
  readonly prefill: StartPrefill;
}

const refusePrefill: StartPrefill = (_request, _call, output) => {
  output.fail(new Failure('invalid_request', 'this instance does not serve Prefill'));
};

/** Serves the streams that carry Decode and Prefill calls. */
export class DecodeServer {
  readonly #clock: Clock;
  readonly #starts: Starts;
  readonly #streams = new Set<ServedStream>();
  #isClosing = false;

  /** Without `prefill` it refuses Prefill calls. */
  constructor(clock: Clock, decode: StartDecode, prefill: StartPrefill = refusePrefill) {
    this.#clock = clock;
    this.#starts = { decode, prefill };
  }

  /** Handler of one stream. */
  readonly handler: Handler<'decode'> = (requests, call) => this.#serve(requests, call);

  /** Ends each stream, now and later, as soon as it has no call: a process that drains does not wait for routers to leave. */
  close(): void {
    this.#isClosing = true;
    for (const stream of this.#streams) stream.close();
  }

  async *#serve(requests: AsyncIterable<DecodeRequest>, call: ServedCall): AsyncGenerator<DecodeReplies> {
    const stream = new ServedStream(this.#clock, this.#starts, call);
    this.#streams.add(stream);
    void stream.listen(requests).then(() => {
      if (this.#isClosing) stream.close();
    });
    if (this.#isClosing) stream.close();
    try {
      yield* stream.replies();
    } finally {
      stream.end();
      this.#streams.delete(stream);
    }
  }
}

/** One stream of a router. */
class ServedStream {
  readonly #clock: Clock;
  readonly #starts: Starts;
  readonly #call: ServedCall;
  readonly #writer = new ReplyWriter();
  /** There are replies to send, or the stream has ended. */
  readonly #written = new Condition();
  /** A message was taken, or the stream has ended. */
  readonly #taken = new Condition();
  /** Calls that have not ended. Bounded by MAX_SLOTS (P1); the engine refuses calls long before. */
  readonly #open = new Map<number, ServedSlot>();
  #isClosing = false;
  #end: { readonly failure: Failure | undefined } | undefined;

  constructor(clock: Clock, starts: Starts, call: ServedCall) {
    this.#clock = clock;
    this.#starts = starts;
    this.#call = call;
    const leave = (): void => {
      this.end();
    };
    call.signal.addEventListener('abort', leave, { once: true });
    if (call.signal.aborted) leave();
  }

  /** Takes the caller's messages until it ends the stream. */
  async listen(requests: AsyncIterable<DecodeRequest>): Promise<void> {
    try {
      for await (const message of requests) {
        await this.#taken.until(() => this.#end !== undefined || this.#writer.numMessages <= MAX_WAITING);
        if (this.#end) return;
        this.#take(message);
      }
      this.end();
    } catch (error) {
      this.end(asFailure(error));
    }
  }

  /** Yields replies until the stream has ended. @throws Failure that ended it */
  async *replies(): AsyncGenerator<DecodeReplies> {
    while (!this.#end) {
      const replies = this.#writer.take();
      if (replies) {
        this.#taken.notify();
        yield replies;
      } else if (this.#isClosing && this.#open.size === 0) return;
      else await this.#written.changed();
    }
    if (this.#end.failure) throw this.#end.failure;
  }

  /** Ends the stream as soon as it has no call. */
  close(): void {
    this.#isClosing = true;
    this.#written.notify();
  }

  /** Ends the stream with all of its calls. A second call does nothing. */
  end(failure?: Failure): void {
    if (this.#end) return;
    this.#end = { failure };
    for (const slot of this.#open.values()) slot.leave();
    this.#open.clear();
    this.#written.notify();
    this.#taken.notify();
  }

  /** @throws Failure `invalid_request` when the stream cannot go on */
  #take(message: DecodeRequest): void {
    const { slot, start, prefill, cancel } = message;
    if (start) {
      const open = this.#begin(slot, start.context);
      open.session = this.#starts.decode(start, this.#callOf(open), open);
    } else if (prefill) {
      const open = this.#begin(slot, prefill.context);
      this.#starts.prefill(prefill, this.#callOf(open), open);
    } else if (cancel) this.#open.get(slot)?.cancel(new Failure('cancelled', 'the caller cancelled the call'));
    else this.#open.get(slot)?.session?.take(message);
  }

  #callOf({ signal }: ServedSlot): ServedCall {
    return { signal, caller: this.#call.caller };
  }

  /** Takes a slot for a call. @throws Failure `invalid_request` when there is no such slot, or it is taken */
  #begin(number: number, context: RequestContext | null): ServedSlot {
    if (number >= MAX_SLOTS) throw new Failure('invalid_request', `slot ${number} of a call is not below ${MAX_SLOTS}`);
    if (this.#open.has(number))
      throw new Failure('invalid_request', `slot ${number} has a call, which has not ended yet`);
    const slot = new ServedSlot(number, this.#writer, () => {
      if (!slot.isOpen) this.#open.delete(number);
      this.#written.notify();
    });
    this.#open.set(number, slot);
    const timeoutMs = context?.timeoutMs ?? 0;
    if (timeoutMs > 0) void slot.endAfter(timeoutMs, this.#clock);
    return slot;
  }
}

/** The call in one slot, and its output. */
class ServedSlot implements DecodeOutput, PrefillOutput {
  readonly #number: number;
  readonly #writer: ReplyWriter;
  readonly #onReply: () => void;
  readonly #left = new AbortController();
  /** Aborts when the call has ended. */
  readonly #ended = new AbortController();
  /** Undefined for a Prefill call. */
  session: DecodeSession | undefined;

  /** `onReply` is called after each reply, and so when the call has ended. */
  constructor(number: number, writer: ReplyWriter, onReply: () => void) {
    this.#number = number;
    this.#writer = writer;
    this.#onReply = onReply;
    // Each task of the call adds a listener, and all are dropped with the call: Node's warning about many listeners is switched off.
    setMaxListeners(0, this.#left.signal);
  }

  /** Aborts when the caller has cancelled the call or is gone, and at the deadline. */
  get signal(): AbortSignal {
    return this.#left.signal;
  }

  get isOpen(): boolean {
    return !this.#ended.signal.aborted;
  }

  /** Ends the call when `timeoutMs` have passed. */
  async endAfter(timeoutMs: number, clock: Clock): Promise<void> {
    await clock.sleep(timeoutMs, this.#ended.signal);
    if (this.isOpen) this.cancel(new Failure('deadline_exceeded', `no end within ${timeoutMs} ms`));
  }

  /** Ends the session without a reply. */
  leave(): void {
    this.#ended.abort(DONE);
    this.#left.abort(DONE);
  }

  /** Ends the session, and replies that the call has ended. */
  cancel(why: Failure): void {
    this.fail(why);
    this.#left.abort(DONE);
  }

  missing(missing: MissingBlocks): void {
    if (!this.isOpen) return;
    this.#writer.onMissing(this.#number, missing);
    this.#onReply();
  }

  prompt(tokens: readonly SampledMessage[]): void {
    if (!this.isOpen) return;
    this.#writer.onPrompt(this.#number, tokens);
    this.#onReply();
  }

  token(sampled: SampledMessage, finish: Finish, report: Report | undefined): void {
    if (!this.isOpen) return;
    this.#writer.onToken(this.#number, sampled, finish, report);
    if (finish) this.#ended.abort(DONE);
    this.#onReply();
  }

  prefill(reply: PrefillReply): void {
    if (!this.isOpen) return;
    this.#writer.onPrefill(this.#number, reply);
    if (reply.report) this.#ended.abort(DONE);
    this.#onReply();
  }

  fail(error: unknown): void {
    if (!this.isOpen) return;
    const { code, message, told } = asFailure(error);
    this.#writer.onFailure(this.#number, { code, message, told });
    this.#ended.abort(DONE);
    this.#onReply();
  }
}
