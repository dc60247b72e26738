/**
 * Replies of an instance in one message: the tokens of all its Decode calls that one step of the engine has sampled, in columns, and other
 * replies of the calls, among them the progress of Prefill calls.
 *
 *   row   slot  token  position  finish   details
 *   0     3     1712   41        0
 *   1     0     9      130       stop     its report, log-probabilities
 *
 * A stream of HTTP/2 costs CPU time by the message: one for a step costs a fraction of one for each token.
 */
import { Failure, isFailureCode, type FailureCode } from '../base/failure.ts';
import type { DecodeReplies, MissingBlocks, PrefillReply, Report, SampledMessage } from './messages.ts';
import { packTokens, unpackTokens } from './packing.ts';

/** Calls that one stream can carry (P1). */
export const MAX_SLOTS = 1 << 16;
/**
 * Numbers in one message; replies beyond it go into the next one. With eight bytes for each number, a message stays below the 16 MiB that
 * the transport takes, also when its last reply is a chunk of a prompt with log-probabilities.
 */
const MAX_NUMBERS = 1 << 18;
/** Room of a report, and of each of its links, in numbers. */
const REPORT_NUMBERS = 32;
const LINK_NUMBERS = 16;
/** Messages are numbered modulo this. */
const NUMBERS = 2 ** 32;

/** Why an output ended, by its byte in a message. */
const finishes = [undefined, 'stop', 'length'] as const;
/** Reason why an output ended; undefined: it goes on. */
export type Finish = (typeof finishes)[number];

/** The end of a call before its last token or its report. */
export interface CallFailure {
  readonly code: FailureCode;
  readonly message: string;
  /** The message as clients read it. */
  readonly told: string;
}

/** Receives the replies of calls, each with the slot of its call. */
export interface ReplyListener {
  /** The call needs other sources of its blocks. */
  onMissing(slot: number, missing: MissingBlocks): void;
  /** Tokens of the prompt with their log-probabilities. */
  onPrompt(slot: number, tokens: readonly SampledMessage[]): void;
  /** A token of the output; the last one, with `finish`, ends the call. */
  onToken(slot: number, sampled: SampledMessage, finish: Finish, report: Report | undefined): void;
  /** Progress of a prefill; the last reply, with a report, ends the call. */
  onPrefill(slot: number, prefill: PrefillReply): void;
  /** The call has ended without its last token or its report. */
  onFailure(slot: number, failure: CallFailure): void;
}

type Writable<T> = { -readonly [K in keyof T]: T[K] extends readonly (infer Item)[] ? Item[] : T[K] };
interface Columns {
  readonly slots: number[];
  readonly tokens: number[];
  readonly positions: number[];
  readonly finishes: number[];
  readonly rest: Writable<Pick<DecodeReplies, 'details' | 'events'>>;
  numNumbers: number;
}

const noColumns = (): Columns => ({
  slots: [],
  tokens: [],
  positions: [],
  finishes: [],
  rest: { details: [], events: [] },
  numNumbers: 0,
});

/** Returns about the number of numbers in a report; 0 without one. */
function numbersOf(report: Report | null | undefined): number {
  return report ? REPORT_NUMBERS + LINK_NUMBERS * report.links.length : 0;
}

/** Collects the replies of calls, and makes messages of them. Its user bounds {@link numMessages} (P1). */
export class ReplyWriter implements ReplyListener {
  /** Columns of the messages that are not taken yet, in order. */
  readonly #pending: Columns[] = [];
  #number = 0;

  /** Messages that wait to be taken. */
  get numMessages(): number {
    return this.#pending.length;
  }

  onMissing(slot: number, missing: MissingBlocks): void {
    this.#room(1 + missing.reason.length / 2).rest.events.push({ slot, missing });
  }

  onPrompt(slot: number, tokens: readonly SampledMessage[]): void {
    const numNumbers = tokens.reduce((sum, { topTokens }) => sum + 4 + 2 * topTokens.length, 0);
    this.#room(numNumbers).rest.events.push({ slot, prompt: { tokens } });
  }

  onToken(slot: number, sampled: SampledMessage, finish: Finish, report: Report | undefined): void {
    const { token, position, logprob, topTokens, topLogprobs } = sampled;
    const hasDetail = report !== undefined || logprob.length > 0 || topTokens.length > 0;
    const columns = this.#room(4 + 2 * topTokens.length + numbersOf(report));
    if (hasDetail)
      columns.rest.details.push({
        row: columns.slots.length,
        report: report ?? null,
        logprob,
        topTokens,
        topLogprobs,
      });
    columns.slots.push(slot);
    columns.tokens.push(token);
    columns.positions.push(position);
    columns.finishes.push(finishes.indexOf(finish));
  }

