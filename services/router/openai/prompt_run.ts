/**
 * One prompt from token ids to pieces of text: relay, detokenizer, stop strings, limits, the request's record.
 *
 * The response formats of chat and completions are views of the same pieces.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { ModelFolder } from '../../../shared/model/model_folder.ts';
import type { SamplingMessage, TokenMessage } from '../../../shared/protocol/messages.ts';
import type { RouterMetrics } from '../metrics.ts';
import type { Relay } from '../relay.ts';
import type { RequestLog, RequestRecord } from '../request_log.ts';
import { TextStream, type TextCodec } from '../text.ts';

export interface ApiContext {
  readonly servedName: string;
  readonly folder: ModelFolder;
  /** The longest prompt and output together. */
  readonly maxModelLen: () => number;
  readonly codec: TextCodec;
  readonly relay: Relay;
  readonly requests: RequestLog;
  readonly metrics: RouterMetrics;
  readonly clock: Clock;
  readonly maxRequests: number;
  readonly requestTimeoutMs: number;
  readonly newId: () => string;
  readonly drawSeed: () => number;
  readonly isDraining: () => boolean;
  /** Aborts, with a Failure as its reason, when the router cannot wait for what runs any longer. */
  readonly ending: AbortSignal;
}

export interface PromptJob {
  readonly promptTokens: readonly number[];
  readonly sampling: SamplingMessage;
  /** New tokens at most; undefined: as many as fit. */
  readonly maxTokens: number | undefined;
  readonly stops: readonly string[];
  readonly stopTokenIds: readonly number[];
}

/** A step of the output; text may lag behind the tokens. */
export interface Piece {
  readonly text: string;
  readonly tokens: readonly TokenMessage[];
  readonly finish: 'stop' | 'length' | undefined;
}

export interface PromptRun {
  readonly record: RequestRecord;
  readonly pieces: AsyncGenerator<Piece>;
  /** Ends it at once, wherever it is. */
  readonly abort: () => void;
}

/** A prefill's last word may come a moment after the first token; headers wait this long for it. */
const REPORT_WAIT_MS = 20;
const REPORT_POLL_MS = 2;

/** @throws Failure `overloaded` when too many requests are in flight. */
export function openRecord(context: ApiContext, endpoint: string): RequestRecord {
  const { requests, maxRequests, newId, isDraining } = context;
  if (isDraining()) throw new Failure('overloaded', 'this router is draining and takes nothing new');
  if (requests.numActive >= maxRequests) {
    throw new Failure('overloaded', `${maxRequests} requests are in flight: try again later`);
  }
  return requests.open(newId(), endpoint);
}

/** Checks the job against the model, then runs it lazily. @throws Failure before anything is placed. */
export function startPrompt(
  context: ApiContext,
  record: RequestRecord,
  job: PromptJob,
  signal: AbortSignal,
): PromptRun {
  const { folder } = context;
  const maxModelLen = context.maxModelLen();
  const { promptTokens } = job;
  record.promptTokens = promptTokens.length;
  const outside = promptTokens.find((token) => token >= folder.config.vocabSize);
  if (outside !== undefined) {
    throw new Failure(
      'invalid_request',
      `prompt: token id ${outside} is outside the vocabulary of ${folder.config.vocabSize}`,
    );
  }
  if (promptTokens.length === 0) throw new Failure('invalid_request', 'prompt: it has no tokens');
  const maxTokens = job.maxTokens ?? maxModelLen - promptTokens.length;
  if (promptTokens.length + Math.max(1, maxTokens) > maxModelLen) {
    throw new Failure(
      'context_too_long',
      `${promptTokens.length} prompt tokens and ${maxTokens} new ones exceed the context of ${maxModelLen}: shorten the prompt or lower max_tokens`,
    );
  }
  const generation = {
    requestId: record.id,
    tokens: promptTokens,
    maxLength: promptTokens.length + maxTokens,
    stopTokenIds: job.stopTokenIds,
    sampling: job.sampling,
    timeoutMs: context.requestTimeoutMs,
  };
  const link = linked(signal, context.ending);
  const tokens = context.relay.generate(generation, record, link.signal);
  return { record, pieces: pieces(context, record, job, tokens, link), abort: link.abort };
}

