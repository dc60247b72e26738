/** One request: sends it, and takes the time of each part of its answer when that arrives. */
import type { Clock } from '../../../shared/base/clock.ts';
import { messageOf } from '../../../shared/base/failure.ts';
import { readAnswerEvent, type Usage } from './answer_events.ts';
import { EventStreamReader } from './event_stream.ts';
import { RequestError, type HttpClient, type HttpRequest } from './http_client.ts';
import type { MeasuredRequest, RequestEnd } from './measurements.ts';

/** Most tokens of an answer whose intervals are kept. */
const MAX_INTERVALS_OF_REQUEST = 2 ** 20;

/** Times and tokens of an answer, event by event. */
class AnswerTimes {
  readonly #startMs: number;
  #intervals = new Float32Array(64);
  #numTokenEvents = 0;
  #firstMs = NaN;
  #lastTokenMs = NaN;
  #lastMs: number;
  usage: Usage | undefined;
  text = '';
  /** Whether the server has said that the answer is complete. */
  isComplete = false;

  constructor(startMs: number) {
    this.#startMs = startMs;
    this.#lastMs = startMs;
  }

  /** Reads the data of an event that arrived at `nowMs`. @throws RequestError for an error in place of an answer */
  read(data: string, nowMs: number, isTextKept: boolean): void {
    if (data === '[DONE]') {
      this.isComplete = true;
      return;
    }
    const { isChoice, hasToken, isEnd, text, usage, error } = readAnswerEvent(data);
    if (error !== undefined) throw new RequestError('error in the stream', error);
    if (usage) this.usage = usage;
    if (!isChoice) return;
    this.#lastMs = nowMs;
    if (isTextKept) this.text += text;
    if (isEnd) this.isComplete = true;
    // The first token of an answer that ends at once is its end-of-text token, which has no event of its own.
    if (!hasToken && !(isEnd && this.#numTokenEvents === 0)) return;
    if (this.#numTokenEvents === 0) this.#firstMs = nowMs;
    else if (this.#numTokenEvents <= MAX_INTERVALS_OF_REQUEST) this.#addInterval(nowMs - this.#lastTokenMs);
    this.#numTokenEvents++;
    this.#lastTokenMs = nowMs;
  }

  #addInterval(ms: number): void {
    const at = this.#numTokenEvents - 1;
    if (at >= this.#intervals.length) {
      const larger = new Float32Array(2 * this.#intervals.length);
      larger.set(this.#intervals);
      this.#intervals = larger;
    }
    this.#intervals[at] = ms;
  }

  get hasTokens(): boolean {
    return this.#numTokenEvents > 0;
  }

  /** Figures of the answer so far. */
  get figures(): Pick<MeasuredRequest, 'ttftMs' | 'latencyMs' | 'intervalsMs'> & { readonly numTokenEvents: number } {
    const numIntervals = Math.min(Math.max(0, this.#numTokenEvents - 1), MAX_INTERVALS_OF_REQUEST);
    return {
      ttftMs: this.#firstMs - this.#startMs,
      latencyMs: this.#lastMs - this.#startMs,
      intervalsMs: this.#intervals.slice(0, numIntervals),
      numTokenEvents: this.#numTokenEvents,
    };
  }
}

/** A request of a run. */
export interface RunRequest {
  readonly request: HttpRequest;
  /** Tokens of the prompt as wanted, for servers that report no usage. */
  readonly promptTokens: number;
  readonly queueMs: number;
  /** Whether the text of the answer is wanted: the next turn sends it. */
  readonly isTextKept: boolean;
}

/** Sends a request and resolves when it ended, however it did. `runStartMs` is the time that `startMs` counts from. */
export async function runRequest(
  { request, promptTokens, queueMs, isTextKept }: RunRequest,
  { client, clock, signal }: { readonly client: HttpClient; readonly clock: Clock; readonly signal: AbortSignal },
  runStartMs: number,
): Promise<{ readonly measured: MeasuredRequest; readonly text: string }> {
  const startMs = clock.nowMs();
  const times = new AnswerTimes(startMs);
  let nowMs = startMs;
  const reader = new EventStreamReader((data) => {
    times.read(data, nowMs, isTextKept);
  });
  let end: RequestEnd = { kind: 'done' };
  try {
    await client.send(
      request,
      (bytes) => {
        nowMs = clock.nowMs();
        reader.push(bytes);
      },
      signal,
    );
    reader.end();
    if (!times.hasTokens) throw new RequestError('answer without tokens', 'the stream ended before its first token');
    if (!times.isComplete)
      throw new RequestError('answer cut off', 'the stream ended without finish_reason and [DONE]');
  } catch (error) {
    end = signal.aborted ? { kind: 'cut' } : failedBy(error);
  }
  const { numTokenEvents, ...figures } = times.figures;
  const { usage } = times;
  const measured: MeasuredRequest = {
    startMs: startMs - runStartMs,
    queueMs,
    end,
    ...figures,
    inputTokens: usage?.promptTokens ?? promptTokens,
    outputTokens: usage?.outputTokens ?? numTokenEvents,
    cachedTokens: usage?.cachedTokens,
  };
  return { measured, text: times.text };
}

function failedBy(error: unknown): RequestEnd {
  if (error instanceof RequestError) return { kind: 'failed', error: error.kind, message: error.message };
  return { kind: 'failed', error: 'answer cannot be read', message: messageOf(error) };
}