  onPrefill(slot: number, prefill: PrefillReply): void {
    this.#room(3 + numbersOf(prefill.report)).rest.events.push({ slot, prefill });
  }

  onFailure(slot: number, failure: CallFailure): void {
    const { message, told } = failure;
    this.#room(4 + (message.length + told.length) / 2).rest.events.push({ slot, failure });
  }

  /** Returns the columns in which there is room for so many numbers, or which are empty. */
  #room(numNumbers: number): Columns {
    let last = this.#pending.at(-1);
    if (!last || last.numNumbers + numNumbers > MAX_NUMBERS) {
      last = noColumns();
      this.#pending.push(last);
    }
    last.numNumbers += numNumbers;
    return last;
  }

  /** Returns the next message; undefined when there are no replies. */
  take(): DecodeReplies | undefined {
    const columns = this.#pending.shift();
    if (!columns) return undefined;
    const number = this.#number;
    this.#number = (number + 1) % NUMBERS;
    return {
      number,
      slots: packTokens(columns.slots),
      tokens: packTokens(columns.tokens),
      positions: packTokens(columns.positions),
      finishes: Buffer.from(columns.finishes),
      ...columns.rest,
    };
  }
}

const NONE: readonly never[] = [];

/** Reads the messages of one stream in order. */
export class ReplyReader {
  readonly #listener: ReplyListener;
  #number = 0;

  constructor(listener: ReplyListener) {
    this.#listener = listener;
  }

  /**
   * Passes the replies of a message to the listener; the message before, if it comes again, is dropped (R1). @throws Failure `internal`
   * when a message is missing or malformed: the stream cannot go on.
   */
  read(replies: DecodeReplies): void {
    if (replies.number === (this.#number + NUMBERS - 1) % NUMBERS) return;
    if (replies.number !== this.#number)
      throw malformed(`message ${replies.number} came when ${this.#number} was next`);
    this.#number = (this.#number + 1) % NUMBERS;
    for (const { slot, missing, prompt, prefill } of replies.events) {
      if (missing) this.#listener.onMissing(slot, missing);
      if (prefill) this.#listener.onPrefill(slot, prefill);
      if (!prompt) continue;
      prompt.tokens.forEach(checkAlternatives);
      this.#listener.onPrompt(slot, prompt.tokens);
    }
    this.#readTokens(replies);
    for (const { slot, failure } of replies.events) {
      if (!failure) continue;
      const { code, message, told } = failure;
      this.#listener.onFailure(slot, { code: isFailureCode(code) ? code : 'internal', message, told });
    }
  }

  #readTokens(replies: DecodeReplies): void {
    const { details } = replies;
    const { length } = replies.finishes;
    const columns = [replies.slots, replies.tokens, replies.positions];
    if (columns.some((column) => column.length !== 4 * length))
      throw malformed(`its columns have ${columns.map((column) => column.length / 4).join(', ')} and ${length} rows`);
    const misplaced = details.find(({ row }, i) => row >= length || row <= (details[i - 1]?.row ?? -1));
    if (misplaced) throw malformed(`details of row ${misplaced.row} are out of order, or the row does not exist`);
    details.forEach(checkAlternatives);
    const [slots, tokens, positions] = columns.map(unpackTokens) as [Uint32Array, Uint32Array, Uint32Array];
    let next = 0;
    for (let row = 0; row < length; row++) {
      const detail = details[next]?.row === row ? details[next++] : undefined;
      const finish = replies.finishes[row] ?? 0;
      if (finish >= finishes.length) throw malformed(`no finish has the number ${finish}`);
      const sampled = {
        token: tokens[row] ?? 0,
        position: positions[row] ?? 0,
        logprob: detail?.logprob ?? NONE,
        topTokens: detail?.topTokens ?? NONE,
        topLogprobs: detail?.topLogprobs ?? NONE,
      };
      this.#listener.onToken(slots[row] ?? 0, sampled, finishes[finish], detail?.report ?? undefined);
    }
  }
}

/** @throws Failure `internal` when a token has not as many alternatives as log-probabilities of them */
function checkAlternatives({ topTokens, topLogprobs }: Pick<SampledMessage, 'topTokens' | 'topLogprobs'>): void {
  if (topTokens.length !== topLogprobs.length)
    throw malformed(`${topTokens.length} alternatives have ${topLogprobs.length} log-probabilities`);
}

/** Returns the failure of a stream whose replies cannot be right. */
export function malformed(why: string): Failure {
  return new Failure('internal', `malformed replies: ${why}`);
}
