/** The report of a replay as JSON: keys in snake_case with their units, null where nothing was measured. */
import { verdictOf } from './verdict.ts';
import type { PolicyFigures, ReplayReport } from './report.ts';

/** Version of the JSON: it changes when a key changes its meaning or goes. */
const SCHEMA_VERSION = 1;

/** Returns the report as the text of a JSON file. */
export function reportJson(report: ReplayReport): string {
  const { policies, traceStats, trace, targets, machine, wallSeconds, ...rest } = report;
  const { leader, isDefaultFirst, reasons } = verdictOf(report);
  const value = {
    schema_version: SCHEMA_VERSION,
    trace: { name: trace, ...(snake(traceStats) as object) },
    targets: snake(targets),
    ...(snake(rest) as object),
    policies: policies.map(policyOf),
    verdict: { leader, is_default_first: isDefaultFirst, reasons },
    machine,
    wall_seconds: wallSeconds,
  };
  return `${JSON.stringify(value, null, 1)}\n`;
}

function policyOf({ name, isDefault, goodputPerSecond, goodputOfSeeds, ...rest }: PolicyFigures): object {
  return {
    name,
    is_default: isDefault,
    goodput: goodputPerSecond ?? null,
    goodput_of_seeds: goodputOfSeeds,
    ...(snake(rest) as object),
  };
}

/** Returns a value with the keys of its objects in snake_case; numbers that JSON has not, and undefined, become null. */
function snake(value: unknown): unknown {
  if (value === undefined || (typeof value === 'number' && !Number.isFinite(value))) return null;
  if (Array.isArray(value)) return value.map(snake);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, one]) => [
      key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      snake(one),
    ]),
  );
}
