/**
 * Returns the properties of an object that are neither null nor undefined: many clients and configurations write null for what is not
 * set.
 */
export function withoutNulls(given: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null && value !== undefined));
}
