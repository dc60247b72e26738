/** Facts with which a router serves a model without the model's files: from its own folder, or from an instance that has the model. */
import { z } from 'zod';
import { Failure } from '../base/failure.ts';

const factsSchema = z.object({
  /** Name under which clients request the model. */
  name: z.string().min(1),
  vocabSize: z.int().positive(),
  /** Digest of the model's shape. */
  modelConfig: z.string(),
  /** The longest prompt and output together that is served. */
  maxModelLen: z.int().positive(),
  eosTokenIds: z.array(z.int()),
  /** Default sampling parameters of requests; absent fields have neutral values. */
  defaults: z.object({
    temperature: z.number().optional(),
    topP: z.number().optional(),
    topK: z.number().optional(),
    minP: z.number().optional(),
    repetitionPenalty: z.number().optional(),
  }),
  /** Tokenizer and template; absent: there are none. */
  texts: z.object({ tokenizer: z.string(), config: z.string(), template: z.string().optional() }).optional(),
});

/** All that a router needs to know of a model it serves. */
export type ModelFacts = z.infer<typeof factsSchema>;

/** Bytes of one page. */
const PAGE_BYTES = 256 * 2 ** 10;
/** Most bytes of a description; the largest tokenizers have some tens of MB. */
const MAX_BYTES = 256 * 2 ** 20;

/** Yields the facts as JSON text, in pages of at most PAGE_BYTES. */
export function* factPages(facts: ModelFacts): Generator<{ readonly data: Buffer }> {
  const all = Buffer.from(JSON.stringify(facts));
  for (let at = 0; at < all.length; at += PAGE_BYTES) yield { data: all.subarray(at, at + PAGE_BYTES) };
}

/** Parses the pages of a description. @throws Failure `invalid_request` for other content, or more than MAX_BYTES. */
export async function readFacts(pages: AsyncIterable<{ readonly data: Buffer }>): Promise<ModelFacts> {
  const parts: Buffer[] = [];
  let size = 0;
  for await (const { data } of pages) {
    parts.push(data);
    size += data.length;
    if (size > MAX_BYTES)
      throw new Failure('invalid_request', `the pages that describe a model have over ${MAX_BYTES} bytes`);
  }
  let value: unknown;
  try {
    value = JSON.parse(Buffer.concat(parts).toString('utf8'));
  } catch (cause) {
    throw new Failure('invalid_request', 'the pages that describe a model are not JSON', { cause });
  }
  const result = factsSchema.safeParse(value);
  if (!result.success)
    throw new Failure(
      'invalid_request',
      `the pages that describe a model have wrong fields: ${z.prettifyError(result.error)}`,
    );
  return result.data;
}
