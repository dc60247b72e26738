/**
 * Parameters whose value becomes a field of the request's sampling as it is. A new one is a line in a table here: chats, completions
 * and responses then take it. There are two tables because schemas list other parameters between them, and of several wrong values in
 * a body the first in its schema is refused.
 */
import { z } from 'zod';
import { keysOf } from '../../../../shared/base/picked.ts';
import type { Sampling } from '../../../../shared/protocol/request.ts';

type SamplingParameter = {
  [F in keyof Sampling]: { readonly field: F; readonly schema: z.ZodType<Sampling[F] | undefined> };
}[keyof Sampling];
type Table = Readonly<Record<string, SamplingParameter>>;

const MAX_INT = 2 ** 31 - 1;

/** Parameters that shape the distribution from which tokens are sampled. */
const distribution = {
  temperature: { field: 'temperature', schema: z.number().min(0).max(2).optional() },
  top_p: { field: 'topP', schema: z.number().gt(0).max(1).optional() },
  top_k: { field: 'topK', schema: z.int().min(-1).max(MAX_INT).optional() },
  min_p: { field: 'minP', schema: z.number().min(0).max(1).optional() },
} satisfies Table;

/** Parameters by which tokens that the prompt or the output has become less likely, or likelier. */
const penalties = {
  presence_penalty: { field: 'presencePenalty', schema: z.number().min(-2).max(2).optional() },
  frequency_penalty: { field: 'frequencyPenalty', schema: z.number().min(-2).max(2).optional() },
  repetition_penalty: { field: 'repetitionPenalty', schema: z.number().gt(0).max(10).optional() },
} satisfies Table;

function schemasOf<T extends Table>(table: T): { readonly [K in keyof T]: T[K]['schema'] } {
  return Object.fromEntries(Object.entries(table).map(([key, { schema }]) => [key, schema])) as {
    [K in keyof T]: T[K]['schema'];
  };
}

/** Schemas of the parameters that shape the distribution. */
export const distributionSchemas = schemasOf(distribution);
/** Schemas of the penalties. */
export const penaltySchemas = schemasOf(penalties);

const all = { ...distribution, ...penalties };
type All = typeof all;
const keys = keysOf(all);

/** Fields of the sampling that the parameters set. */
type SamplingFields = { readonly [K in keyof All as All[K]['field']]: z.output<All[K]['schema']> };

/** Returns the values of the parameters by their fields of the sampling; undefined for those that the body leaves out. */
export function samplingFieldsOf(body: { readonly [K in keyof All]?: z.output<All[K]['schema']> }): SamplingFields {
  return Object.fromEntries(keys.map((key) => [all[key].field, body[key]])) as SamplingFields;
}
