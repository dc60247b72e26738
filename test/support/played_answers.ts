/** Answers that instances play: token by token, each sent when the router has read the one before, so that no answer depends on how fast a machine is. */
import assert from 'node:assert/strict';
import { Failure } from '../../shared/base/failure.ts';
import type { DecodeOutput, StartDecode } from '../../shared/net/decode/served_decodes.ts';
import type { DecodeStart, SampledMessage } from '../../shared/protocol/messages.ts';
import { unpackTokens } from '../../shared/protocol/packing.ts';
import { requestOf, type Request } from '../../shared/protocol/request.ts';
import { emptyReport } from './empty_report.ts';

/** Tokens that instances generate for one request of a client. */
export interface Play {
  /** Tokens of each sample of each prompt, a shorter prompt first. Without a token that ends it an answer fails after its last one. */
  readonly outputs: readonly (readonly number[])[];
  /** Tokens of one sequence that are sent in one message. */
  readonly perMessage: number;
}

/** Waits until the router has read so many tokens of a request, or `signal` aborts. */
export type Pacing = (requestId: string, numTokens: number, signal: AbortSignal) => Promise<unknown>;

/** Returns log-probabilities that depend on the position alone, and that every machine writes alike: multiples of an eighth. */
function sampledAt(position: number, token: number, numTop: number, vocabSize: number): SampledMessage {
  const logprob = -(1 + (position % 5)) / 8;
  return {
    token,
    position,
    logprob: numTop < 0 ? [] : [logprob],
    topTokens: Array.from({ length: Math.max(0, numTop) }, (_, i) => (token + 7 * i) % vocabSize),
    topLogprobs: Array.from({ length: Math.max(0, numTop) }, (_, i) => logprob - i),
  };
}

/** One Decode call under way. */
class PlayedCall {
  readonly index: number;
  readonly id: string;
  readonly request: Request;
  readonly signal: AbortSignal;
  readonly #tokens: Uint32Array;
  readonly #output: DecodeOutput;
  numSent = 0;
  isOpen = true;

  constructor(start: DecodeStart, signal: AbortSignal, output: DecodeOutput) {
    const request = requestOf(start.request);
    assert(request && start.context);
    [this.request, this.id, this.index] = [request, start.context.requestId, start.group?.index ?? 0];
    [this.#tokens, this.#output, this.signal] = [unpackTokens(start.tokens), output, signal];
    signal.addEventListener('abort', () => (this.isOpen = false), { once: true });
  }

  sendPrompt(vocabSize: number): void {
    const { promptLogprobs } = this.request;
    if (promptLogprobs === 0) return;
    const all = [...this.#tokens].map((token, at) => sampledAt(at, token, promptLogprobs - 1, vocabSize));
    this.#output.prompt(all.slice(1));
  }

  /** Sends the next token of `tokens`, and ends the call with the last one that the request asks for. Returns whether the call goes on. */
  sendNext(tokens: readonly number[], vocabSize: number): boolean {
    const { promptLength, maxLength, stopTokenIds, sampling } = this.request;
    const token = tokens[this.numSent];
    if (token === undefined) {
      this.isOpen = false;
      this.#output.fail(new Failure('invalid_request', 'the instance cannot go on'));
      return false;
    }
    const position = promptLength + this.numSent;
    const finish = stopTokenIds.includes(token) ? 'stop' : position + 1 >= maxLength ? 'length' : undefined;
    const report = { ...emptyReport, cachedTokens: promptLength - 1, computedTokens: 1 };
    const sampled = sampledAt(position, token, sampling.numLogprobs, vocabSize);
    this.#output.token(sampled, finish, this.numSent === 0 ? report : undefined);
    this.numSent++;
    if (finish) this.isOpen = false;
    return this.isOpen;
  }
}

/** Plays one answer after the other. */
export class PlayedAnswers {
  readonly #vocabSize: number;
  readonly #calls: PlayedCall[] = [];
  #play: Play | undefined;
  #pacing: Pacing | undefined;

  constructor(vocabSize: number) {
    this.#vocabSize = vocabSize;
  }

  /** Sets what the next request gets. Without pacing all tokens are sent at once. */
  expect(play: Play, pacing: Pacing | undefined): void {
    this.#calls.length = 0;
    [this.#play, this.#pacing] = [play, pacing];
  }

  readonly session: StartDecode = (start, { signal }, output) => {
    const play = this.#play;
    assert(play, 'an answer is expected');
    this.#calls.push(new PlayedCall(start, signal, output));
    if (this.#calls.length === play.outputs.length)
      this.#run(this.#calls.splice(0), play).catch((error: unknown) => {
        output.fail(error);
      });
    return { take: () => undefined };
  };

  /** Sends the tokens of all calls in turn. */
  async #run(calls: readonly PlayedCall[], { outputs, perMessage }: Play): Promise<void> {
    const pacing = this.#pacing;
    const lengthOf = ({ request }: PlayedCall): number => request.promptLength;
    const ordered = [...calls].sort((a, b) => lengthOf(a) - lengthOf(b) || a.index - b.index);
    for (const call of ordered) call.sendPrompt(this.#vocabSize);
    while (ordered.some(({ isOpen }) => isOpen))
      for (const [i, call] of ordered.entries()) {
        if (!call.isOpen) continue;
        const tokens = outputs[i] ?? [];
        for (let sent = 0; sent < perMessage; sent++) if (!call.sendNext(tokens, this.#vocabSize)) break;
        await pacing?.(call.id, call.numSent, call.signal);
      }
  }
}
