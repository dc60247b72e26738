/** `/v1/embeddings`: prompts as text or token ids, one or several; every served model answers. */
import { embeddingKind } from './body_kinds.ts';
import { Failure } from '../../../../shared/base/failure.ts';
import { packFloats } from '../../../../shared/protocol/packing.ts';
import type { Embedding } from '../../relay/embedding_run.ts';
import { RequestCounts } from '../../record/request_counts.ts';
import type { RequestTrace } from '../../record/request_log.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { finishedHeaders, usageOf } from './common.ts';
import type { EmbeddingBody } from './embedding_parameters.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import type { RequestScope } from '../../api/request_scope.ts';

interface PromptEmbedding {
  readonly trace: RequestTrace;
  readonly embedding: Embedding;
}

/** Answers `/v1/embeddings`. @throws Failure when the request is refused or cannot be finished. */
export async function embeddings(all: ApiContext, scope: RequestScope): Promise<void> {
  const trace = scope.open('/v1/embeddings');
  const { body, prompts, failure } = await all.bodies.readPrompts(
    embeddingKind,
    scope.body,
    all.of(undefined),
    scope.signal,
  );
  const context = all.of(body.model);
  scope.named(body.requestId);
  if (failure) throw new Failure(failure.code, failure.message);
  const wanted = await checkAll(context, body, prompts ?? body.prompts, scope, trace);
  const runs = wanted.map((one) => scope.own(run(context, one, scope)));
  // All run at once; the first failure ends the others with the scope.
  const vectors = await Promise.all(runs.map(async (one) => (await one.next()).value ?? new Float32Array(0)));
  const data: string[] = [];
  for (const [index, vector] of vectors.entries()) {
    data.push(`{"object":"embedding","index":${index},"embedding":${jsonOf(vector, body.isBase64)}}`);
    // A thousand numbers are text after a millisecond; no stream waits for those of a whole batch.
    await context.clock.turn();
  }
  const head = JSON.stringify({
    id: `embd-${trace.names.clientId ?? trace.id}`,
    object: 'list',
    created: Math.floor(context.clock.wallMs() / 1_000),
    model: context.servedName,
    usage: usageOf(wanted.map(({ embedding }) => embedding.counts)),
  });
  scope.answer(`${head.slice(0, -1)},"data":[${data.join()}]}`, finishedHeaders(trace, body.ignored));
}

/** Encodes and checks every prompt before any is placed. */
async function checkAll(
  { servedName, codec, pooling, maxModelLen }: ApiContext,
  body: EmbeddingBody,
  prompts: readonly (string | Uint32Array)[],
  scope: RequestScope,
  first: RequestTrace,
): Promise<PromptEmbedding[]> {
  const wanted: PromptEmbedding[] = [];
  for (const [index, prompt] of prompts.entries()) {
    const trace = index === 0 ? first : scope.open('/v1/embeddings');
    const promptTokens =
      typeof prompt === 'string' ? await codec.encode(prompt, body.hasSpecialTokens, scope.signal) : prompt;
    trace.model = servedName;
    trace.promptTokens = promptTokens.length;
    const param = prompts.length === 1 ? 'input' : `input.${index}`;
    if (promptTokens.length === 0) throw new ParameterFailure(`${param}: it has no tokens`, param);
    const most = maxModelLen();
    if (promptTokens.length > most) {
      throw new ParameterFailure(
        `This model's maximum context length is ${most} tokens. However, you requested ${promptTokens.length} tokens in ${param}. Please shorten it.`,
        param,
        'context_too_long',
      );
    }
    const counts = new RequestCounts(promptTokens.length);
    trace.counts = counts;
    // Tenants are reserved: every request has the empty one.
    const origin = { tenant: '', priority: body.priority };
    const cacheScope = { adapter: '', salt: body.cacheSalt };
    wanted.push({ trace, embedding: { counts, origin, promptTokens, pooling, scope: cacheScope } });
  }
  return wanted;
}

/** Yields the embedding of one prompt, once its trace is closed. */
async function* run(
  { relay, requests }: ApiContext,
  { trace, embedding }: PromptEmbedding,
  scope: RequestScope,
): AsyncGenerator<Float32Array, undefined> {
  const { signal, untilMs } = scope;
  let vector: Float32Array;
  try {
    vector = await relay.embed(embedding, trace, untilMs, signal);
    requests.close(trace, 'finished', 'stop');
  } catch (error) {
    const isGone = signal.aborted && !(signal.reason instanceof Failure);
    requests.close(trace, isGone ? 'cancelled' : 'failed', isGone ? 'abort' : 'error', isGone ? undefined : error);
    throw error;
  } finally {
    scope.leave(trace);
  }
  yield vector;
}

function jsonOf(vector: Float32Array, isBase64: boolean): string {
  return isBase64 ? `"${packFloats(vector).toString('base64')}"` : `[${vector.join()}]`;
}
