/** The report of a replay as one page of HTML that needs no network: sentences, charts, tables. */
import { barChart, escaped, legend, lineChart, stackedBarChart } from '../../shared/report/charts.ts';
import { percent, rounded, secondsText } from '../../shared/report/number_text.ts';
import { paragraphs, reportPage, section, table } from '../../shared/report/report_page.ts';
import type { PolicyFigures, ReplayReport, RequestFigures } from './report.ts';
import { clusterText } from './report_text.ts';
import { figureRows, tierShares } from './report_table.ts';
import { tenantTables } from './tenant_table.ts';
import { verdictOf } from './verdict.ts';

const TIERS = ['device', 'DRAM', 'other instances', 'computed'];

/** Returns the report as the text of an HTML file. */
export function reportHtml(report: ReplayReport): string {
  const { policies, notes, machine, wallSeconds, seeds, hardware } = report;
  const all = (policy: PolicyFigures): RequestFigures => policy.atRate;
  const longest = (policy: PolicyFigures): RequestFigures => policy.atRate.longestTenth;
  return reportPage('Penstock replay', [
    paragraphs(clusterText(report)),
    `<div class="verdict">${paragraphs(verdictOf(report).reasons)}</div>`,
    ...attainmentCharts(report),
    section(
      'TTFT',
      timesChart(policies, 'TTFT', (policy) => all(policy).ttftMs),
    ),
    section(
      'TTFT of the tenth with the longest prompts',
      timesChart(policies, 'TTFT', (policy) => longest(policy).ttftMs),
    ),
    section(
      'Time between tokens',
      timesChart(policies, 'TBT', (policy) => all(policy).tbtMs),
    ),
    section('Where prompts came from', tiersChart(policies, all)),
    section('Where the longest tenth came from', tiersChart(policies, longest)),
    section('All requests', table(figureRows(policies, 'all'))),
    section('The tenth with the longest prompts', table(figureRows(policies, 'longest'))),
    ...tenantTables(policies).map(({ title, rows }) => section(title, table(rows))),
    cacheChart(report),
    section('How', paragraphs([...notes, `Hardware: ${hardware.name}. ${hardware.source}`])),
    `<p class="faint">${escaped(`Seeds ${seeds.join(', ')}; ${rounded(wallSeconds)} s on ${machine}.`)}</p>`,
  ]);
}

/** Attainment against rate, for all requests and for the longest tenth; nothing where only one rate was run. */
function attainmentCharts({ policies, targetShare }: ReplayReport): string[] {
  if (policies.every(({ attainmentByRate }) => attainmentByRate.length < 2)) return [];
  type Point = PolicyFigures['attainmentByRate'][number];
  const chart = (title: string, of: (point: Point) => number | undefined): string => {
    const series = policies.map(({ name, isDefault, attainmentByRate }) => ({
      name,
      isStrong: isDefault,
      points: attainmentByRate.flatMap((point) => {
        const y = of(point);
        return y === undefined ? [] : [{ x: point.ratePerSecond, y }];
      }),
    }));
    if (series.every(({ points }) => points.length === 0)) return '';
    const text = { title, x: 'requests per second', y: 'within the targets' };
    const lines = lineChart(series, text, { maxY: 1, threshold: targetShare, showY: percent });
    return section(title, legend(policies.map(nameOf)) + lines);
  };
  return [
    chart('Requests within the targets, by rate', ({ attainment }) => attainment),
    chart('The longest tenth within the targets, by rate', ({ attainmentOfLongestTenth }) => attainmentOfLongestTenth),
  ];
}

function timesChart(
  policies: readonly PolicyFigures[],
  title: string,
  of: (policy: PolicyFigures) => RequestFigures['ttftMs'],
): string {
  const names = ['p50', 'p90', 'p99'];
  const groups = policies.map((policy) => {
    const { p50, p90, p99 } = of(policy);
    return { name: nameOf(policy), values: [p50, p90, p99] };
  });
  return legend(names) + barChart(groups, title, names, secondsText);
}

function tiersChart(policies: readonly PolicyFigures[], of: (policy: PolicyFigures) => RequestFigures): string {
  const groups = policies.map((policy) => ({ name: nameOf(policy), values: tierShares(of(policy).hitTokens) }));
  return legend(TIERS) + stackedBarChart(groups, 'Prompt tokens by where they came from', TIERS, percent);
}

function cacheChart({ cacheCurve, traceStats }: ReplayReport): string {
  if (!cacheCurve) return '';
  const at = (capacityBlocks: number): number =>
    Number.isFinite(capacityBlocks) ? capacityBlocks : traceStats.numBlocks;
  const series = [
    {
      name: 'blocks',
      isStrong: true,
      points: cacheCurve.map((one) => ({ x: at(one.capacityBlocks), y: one.blockShare })),
    },
    {
      name: 'tokens',
      isStrong: false,
      points: cacheCurve.map((one) => ({ x: at(one.capacityBlocks), y: one.tokenShare })),
    },
  ];
  const text = { title: 'Hits of one cache by its capacity', x: 'blocks that fit (logarithmic)', y: 'hit' };
  return section(
    'One cache for all requests, by its capacity',
    legend(['of blocks', 'of tokens']) + lineChart(series, text, { isLogX: true, showY: percent }),
  );
}

function nameOf({ name, isDefault }: PolicyFigures): string {
  return isDefault ? `${name} (default)` : name;
}
