/** Facts of a request: who sent it, and what it asks for, as far as it has been read. None of them quotes its prompt. */
import type { SpanAttributes, SpanContext } from '../../../shared/base/tracing/tracing.ts';
import type { Targets } from '../../../shared/placement/policy.ts';
import type { RequestFull } from '../../../shared/protocol/request_detail.ts';
import type { Sampling } from '../../../shared/protocol/request.ts';

/** Who sent a request, and the client's ids of it; undefined where the client sent none. */
export interface RequestIds {
  readonly clientId: string | undefined;
  readonly traceId: string | undefined;
  /** Address from which the client calls. */
  readonly address?: string | undefined;
  readonly parent?: SpanContext | undefined;
  /** Tenant of the client; left out or empty where a router has only one. */
  readonly tenant?: string | undefined;
  /** Name of its key; left out or empty where a router asks for none. */
  readonly key?: string | undefined;
}

/** Facts of a request. */
export interface RequestFacts {
  readonly names: RequestIds;
  /** Served model that the request names; undefined until the body is read. */
  readonly model: string | undefined;
  /** Tokens of the prompt; 0 until they are known. */
  readonly promptTokens: number;
  /** Upper bound of new tokens; undefined while it is not known. */
  readonly maxTokens: number | undefined;
  /** Samples of the prompt (`n`, `best_of`). */
  readonly numSamples: number;
  readonly sampling: Pick<Sampling, 'temperature' | 'topP' | 'topK'> | undefined;
  readonly targets: Targets | undefined;
  /** Whether output tokens that belong to the reasoning are counted. */
  readonly hasReasoning: boolean;
}

/** Facts of a request of which nothing has been read. */
export function unread(names: RequestIds): RequestFacts {
  return {
    names,
    model: undefined,
    promptTokens: 0,
    maxTokens: undefined,
    numSamples: 1,
    sampling: undefined,
    targets: undefined,
    hasReasoning: false,
  };
}

/** Returns the facts as the body of `/api/requests/{id}` has them. */
export function factsJson({
  names,
  model,
  promptTokens,
  targets,
}: RequestFacts): Pick<RequestFull, 'client_id' | 'client' | 'key' | 'tenant' | 'model' | 'prompt_tokens' | 'targets'> {
  return {
    client_id: names.clientId ?? null,
    client: names.address ?? null,
    key: names.key || null,
    tenant: names.tenant || null,
    model,
    prompt_tokens: promptTokens,
    targets: targets
      ? { ttft_ms: targets.ttftMs ?? null, tbt_ms: targets.tbtMs ?? null, deadline_ms: targets.totalMs ?? null }
      : null,
  };
}

/** Returns the facts as attributes of a span, by OpenTelemetry's conventions for generative AI. */
export function factsAttributes({ model, promptTokens, maxTokens, sampling }: RequestFacts): SpanAttributes {
  return {
    'gen_ai.request.model': model,
    'gen_ai.response.model': model,
    'gen_ai.usage.input_tokens': promptTokens,
    'gen_ai.usage.prompt_tokens': promptTokens,
    'gen_ai.request.max_tokens': maxTokens,
    'gen_ai.request.temperature': sampling?.temperature,
    'gen_ai.request.top_p': sampling?.topP,
    'gen_ai.request.top_k': sampling && sampling.topK > 0 ? sampling.topK : undefined,
  };
}
