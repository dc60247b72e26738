/** Neutral values: values with which a parameter asks for nothing. */
import { withoutNulls } from '../../../shared/base/without_nulls.ts';

/** Whether a value is a JSON object: neither null, an array nor a typed array. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !ArrayBuffer.isView(value);
}

/** Whether a value is one of the `neutral` ones. In an object, null is the same as leaving a key out. */
export function isNeutral(value: unknown, neutral: readonly unknown[]): boolean {
  // Typed arrays are lists of ids: only an empty one can be neutral, and long ones are not serialised.
  if (ArrayBuffer.isView(value))
    return value.byteLength === 0 && neutral.some((one) => Array.isArray(one) && one.length === 0);
  const json = JSON.stringify(isObject(value) ? withoutNulls(value) : value);
  return neutral.some((one) => JSON.stringify(one) === json);
}