interface Link {
  readonly signal: AbortSignal;
  readonly abort: () => void;
  readonly release: () => void;
}

/** One signal for several, let go of at the end: AbortSignal.any would stay with a signal that lives as long as the process. */
function linked(...sources: readonly AbortSignal[]): Link {
  const controller = new AbortController();
  const undo = sources.map((source) => {
    const follow = (): void => {
      controller.abort(source.reason);
    };
    source.addEventListener('abort', follow);
    if (source.aborted) follow();
    return () => source.removeEventListener('abort', follow);
  });
  return {
    signal: controller.signal,
    abort: () => {
      controller.abort();
    },
    release: () => {
      for (const step of undo) step();
    },
  };
}

async function* pieces(
  { codec, requests, metrics, clock }: ApiContext,
  record: RequestRecord,
  job: PromptJob,
  tokens: ReturnType<Relay['generate']>,
  link: Link,
): AsyncGenerator<Piece> {
  const text = new TextStream(codec, job.promptTokens, job.stops);
  let outcome: 'finished' | 'failed' | 'cancelled' = 'cancelled';
  let finish: Piece['finish'];
  let lastMs = clock.nowMs();
  try {
    for await (const { token, finish: modelFinish } of tokens) {
      if (record.outputTokens === 1) await prefillReported(record, clock);
      else metrics.interTokenLatency.observe((clock.nowMs() - lastMs) / 1_000);
      lastMs = clock.nowMs();
      // A stop token ends the output and is no part of its text.
      let piece = modelFinish === 'stop' ? '' : await text.push(token.id);
      if (modelFinish) piece += await text.flush();
      finish = text.isStopped ? 'stop' : modelFinish;
      if (finish) outcome = 'finished';
      yield { text: piece, tokens: [token], finish };
      if (finish) return;
    }
  } catch (error) {
    outcome = link.signal.aborted ? 'cancelled' : 'failed';
    throw error;
  } finally {
    link.release();
    requests.close(record, outcome, finish ?? (outcome === 'failed' ? 'error' : 'abort'));
    metrics.observeRequest(record);
  }
}

async function prefillReported(record: RequestRecord, clock: Clock): Promise<void> {
  for (let waitedMs = 0; waitedMs < REPORT_WAIT_MS; waitedMs += REPORT_POLL_MS) {
    const isOpen = record.attempts.some(({ prefills }) => prefills.some(({ outcome }) => outcome === 'running'));
    if (!isOpen) return;
    await clock.sleep(REPORT_POLL_MS);
  }
}

/** Pieces of several prompts as they come, each with the index of its prompt. The first failure ends all. */
export async function* merge(runs: readonly PromptRun[]): AsyncGenerator<{ index: number; piece: Piece }> {
  const next = async (
    run: PromptRun,
    index: number,
  ): Promise<{ run: PromptRun; index: number; result: IteratorResult<Piece> }> => ({
    ...{ run, index },
    result: await run.pieces.next(),
  });
  const pending = new Map<number, ReturnType<typeof next>>();
  const ask = (run: PromptRun, index: number): void => {
    const promise = next(run, index);
    // It may fail while the consumer is busy; the failure is taken up by the race.
    promise.catch(() => undefined);
    pending.set(index, promise);
  };
  runs.forEach(ask);
  try {
    while (pending.size > 0) {
      const { run, index, result } = await Promise.race(pending.values());
      if (result.done) {
        pending.delete(index);
        continue;
      }
      ask(run, index);
      yield { index, piece: result.value };
    }
  } finally {
    for (const run of runs) run.abort();
    await Promise.allSettled(
      runs.map(async ({ pieces: generator }) => {
        await generator.return(undefined);
      }),
    );
  }
}
