/** The keys of an object that have a value: JSON of many clients, and configurations, have null for what is not set. */
export function withoutNulls(given: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null && value !== undefined));
}
