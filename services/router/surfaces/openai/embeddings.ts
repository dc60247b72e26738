/** `/v1/embeddings`: prompts as text or token ids, one or several; every served model answers. */
import { Failure } from '../../../../shared/base/failure.ts';
import { packFloats } from '../../../../shared/protocol/packing.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { originOf } from '../../api/new_generation.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import type { RequestScope } from '../../api/request_scope.ts';
import type { Surface, SurfaceRequest } from '../../api/surface.ts';
import type { RequestTrace } from '../../record/request_trace.ts';
import type { Embedding } from '../../relay/embedding_run.ts';
import { embeddingKind } from './body_kinds.ts';
import { embeddingSchema, type EmbeddingBody } from './embedding_parameters.ts';
import { openaiErrors } from './errors.ts';
import { usageOf } from './usage.ts';

interface PromptEmbedding {
  readonly trace: RequestTrace;
  readonly embedding: Embedding;
}

/** `/v1/embeddings`. */
export const embeddingSurface: Surface<EmbeddingBody> = {
  paths: ['/v1/embeddings'],
  kind: embeddingKind,
  counts: 'embedding',
  operation: 'embeddings',
  errors: openaiErrors,
  describe: { summary: 'Embeds texts or token ids', schemas: { Embedding: embeddingSchema } },
  answer: embed,
};

async function embed(request: SurfaceRequest<EmbeddingBody>): Promise<string> {
  const { context, scope, trace, body } = request;
  const wanted = await checkAll(request);
  // All run at once; the first failure ends the others with the scope.
  const vectors = await Promise.all(wanted.map((one) => scope.own(run(context, one, scope))));
  const data: string[] = [];
  for (const [index, vector] of vectors.entries()) {
    data.push(`{"object":"embedding","index":${index},"embedding":${jsonOf(vector, body.isBase64)}}`);
    // A thousand numbers are text after a millisecond; no stream waits for those of a whole batch.
    await context.clock.turn();
  }
  const head = JSON.stringify({
    id: `embd-${trace.shownId}`,
    object: 'list',
    created: Math.floor(context.clock.wallMs() / 1_000),
    model: context.servedName,
    usage: usageOf(wanted.map((one) => one.trace.record.counts)),
  });
  return `${head.slice(0, -1)},"data":[${data.join()}]}`;
}

/** Encodes and checks every prompt before any is placed. */
async function checkAll(request: SurfaceRequest<EmbeddingBody>): Promise<PromptEmbedding[]> {
  const { context, scope, body, openPrompt, trace: first } = request;
  const { servedName, codec, pooling, maxModelLen } = context;
  const prompts = request.prompts ?? body.prompts;
  const wanted: PromptEmbedding[] = [];
  for (const [index, prompt] of prompts.entries()) {
    const trace = index === 0 ? first : openPrompt();
    const promptTokens = typeof prompt === 'string' ? await codec.encode(prompt, body.hasSpecialTokens, scope) : prompt;
    trace.emit({ kind: 'read', facts: { model: servedName, promptTokens: promptTokens.length } });
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
    const origin = originOf(scope, body);
    wanted.push({ trace, embedding: { origin, promptTokens, pooling, scope: body.cacheScope } });
  }
  scope.allowance?.reserve(wanted.reduce((sum, { embedding }) => sum + embedding.promptTokens.length, 0));
  return wanted;
}

/** Returns the embedding of one prompt, once its trace is closed. */
async function run(
  { relay }: ApiContext,
  { trace, embedding }: PromptEmbedding,
  scope: RequestScope,
): Promise<Float32Array> {
  const { signal, untilMs } = scope;
  try {
    const vector = await relay.embed(embedding, trace, untilMs, signal);
    trace.end('finished', 'stop');
    return vector;
  } catch (error) {
    const isGone = signal.aborted && !(signal.reason instanceof Failure);
    trace.end(isGone ? 'cancelled' : 'failed', isGone ? 'abort' : 'error', isGone ? undefined : error);
    throw error;
  } finally {
    scope.leave(trace);
  }
}

function jsonOf(vector: Float32Array, isBase64: boolean): string {
  return isBase64 ? `"${packFloats(vector).toString('base64')}"` : `[${vector.join()}]`;
}
