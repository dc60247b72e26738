/**
 * The run itself: conversations begin at their times of arrival, at most so many at a time, and each sends its turns one after the other.
 *
 *   due ──► place free? ──► turn 1 ──► answer ──► turn 2 (with the answers before) ──► …
 *       queue time      start      TTFT, intervals
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { Condition } from '../../../shared/base/condition.ts';
import type { HttpClient } from './http_client.ts';
import { Measurements } from './measurements.ts';
import { requestBody, type BodyOptions, type Message } from './request_body.ts';
import { runRequest } from './request_run.ts';
import type { Workload } from './workload.ts';

/** Conversations that are begun before other work of the thread comes: answers, progress, signals. */
const AT_ONCE = 32;

/** How a workload is sent. */
export interface RunOptions {
  readonly endpoint: string;
  readonly body: BodyOptions;
  /** When each conversation is due, in milliseconds after the start. */
  readonly arrivalMs: Float64Array;
  /** Most conversations at a time; Infinity: as many as arrive. */
  readonly maxConcurrency: number;
  /** Text before the number of a request, in the header `x-request-id`. */
  readonly requestIdPrefix: string;
}

/** How far a run is. */
export interface RunProgress {
  readonly numEnded: number;
  readonly numFailed: number;
  readonly numInFlight: number;
}

/** The process around a run. */
export interface RunHost {
  readonly client: HttpClient;
  readonly clock: Clock;
  /** Ends the run early: what was measured so far counts. */
  readonly signal: AbortSignal;
  readonly onProgress: (progress: RunProgress) => void;
}

/** A run that ended. */
export interface LoadResult {
  readonly measurements: Measurements;
  readonly durationMs: number;
  /** Whether the run was ended before its last request. */
  readonly isInterrupted: boolean;
  /** Mean time that conversations began after they were due, of those that waited for no place. */
  readonly lateMs: number;
}

/** Sends a workload and resolves when its last request ended. */
export async function runLoad(workload: Workload, options: RunOptions, host: RunHost): Promise<LoadResult> {
  const run = new LoadRun(workload, options, host);
  return run.run();
}

class LoadRun {
  readonly #workload: Workload;
  readonly #options: RunOptions;
  readonly #host: RunHost;
  readonly #measurements = new Measurements();
  readonly #ended = new Condition();
  readonly #startMs: number;
  #numOpen = 0;
  #numSent = 0;
  #lateMs = 0;
  #numOnTime = 0;

  constructor(workload: Workload, options: RunOptions, host: RunHost) {
    [this.#workload, this.#options, this.#host] = [workload, options, host];
    this.#startMs = host.clock.nowMs();
  }

  async run(): Promise<LoadResult> {
    const { numConversations } = this.#workload;
    const { clock, signal } = this.#host;
    for (let i = 0; i < numConversations && !signal.aborted; i++) {
      const dueMs = this.#startMs + (this.#options.arrivalMs[i] ?? 0);
      const waitMs = dueMs - clock.nowMs();
      if (waitMs > 0) await clock.sleep(waitMs, signal);
      else if (i % AT_ONCE === AT_ONCE - 1) await clock.turn();
      const hasRoom = this.#numOpen < this.#options.maxConcurrency;
      if (!hasRoom) await this.#ended.until(() => this.#numOpen < this.#options.maxConcurrency, signal);
      // Read anew: the run may have been ended while it waited.
      if (this.#host.signal.aborted) break;
      if (hasRoom) {
        this.#lateMs += Math.max(0, clock.nowMs() - dueMs);
        this.#numOnTime++;
      }
      this.#numOpen++;
      void this.#converse(i, dueMs).finally(() => {
        this.#numOpen--;
        this.#ended.notify();
      });
    }
    await this.#ended.until(() => this.#numOpen === 0);
    return {
      measurements: this.#measurements,
      durationMs: clock.nowMs() - this.#startMs,
      isInterrupted: signal.aborted,
      lateMs: this.#numOnTime === 0 ? 0 : this.#lateMs / this.#numOnTime,
    };
  }

  async #converse(index: number, dueMs: number): Promise<void> {
    const { clock, signal } = this.#host;
    const { endpoint, body, requestIdPrefix } = this.#options;
    const conversation = this.#workload.conversation(index);
    const { numTurns } = conversation;
    const before: Message[] = [];
    for (let at = 0; at < numTurns && !signal.aborted; at++) {
      const { prompt, promptTokens, outputTokens } = conversation.turn(at);
      const isTextKept = at + 1 < numTurns;
      const request = {
        path: endpoint,
        body: requestBody(body, { prompt, outputTokens, before }),
        headers: { 'x-request-id': `${requestIdPrefix}${this.#numSent++}` },
      };
      const queueMs = at === 0 ? Math.max(0, clock.nowMs() - dueMs) : 0;
      const asked = { request, promptTokens, queueMs, isTextKept };
      const { measured, text } = await runRequest(asked, this.#host, this.#startMs);
      this.#measurements.add(measured);
      this.#showProgress();
      // A conversation without one of its answers is another one.
      if (measured.end.kind !== 'done') return;
      if (isTextKept) before.push({ role: 'user', content: String(prompt) }, { role: 'assistant', content: text });
    }
  }

  #showProgress(): void {
    const { requests, numFailed } = this.#measurements;
    this.#host.onProgress({ numEnded: requests.length, numFailed, numInFlight: this.#numOpen });
  }
}
