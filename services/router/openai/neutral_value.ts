/** Values of a parameter with which it asks for nothing. */
import { withoutNulls } from '../../../shared/base/without_nulls.ts';

/** Whether a value is a JSON object: neither null, an array nor a typed array. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !ArrayBuffer.isView(value);
}

/** Whether a value is one of the `neutral` ones. In an object, null is the same as leaving a key out. */
export function isNeutral(value: unknown, neutral: readonly unknown[]): boolean {
  // A list of ids: long ones are not spelled out to be compared.
  if (ArrayBuffer.isView(value))
    return value.byteLength === 0 && neutral.some((one) => Array.isArray(one) && one.length === 0);
  const said = JSON.stringify(isObject(value) ? withoutNulls(value) : value);
  return neutral.some((one) => JSON.stringify(one) === said);
}
