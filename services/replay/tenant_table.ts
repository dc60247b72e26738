/** Figures by tenant as a table, for the terminal and the page. */
import { percent, rounded, secondsText } from '../../shared/report/number_text.ts';
import type { PolicyFigures } from './report.ts';

const HEAD = ['tenant', 'requests', 'engine time', 'share', 'TTFT p50', 'p99'];

/** Title and rows of a table of tenants. */
export interface TenantTable {
  readonly title: string;
  readonly rows: readonly (readonly string[])[];
}

/** Returns a table for each policy; none for a trace with one tenant. */
export function tenantTables(policies: readonly PolicyFigures[]): readonly TenantTable[] {
  return policies.flatMap(({ name, atRate: { byTenant } }) => {
    if (!byTenant) return [];
    const { tenants, jain } = byTenant;
    const index = jain === undefined ? 'no two of them waited at once' : `Jain’s index ${jain.toFixed(3)}`;
    const rows = tenants.map((one) => [
      one.name === '' ? '(none)' : one.name,
      one.numRequests.toLocaleString('en'),
      `${rounded(one.engineMs / 1_000)} s`,
      percent(one.share),
      secondsText(one.ttftMs.p50),
      secondsText(one.ttftMs.p99),
    ]);
    return [{ title: `Tenants under ${name} (${index})`, rows: [HEAD, ...rows] }];
  });
}
