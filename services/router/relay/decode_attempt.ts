/**
 * One attempt at a request on one decode instance: a Decode call, a Prefill call alongside it, and another Prefill where one was
 * lost. When the attempt fails, the relay chooses the next instance.
 *
 * The call ends when its taker has enough or its signal aborts, and with the stream of its instance, for instance when that is lost.
 */
import { asFailure, Failure } from '../../../shared/base/failure.ts';
import { Handover, type Taken } from '../../../shared/base/handover.ts';
import { DONE } from '../../../shared/base/signal.ts';
import { peerFailure } from '../../../shared/net/peer_failure.ts';
import type { DecodeCall, DecodeListener } from '../../../shared/net/decode/decode_stream.ts';
import type { Finish } from '../../../shared/protocol/decode_replies.ts';
import type { MissingBlocks, Report, SampledMessage } from '../../../shared/protocol/messages.ts';
import type { Chosen } from '../../../shared/placement/conductor.ts';
import { AttemptBlocks } from './attempt_blocks.ts';
import { AttemptMessages } from './attempt_messages.ts';
import type { AttemptOptions } from './attempt_options.ts';
import { expectedTokens } from './expected_length.ts';
import { explainMisses } from './explained_misses.ts';
import type { InFlightRequest } from './in_flight_request.ts';
import { PlacedCall } from './placed_call.ts';
import type { FullBlocks } from './request_chain.ts';
import { TOKEN } from '../record/request_events.ts';
import type { Placed } from './sample_group.ts';

/** One output token of a request. */
export interface GeneratedToken {
  readonly sampled: SampledMessage;
  /** Reason why the output ended; only with the last token. */
  readonly finish: Finish;
}

/** Takes the output tokens of a request one after the other. It must not throw: relay takes an error for one of the instance. */
export type TakeToken = (generated: GeneratedToken) => Taken;

/** One attempt at a request: runs the Decode call and its prefills, and gives the output tokens to their taker as they come. */
export class DecodeAttempt implements DecodeListener {
  readonly #options: AttemptOptions;
  readonly #inFlight: InFlightRequest;
  readonly #chosen: Chosen;
  /** Full blocks before the tail of {@link #tokens}. */
  readonly #blocks: FullBlocks;
  /** The request's tokens when the attempt began: the prompt and the output so far. */
  readonly #tokens: Uint32Array;
  readonly #messages: AttemptMessages;
  /** Number of the attempt, from 1. */
  readonly #number: number;
  /** Aborts when the Decode call is over. */
  readonly #over = new AbortController();
  /** Output tokens received in this attempt. */
  #numTokens = 0;
  /** Way of the tokens to their taker; those that wait are bounded by the answer's (P1): a reader that is behind holds up nobody else. */
  #output: Handover<GeneratedToken> | undefined;
  /** The Decode call, once it is started, and its placement. */
  #call: DecodeCall | undefined;
  #placed: PlacedCall | undefined;
  /** Its blocks, from then on. */
  #rounds: AttemptBlocks | undefined;
  /** Report of the decode instance, which comes with its first token. */
  #report: Report | undefined;
  /** How the attempt ended; undefined while it runs. */
  #outcome: string | undefined;

