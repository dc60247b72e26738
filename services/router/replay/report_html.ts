/** The report of a replay as one page of HTML that needs no network: sentences, charts, tables. `report_page.html` has its styles. */
import { readFileSync } from 'node:fs';
import { barChart, escaped, legend, lineChart, stackedBarChart } from './charts.ts';
import { percent, rounded, secondsText } from './number_text.ts';
import type { PolicyFigures, ReplayReport, RequestFigures } from './report.ts';
import { clusterText } from './report_text.ts';
import { figureRows, tierShares } from './report_table.ts';
import { verdictOf } from './verdict.ts';

const CONTENT = '<!-- content -->';
const TIERS = ['device', 'DRAM', 'other instances', 'computed'];

/** Returns the report as the text of an HTML file. */
export function reportHtml(report: ReplayReport): string {
  const page = readFileSync(new URL('./report_page.html', import.meta.url), 'utf8');
  const { policies, notes, machine, wallSeconds, seeds, hardware } = report;
  const all = (policy: PolicyFigures): RequestFigures => policy.atRate;
  const longest = (policy: PolicyFigures): RequestFigures => policy.atRate.longestTenth;
  const content = [
    '<h1>Penstock replay</h1>',
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
    cacheChart(report),
    section('How', paragraphs([...notes, `Hardware: ${hardware.name}. ${hardware.source}`])),
    `<p class="faint">${escaped(`Seeds ${seeds.join(', ')}; ${rounded(wallSeconds)} s on ${machine}.`)}</p>`,
  ];
  // A replacement text would be searched for `$&` and the like.
  return page.replace(CONTENT, () => content.join('\n    '));
}

function paragraphs(texts: readonly string[]): string {
  return texts.map((text) => `<p>${escaped(text)}</p>`).join('');
}

function section(title: string, content: string): string {
  return `<h2>${escaped(title)}</h2>${content}`;
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

function table([head = [], ...rows]: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[], tag: string): string =>
    `<tr>${cells.map((cell) => `<${tag}>${escaped(cell)}</${tag}>`).join('')}</tr>`;
  return `<div class="scroll"><table>${line(head, 'th')}${rows.map((cells) => line(cells, 'td')).join('')}</table></div>`;
}
