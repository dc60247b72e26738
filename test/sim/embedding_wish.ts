/** Requests for embeddings: draws them, and checks the vectors against those of the plain function. */
import type { Random } from '../../shared/base/random.ts';
import { plainEmbedding, SIM_VOCAB, type PlainEmbedding } from './simulated_device.ts';
import type { Answer } from './simulated_http.ts';

/** Expected result of one prompt. */
export interface ExpectedEmbedding {
  readonly prompt: readonly number[];
  readonly plain: PlainEmbedding;
}

/** A request for embeddings, as the body and what must come of it. */
interface EmbeddingWish {
  readonly salt: string;
  readonly embeddings: readonly ExpectedEmbedding[];
  readonly body: Record<string, unknown>;
}

/** `drawn` makes a prompt, often one that shares a prefix with others; `maxLength` is the context. */
export function drawEmbedding(r: Random, drawn: () => number[], maxLength: number, isMean: boolean): EmbeddingWish {
  const prompts = Array.from({ length: r.chance(1, 2) ? 1 : 2 + r.below(2) }, () => {
    const prompt = drawn();
    // The whole context, now and then: no token follows it.
    const count = r.chance(1, 8) ? maxLength - prompt.length : 0;
    return [...prompt, ...Array.from({ length: count }, () => 2 + r.below(SIM_VOCAB - 2))];
  });
  const salt = r.pick(['', '', '', 'tenant']);
  return {
    salt,
    embeddings: prompts.map((prompt) => ({ prompt, plain: plainEmbedding(prompt, isMean) })),
    body: {
      input: prompts.length === 1 && r.chance(1, 2) ? prompts[0] : prompts,
      ...(r.chance(1, 2) ? { encoding_format: 'base64' } : {}),
      ...(salt === '' ? {} : { cache_salt: salt }),
    },
  };
}

/** Returns what is wrong with an answer of status 200, as far as it came; undefined when nothing is. */
export function faultOfEmbeddings(expected: readonly ExpectedEmbedding[], answer: Answer): string | undefined {
  if (answer.end !== 'complete') return undefined;
  const { data, usage } = JSON.parse(answer.text) as {
    readonly data: readonly { readonly index: number; readonly embedding: string | readonly number[] }[];
    readonly usage: { readonly prompt_tokens: number };
  };
  if (data.length !== expected.length) return `${data.length} embeddings, not ${expected.length}`;
  for (const [i, { prompt, plain }] of expected.entries()) {
    const { index, embedding } = data[i]!;
    const bytes = typeof embedding === 'string' ? Buffer.from(embedding, 'base64') : undefined;
    const values = typeof embedding === 'string' ? plain.values.map((_, at) => bytes!.readFloatLE(4 * at)) : embedding;
    const isSame = values.length === plain.values.length && plain.values.every((value, at) => value === values[at]);
    if (index !== i || !isSame)
      return `the embedding of ${prompt.join()} is ${values.join()}, not ${plain.values.join()}`;
  }
  const numTokens = expected.reduce((sum, { prompt }) => sum + prompt.length, 0);
  return usage.prompt_tokens === numTokens ? undefined : `usage ${usage.prompt_tokens} is not ${numTokens}`;
}
