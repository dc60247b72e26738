/** Query parameters of `/api/*`: read, checked, and refused with the values that are allowed. */
import { ParameterFailure } from '../api/parameter_failure.ts';

/** Query of a URL as fastify parses it: a parameter that is repeated is a list. */
export type Query = Readonly<Record<string, string | readonly string[] | undefined>>;

/** Range of a number. */
interface Range {
  readonly least: number;
  readonly most?: number;
}

/** Returns a parameter's text; undefined when it is absent or empty. @throws ParameterFailure when it is repeated. */
export function textOf(query: Query, name: string): string | undefined {
  const value = query[name];
  if (value !== undefined && typeof value !== 'string') throw new ParameterFailure(`${name}: give it once`, name);
  return value === '' ? undefined : value;
}

/** Returns a whole number, or `fallback` when the parameter is absent. @throws ParameterFailure for anything else. */
export function integerOf<T>(query: Query, name: string, fallback: T, { least, most }: Range): number | T {
  const text = textOf(query, name);
  if (text === undefined) return fallback;
  const number = Number(text);
  if (Number.isInteger(number) && number >= least && number <= (most ?? Number.MAX_SAFE_INTEGER)) return number;
  const range = most === undefined ? `from ${least}` : `from ${least} to ${most}`;
  throw new ParameterFailure(`${name}: a whole number ${range}`, name);
}

/** Returns a parameter's values, separated by commas; undefined when it is absent. @throws ParameterFailure for values that are not allowed. */
export function choicesOf(query: Query, name: string, allowed: readonly string[]): string[] | undefined {
  const values = textOf(query, name)?.split(',');
  const wrong = values?.find((value) => !allowed.includes(value));
  if (wrong === undefined) return values;
  throw new ParameterFailure(`${name}: ${JSON.stringify(wrong.slice(0, 64))} is none of ${allowed.join(', ')}`, name);
}

/** Returns whether a switch is on: 1 or 0, `fallback` when it is absent. @throws ParameterFailure for anything else. */
export function switchOf(query: Query, name: string, fallback = false): boolean {
  const text = textOf(query, name);
  if (text === undefined) return fallback;
  if (text !== '0' && text !== '1') throw new ParameterFailure(`${name}: 0 or 1`, name);
  return text === '1';
}

/** @throws ParameterFailure naming the first parameter that is not among `known`. */
export function refuseUnknown(query: Query, known: readonly string[]): void {
  const unknown = Object.keys(query).find((name) => !known.includes(name));
  if (unknown === undefined) return;
  throw new ParameterFailure(
    `${unknown.slice(0, 64)}: unknown parameter; there are ${known.join(', ') || 'none'}`,
    unknown.slice(0, 64),
  );
}
