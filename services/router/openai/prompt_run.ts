/**
 * One prompt from token ids to pieces of text: relay, detokenizer, stop strings, limits, the request's record.
 *
 * The response formats of chat and completions are views of the same pieces.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { Scope } from '../../../shared/kv/format.ts';
import type { ModelFolder } from '../../../shared/model/model_folder.ts';
import type { SamplingMessage, TokenMessage } from '../../../shared/protocol/messages.ts';
import type { Bodies } from '../bodies.ts';
import { admit } from '../conductor/admission.ts';
import type { RouterMetrics } from '../metrics.ts';
import type { Relay } from '../relay.ts';
import type { RequestLog, RequestRecord } from '../request_log.ts';
import type { TextCodec } from '../text.ts';
import { TextStream, type TextStreamOptions } from '../text_stream.ts';
import { ParameterFailure } from './parameter_failure.ts';

export interface ApiContext {
  readonly servedName: string;
  readonly folder: ModelFolder;
  /** The longest prompt and output together. */
  readonly maxModelLen: () => number;
  readonly bodies: Bodies;
  readonly codec: TextCodec;
  readonly relay: Relay;
  readonly requests: RequestLog;
  readonly metrics: RouterMetrics;
  readonly clock: Clock;
  readonly maxRequests: number;
  readonly maxConnections: number;
  readonly requestTimeoutMs: number;
  readonly bodyTimeoutMs: number;
  readonly stalledReaderMs: number;
  readonly newId: () => string;
  readonly drawSeed: () => number;
  readonly isDraining: () => boolean;
  /** Aborts, with a Failure as its reason, when the router cannot wait for what runs any longer. */
  readonly ending: AbortSignal;
}

export interface PromptJob {
  readonly promptTokens: readonly number[];
  readonly sampling: SamplingMessage;
  /** Requests of different scopes share no blocks. */
  readonly scope: Scope;
  /** New tokens at most; undefined: as many as fit. */
  readonly maxTokens: number | undefined;
  readonly text: TextStreamOptions;
  /** Tokens that end the output: those of the model and those of the request. */
  readonly stopTokenIds: readonly number[];
  /** Those of the request alone: it is told which one ended it. */
  readonly ownStopTokenIds: readonly number[];
}

/** A step of the output; text may lag behind the tokens. */
export interface Piece {
  readonly text: string;
  readonly tokens: readonly TokenMessage[];
  readonly finish: 'stop' | 'length' | undefined;
  /** With `stop`: the stop string, or the request's own stop token. */
  readonly stopReason: string | number | null;
}

export interface PromptRun {
  readonly record: RequestRecord;
  readonly pieces: AsyncGenerator<Piece>;
}

/** A prefill's last word may come a moment after the first token; headers wait this long for it. */
const REPORT_WAIT_MS = 20;
const REPORT_POLL_MS = 2;

/** @throws Failure `overloaded` when too many requests are in flight. */
export function openRecord(context: ApiContext, endpoint: string, names: RequestNames): RequestRecord {
  const { requests, maxRequests, newId, isDraining } = context;
  admit({ numActive: requests.numActive, maxRequests, isDraining: isDraining() });
  return requests.open(newId(), endpoint, names);
}

/** What the client calls its request. */
export interface RequestNames {
  readonly clientId: string | undefined;
  readonly traceId: string | undefined;
}

