/** Checks the keys and values of a body against the schema of its endpoint. */
import type { z } from 'zod';
import { parseJson } from '../../api/body_parts.ts';
import { isForeign, type GeneratingEndpoint } from './foreign_keys.ts';
import { ParameterFailure, type BodyLimits } from '../../api/parameter_failure.ts';

/** Characters of a client's key that are shown in a header or an error; longer keys are cut. */
const MAX_NAME_CHARACTERS = 64;
const MAX_IGNORED = 32;
const STREAM_OPTIONS = ['include_usage', 'continuous_usage_stats', 'include_obfuscation'];

/**
 * Checks a body's keys and values; `null` is the same as leaving a key out. @throws ParameterFailure for the first that is not
 * allowed.
 */
export function check<T>(
  schema: z.ZodObject & z.ZodType<T>,
  bytes: Uint8Array,
  limits: BodyLimits,
  endpoint?: GeneratingEndpoint,
): { readonly body: T; readonly ignored: string[] } {
  const raw = parseJson(bytes);
  const given = Object.entries(raw).filter(([, value]) => value !== null);
  const unknown = given
    .filter(([key]) => !Object.hasOwn(schema.shape, key))
    .filter(([key, value]) => endpoint === undefined || !isForeign(endpoint, key, value))
    .map(([key]) => key);
  const streamOptions = raw['stream_options'];
  const inStreamOptions =
    typeof streamOptions === 'object' && streamOptions !== null
      ? Object.keys(streamOptions).filter((key) => !STREAM_OPTIONS.includes(key))
      : [];
  const named = (key: string): string => key.slice(0, MAX_NAME_CHARACTERS);
  const ignored = [
    ...unknown.slice(0, MAX_IGNORED).map(named),
    ...inStreamOptions.slice(0, MAX_IGNORED).map((key) => `stream_options.${named(key)}`),
  ].slice(0, MAX_IGNORED);
  if (limits.isStrict && ignored.length > 0) {
    const [first = ''] = ignored;
    throw new ParameterFailure(`${first} is not known; leave it out, or start without --strict-parameters`, first);
  }
  const result = schema.safeParse(Object.fromEntries(given));
  if (result.success) return { body: result.data, ignored };
  const [issue] = result.error.issues;
  const param = issue?.path.join('.') ?? null;
  throw new ParameterFailure(`${param || 'the body'}: ${issue?.message ?? 'invalid'}`, param || null);
}