  constructor(options: AttemptOptions, inFlight: InFlightRequest, { chosen, blocks, group }: Placed) {
    this.#options = options;
    this.#inFlight = inFlight;
    this.#chosen = chosen;
    this.#blocks = blocks;
    this.#tokens = inFlight.tokens.view();
    this.#messages = new AttemptMessages({
      inFlight,
      tokens: this.#tokens,
      lastDigest: blocks.lastDigest,
      router: options.router,
      digest: options.view.model?.digest,
      group,
      expectedTokens: expectedTokens(options.lengths, inFlight),
      timeoutMs: Math.max(1, Math.ceil(inFlight.untilMs - options.clock.nowMs())),
    });
    // With prompt log-probabilities every prompt row is computed, so held blocks save nothing.
    const heldTokens = inFlight.generation.promptLogprobs ? 0 : chosen.heldTokens;
    const { decode, reason, explanation, prefill } = chosen;
    const placed = { decode: decode.member.name, reason, explanation, heldTokens, isPrefilling: Boolean(prefill) };
    inFlight.trace.emit({ kind: 'placed', ...placed });
    this.#number = inFlight.numAttempts;
  }

  /** Runs until the last token was taken, or `take` has enough. @throws Failure that ended the attempt before */
  async run(signal: AbortSignal, take: TakeToken): Promise<void> {
    const { trace, generation } = this.#inFlight;
    let isRecorded = false;
    const record = (): void => {
      if (!isRecorded) trace.emit({ kind: 'attempt', attempt: this.#number, outcome: this.#outcome ?? '' });
      isRecorded = true;
    };
    const output = (this.#output = new Handover((generated) => {
      // Counted as they are taken, because the answer may end before the attempt does. The one token of a prompt that is wanted alone is
      // no output.
      if (!generation.isPromptOnly) trace.emit(TOKEN);
      if (generated.finish) {
        record();
        this.#learn('tbtMs');
      }
      return take(generated);
    }));
    const leave = (): void => {
      // An answer that is complete is taken to its end.
      if (this.#isOver) return;
      const { reason } = signal as { reason: unknown };
      output.fail(reason instanceof Failure ? reason : new Failure('cancelled', 'the caller went away'));
      this.#close('cancelled');
    };
    signal.addEventListener('abort', leave, { once: true });
    try {
      if (signal.aborted) leave();
      else this.#start();
      await output.ended;
    } catch (error) {
      this.#close(asFailure(error).message);
      throw error;
    } finally {
      signal.removeEventListener('abort', leave);
      // The taker has enough: the client disconnected, or a stop string matched.
      this.#close(signal.aborted ? 'cancelled' : 'stopped');
      record();
    }
  }

  #start(): void {
    const { trace, chain, generation } = this.#inFlight;
    const { conductor, decodes, clock } = this.#options;
    const chosen = this.#chosen;
    const { decode: instance } = chosen;
    const placed = (this.#placed = new PlacedCall(conductor, instance, chosen.work.decode));
    const { timeoutMs } = this.#messages;
    void clock.sleep(timeoutMs, this.#over.signal).then(() => {
      const text = `no end within ${timeoutMs} ms`;
      if (!this.#isOver) this.#failed(peerFailure(instance.member.address, { code: 'deadline_exceeded', text }));
    });
    const call = (this.#call = decodes.start(instance, this.#messages.start(chosen, placed.placement), this));
    // It could not be started.
    if (this.#isOver) return;
    explainMisses(this.#options, {
      trace,
      chain,
      chosen,
      promptTokens: generation.promptTokens,
      isComputingAll: generation.promptLogprobs !== undefined,
    });
    const attempt = {
      inFlight: this.#inFlight,
      chosen,
      blocks: this.#blocks,
      numTokens: this.#tokens.length,
      messages: this.#messages,
      number: this.#number,
    };
    this.#rounds = new AttemptBlocks(this.#options, attempt, placed, call);
  }

  onMissing(missing: MissingBlocks): void {
    if (this.#isOver) return;
    try {
      this.#rounds?.answerMissing(missing);
    } catch (error) {
      this.#failed(asFailure(error));
    }
  }

  /**
   * Appends log-probabilities of prompt tokens, in order of position; tokens that arrive twice are dropped (R1). @throws Failure `internal`
   * when they are no tokens of the model
   */
  onPrompt(tokens: readonly SampledMessage[]): void {
    if (this.#isOver) return;
    const known = this.#inFlight.generation.promptLogprobs;
    for (const { token, topTokens } of tokens) for (const id of [token, ...topTokens]) this.#checkId(id);
    for (const token of tokens) if (token.position === (known?.length ?? 0) + 1) known?.push(token);
  }

  /** @throws Failure `internal` when it is no token of this output (R1) */
  onToken(sampled: SampledMessage, finish: Finish, report: Report | undefined): void {
    if (this.#isOver) return;
    const { token, position } = sampled;
    const next = this.#tokens.length + this.#numTokens;
    if (position !== next) this.#refuse(`token ${position} came when ${next} was next`);
    this.#checkId(token);
    for (const id of sampled.topTokens) this.#checkId(id);
    try {
      this.#applyToken(report);
    } catch (error) {
      this.#failed(asFailure(error));
      return;
    }
    // The last token is taken by an attempt that is over.
    if (finish) this.#close('finished');
    this.#output?.push({ sampled, finish });
    if (finish) this.#output?.end();
  }

  /** @throws Failure `internal` when the id is outside the vocabulary */
  #checkId(id: number): void {
    const { vocabSize = Infinity } = this.#chosen.decode;
    if (id >= vocabSize) this.#refuse(`token id ${id} is outside the vocabulary of ${vocabSize}`);
  }

  /**
   * Ends the stream of the instance, because its replies cannot be right; the request may go on elsewhere. The second time it fails, since
   * the fault may be its own. @throws Failure `internal`
   */
  #refuse(text: string): never {
    const { address } = this.#chosen.decode.member;
    if (this.#inFlight.numRefused > 0) this.#failed(peerFailure(address, { code: 'internal', text }));
    this.#inFlight.numRefused++;
    throw new Failure('internal', text);
  }

  onFailure(failure: Failure): void {
    this.#failed(failure);
  }

  #failed(failure: Failure): void {
    this.#output?.end(failure);
    this.#close(failure.message);
  }

  /** Ends the attempt, with what it was waiting for (R2). A second call does nothing. */
  #close(outcome: string): void {
    if (this.#isOver) return;
    this.#outcome = outcome;
    this.#over.abort(DONE);
    this.#placed?.end();
    this.#call?.leave();
    if (outcome === 'finished') void this.#rounds?.finish(this.#report);
    else this.#rounds?.end();
  }

  get #isOver(): boolean {
    return this.#outcome !== undefined;
  }

  /** Lets later predictions know how this request's time compares with what the policy predicted. */
  #learn(time: 'ttftMs' | 'tbtMs'): void {
    const { record, elapsedMs } = this.#inFlight.trace;
    const prediction = this.#chosen.explanation?.uncorrected;
    const ms = record.measured(elapsedMs)[time];
    // Further samples of a prompt start after the first one's.
    if (prediction && ms !== undefined && record.sampleOf === undefined)
      this.#options.conductor.correction.learn(time, prediction, ms);
  }

  /** Records that a token came. */
  #applyToken(report: Report | undefined): void {
    const { trace } = this.#inFlight;
    if (this.#numTokens === 0) {
      this.#placed?.computed();
      this.#report = report;
      if (report) this.#options.conductor.learn(this.#chosen.decode, report);
      const isFirst = trace.record.ttftMs === undefined;
      trace.emit({ kind: 'firstToken', attempt: this.#number, report, isFirst });
      if (isFirst) this.#learn('ttftMs');
    }
    this.#numTokens++;
  }
}