/** Checks the job against the model, then runs it lazily. @throws Failure before anything is placed. */
export function startPrompt(
  context: ApiContext,
  record: RequestRecord,
  job: PromptJob,
  signal: AbortSignal,
): PromptRun {
  const maxModelLen = context.maxModelLen();
  const numPrompt = job.promptTokens.length;
  record.promptTokens = numPrompt;
  if (numPrompt === 0) throw new ParameterFailure('prompt: it has no tokens', 'prompt');
  const numNew = job.maxTokens ?? 1;
  if (numPrompt + numNew > maxModelLen) {
    const param = record.endpoint.includes('chat') ? 'messages' : 'prompt';
    throw new ParameterFailure(
      `This model's maximum context length is ${maxModelLen} tokens. However, you requested ${numPrompt + numNew} tokens (${numPrompt} in the ${param}, ${numNew} in the completion). Please reduce the length of the ${param} or completion.`,
      param,
      'context_too_long',
    );
  }
  const mostNew = job.maxTokens ?? maxModelLen - numPrompt;
  if (job.sampling.minTokens > Math.max(1, mostNew)) {
    throw new ParameterFailure(
      `min_tokens: ${job.sampling.minTokens} is more than max_tokens allows, ${mostNew}`,
      'min_tokens',
    );
  }
  const generation = {
    requestId: record.id,
    traceId: record.names.traceId ?? record.id,
    tokens: job.promptTokens,
    maxLength: job.maxTokens === undefined ? maxModelLen : numPrompt + job.maxTokens,
    isOpenEnded: job.maxTokens === undefined,
    stopTokenIds: job.stopTokenIds,
    sampling: job.sampling,
    scope: job.scope,
    timeoutMs: context.requestTimeoutMs,
  };
  record.maxTokens = generation.maxLength - numPrompt;
  const tokens = context.relay.generate(generation, record, signal);
  return { record, pieces: pieces(context, record, job, tokens, signal) };
}

async function* pieces(
  { codec, requests, metrics, clock }: ApiContext,
  record: RequestRecord,
  job: PromptJob,
  tokens: ReturnType<Relay['generate']>,
  signal: AbortSignal,
): AsyncGenerator<Piece> {
  const text = new TextStream(codec, job.promptTokens, job.text);
  const { minTokens } = job.sampling;
  let outcome: 'finished' | 'failed' | 'cancelled' = 'cancelled';
  let finish: Piece['finish'];
  let failure: unknown;
  let lastMs = clock.nowMs();
  try {
    for await (const { token, finish: modelFinish } of tokens) {
      if (record.outputTokens === 1) await prefillReported(record, clock);
      else metrics.interToken((clock.nowMs() - lastMs) / 1_000);
      lastMs = clock.nowMs();
      // A stop token ends the output and is no part of its text, unless it is asked for.
      const isSilent = modelFinish === 'stop' && !job.text.isStopIncluded;
      const isSearched = record.outputTokens > minTokens;
      let piece = isSilent ? '' : await text.push(token.id, isSearched);
      if (modelFinish) piece += await text.flush(isSearched);
      finish = text.stop === undefined ? modelFinish : 'stop';
      const ownStop = finish === 'stop' && job.ownStopTokenIds.includes(token.id) ? token.id : null;
      if (finish) outcome = 'finished';
      yield { text: piece, tokens: [token], finish, stopReason: text.stop ?? ownStop };
      if (finish) return;
    }
  } catch (error) {
    outcome = signal.aborted && !(signal.reason instanceof Failure) ? 'cancelled' : 'failed';
    if (outcome === 'failed') failure = error;
    throw error;
  } finally {
    requests.close(record, outcome, finish ?? (outcome === 'failed' ? 'error' : 'abort'), failure);
  }
}

async function prefillReported(record: RequestRecord, clock: Clock): Promise<void> {
  for (let waitedMs = 0; waitedMs < REPORT_WAIT_MS; waitedMs += REPORT_POLL_MS) {
    const isOpen = record.attempts.some(({ prefills }) => prefills.some(({ outcome }) => outcome === 'running'));
    if (!isOpen) return;
    await clock.sleep(REPORT_POLL_MS);
  }
}

/** Pieces of several prompts as they come, each with the index of its prompt. The first failure ends it; the scope ends the rest. */
export async function* merge(runs: readonly PromptRun[]): AsyncGenerator<{ index: number; piece: Piece }> {
  const next = async (
    run: PromptRun,
    index: number,
  ): Promise<{ run: PromptRun; index: number; result: IteratorResult<Piece> }> => ({
    ...{ run, index },
    result: await run.pieces.next(),
  });
  const ready: ReturnType<typeof next>[] = [];
  let wake: () => void = () => undefined;
  const ask = (run: PromptRun, index: number): void => {
    const answer = next(run, index);
    const settled = (): void => {
      ready.push(answer);
      wake();
    };
    answer.then(settled, settled);
  };
  runs.forEach(ask);
  for (let numOpen = runs.length; numOpen > 0;) {
    const answer = ready.shift();
    if (!answer) {
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
      continue;
    }
    const { run, index, result } = await answer;
    if (result.done) {
      numOpen--;
      continue;
    }
    ask(run, index);
    yield { index, piece: result.value };
  }
}
