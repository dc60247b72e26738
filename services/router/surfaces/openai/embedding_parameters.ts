/** Parameters of `/v1/embeddings`, as OpenAI and vLLM document them. */
import type { CacheScope } from '../../../../shared/kv/format.ts';
import { z } from 'zod';
import { check } from './body_check.ts';
import type { ParsedBody } from '../../api/body_kind.ts';
import { readPrompts } from '../../api/body_parts.ts';
import { limitsOf, ParameterFailure, priorityOf, scopeOf, type BodyLimits } from '../../api/parameter_failure.ts';
import { common, only } from './parameter_schemas.ts';
import { promptShape } from './parameter_shapes.ts';

/** Parsed body of `/v1/embeddings`, with one prompt or several as text or token ids. */
export interface EmbeddingBody extends ParsedBody {
  readonly prompts: readonly (string | Uint32Array)[];
  /** Whether an embedding is sent as its bytes in base64 (f32, little-endian), not as a list of numbers. */
  readonly isBase64: boolean;
  readonly hasSpecialTokens: boolean;
  readonly priority: number;
  /** Only requests of the same scope share blocks. */
  readonly cacheScope: CacheScope;
}

const { model, user, request_id, priority, cache_salt, add_special_tokens } = common;
/** Schema of a `/v1/embeddings` body. */
export const embeddingSchema = z.object({
  model,
  user,
  request_id,
  priority,
  cache_salt,
  add_special_tokens,
  truncate_prompt_tokens: only([], 'null'),
  input: z.unknown().optional().meta(promptShape),
  encoding_format: z.enum(['float', 'base64'], 'float or base64').optional(),
  dimensions: only([], 'null'),
  messages: only([[]], 'null'),
  embed_dtype: only(['float32']),
  endianness: only(['native', 'little']),
  normalize: only([true]),
  use_activation: only([true]),
  mm_processor_kwargs: only([{}]),
});

/** Parses the body of `/v1/embeddings`. @throws ParameterFailure for whatever is not allowed, by name. */
export function readEmbeddingBody(bytes: Uint8Array, all: BodyLimits): EmbeddingBody {
  const { body, ignored } = check(embeddingSchema, bytes, all);
  const prompts = readPrompts(body.input, limitsOf(all, body.model), 'input');
  const empty = prompts.findIndex(({ length }) => length === 0);
  if (empty >= 0) {
    const name = prompts.length === 1 ? 'input' : `input.${empty}`;
    throw new ParameterFailure(`${name}: cannot be empty`, name);
  }
  return {
    model: body.model,
    prompts,
    requestId: body.request_id,
    ignored,
    isBase64: body.encoding_format === 'base64',
    hasSpecialTokens: body.add_special_tokens ?? true,
    priority: priorityOf(body.priority, all, ignored),
    cacheScope: scopeOf(body.cache_salt, all),
  };
}
