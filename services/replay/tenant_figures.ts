/** Figures of a run by tenant. */
import type { Percentiles, TenantFigures, TenantsFigures } from './report.ts';
import type { RunResult } from './run_measurements.ts';
import type { TenantTime } from './tenant_ledger.ts';
import { hasTenants } from './run_tenants.ts';
import type { Trace } from '../../shared/trace/trace.ts';

/** Most tenants that a report names (P1): those with the most milliseconds of the engines; the others are `other` together. */
const MAX_NAMED = 64;
const OTHER = 'other';
const NO_TIME: Readonly<TenantTime> = { engineMs: 0, contendedMs: 0, entitledMs: 0 };

/** Returns the figures by tenant; undefined for a trace with one tenant. */
export function tenantsFigures(
  result: RunResult,
  { columns, numRequests }: Trace,
  percentiles: (values: Float64Array) => Percentiles,
): TenantsFigures | undefined {
  if (!hasTenants(columns)) return undefined;
  const nameOf = (i: number): string => columns.tenants[columns.tenantIds?.[i] ?? -1] ?? '';
  const byName = new Map<string, number[]>();
  for (let i = 0; i < numRequests; i++) {
    const others = byName.get(nameOf(i));
    if (others) others.push(i);
    else byName.set(nameOf(i), [i]);
  }
  const timeOf = (name: string): Readonly<TenantTime> => result.tenantTimes.get(name) ?? NO_TIME;
  const names = [...byName.keys()].sort((a, b) => timeOf(b).engineMs - timeOf(a).engineMs || (a < b ? -1 : 1));
  const named = names.length > MAX_NAMED ? names.slice(0, MAX_NAMED - 1) : names;
  const rest = names.slice(named.length);
  const groups = [
    ...named.map((name) => ({ name, of: [name] })),
    ...(rest.length > 0 ? [{ name: OTHER, of: rest }] : []),
  ];
  const sumMs = names.reduce((sum, name) => sum + timeOf(name).engineMs, 0);
  const tenants = groups.map(({ name, of }): TenantFigures => {
    const requests = of.flatMap((one) => byName.get(one) ?? []);
    const engineMs = of.reduce((sum, one) => sum + timeOf(one).engineMs, 0);
    const ttftMs = percentiles(Float64Array.from(requests, (i) => result.ttftMs[i]!));
    return {
      name,
      numRequests: requests.length,
      engineMs,
      share: engineMs / Math.max(sumMs, Number.MIN_VALUE),
      ttftMs,
    };
  });
  return { tenants, jain: jainOf(names.map(timeOf)) };
}

/**
 * Returns Jain's index of what tenants had of what they were entitled to, while requests of several waited: (Σx)² / (n·Σx²), 1 for equal
 * shares by weight, 1/n where one tenant had everything. undefined where never two of them waited.
 */
function jainOf(times: readonly Readonly<TenantTime>[]): number | undefined {
  const ratios = times.filter(({ entitledMs }) => entitledMs > 0).map((one) => one.contendedMs / one.entitledMs);
  const sum = ratios.reduce((all, x) => all + x, 0);
  const squares = ratios.reduce((all, x) => all + x * x, 0);
  return squares > 0 ? (sum * sum) / (ratios.length * squares) : undefined;
}
