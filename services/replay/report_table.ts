/** The report of a replay as text for a terminal. */
import { bytesText, percent, rounded, secondsText } from '../../shared/report/number_text.ts';
import type { HitCounts, PolicyFigures, ReplayReport, RequestFigures } from './report.ts';
import { clusterText } from './report_text.ts';
import { tenantTables } from './tenant_table.ts';
import { verdictOf } from './verdict.ts';

const HEAD = [
  ...['policy', 'goodput /s', 'at /s', 'in targets', 'TTFT p50', 'p90', 'p99', 'TBT mean', 'p90', 'p99'],
  ...['device', 'dram', 'remote', 'computed', 'moved', 'rejected'],
];

/** Returns the report as lines of text: the set-up, a table of all requests, one of the longest tenth, and who leads. */
export function reportTable(report: ReplayReport): string {
  const { policies, cacheCurve, notes, machine, wallSeconds, seeds } = report;
  const { reasons } = verdictOf(report);
  const curve = cacheCurve?.map(({ capacityBlocks, blockShare, tokenShare }) => [
    Number.isFinite(capacityBlocks) ? rounded(capacityBlocks) : 'unbounded',
    percent(blockShare, 2),
    percent(tokenShare, 2),
  ]);
  return [
    ...clusterText(report),
    '',
    'All requests:',
    ...aligned(figureRows(policies, 'all')),
    '',
    'The tenth with the longest prompts:',
    ...aligned(figureRows(policies, 'longest')),
    '',
    ...tenantTables(policies).flatMap(({ title, rows }) => [`${title}:`, ...aligned(rows), '']),
    ...(curve
      ? ['One cache, by its capacity:', ...aligned([['blocks', 'of blocks hit', 'of tokens hit'], ...curve]), '']
      : []),
    ...reasons,
    ...notes,
    `${seeds.length === 1 ? 'One seed' : `${seeds.length} seeds`}, ${rounded(wallSeconds)} s on ${machine}.`,
    '',
  ].join('\n');
}

/** Returns the table of all requests, or of the tenth with the longest prompts: its head, and a row of cells for each policy. */
export function figureRows(policies: readonly PolicyFigures[], of: 'all' | 'longest'): readonly (readonly string[])[] {
  const rows = policies.map((policy) =>
    of === 'all'
      ? row(policy, policy.atRate, policy.goodputPerSecond)
      : row(policy, policy.atRate.longestTenth, policy.goodputOfLongestTenth),
  );
  return [HEAD, ...rows];
}

function row(
  { name, isDefault, atRate }: PolicyFigures,
  figures: RequestFigures,
  goodput: number | undefined,
): string[] {
  const { ttftMs, tbtMs, attainment, hitTokens, bytesMoved, rejections } = figures;
  return [
    isDefault ? `${name} (default)` : name,
    goodput === undefined ? '–' : rounded(goodput),
    rounded(atRate.ratePerSecond),
    percent(attainment),
    ...[ttftMs.p50, ttftMs.p90, ttftMs.p99, tbtMs.mean, tbtMs.p90, tbtMs.p99].map(secondsText),
    ...tierShares(hitTokens).map((share) => percent(share)),
    bytesText(bytesMoved),
    String(rejections),
  ];
}

/** Returns the shares of prompt tokens from device, DRAM and other instances, and of those that were computed. */
export function tierShares({ device, dram, remote, computed }: HitCounts): readonly [number, number, number, number] {
  const all = device + dram + remote + computed;
  return [device / all, dram / all, remote / all, computed / all];
}

/** Returns rows as lines with columns of equal width: the first one to the left, numbers to the right. */
export function aligned(rows: readonly (readonly string[])[]): string[] {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((cells) => cells[column]?.length ?? 0)));
  return rows.map((cells) =>
    cells
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join('  ')
      .trimEnd(),
  );
}
