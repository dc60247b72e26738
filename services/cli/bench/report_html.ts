/** Several runs as one page of charts, in the form of the page of `penstock replay`. */
import { barChart, legend, lineChart, type Series } from '../../../shared/report/charts.ts';
import { percent, rounded, secondsText } from '../../../shared/report/number_text.ts';
import { paragraphs, reportPage, section, table } from '../../../shared/report/report_page.ts';
import { metricNames } from './figures.ts';
import type { ReportedRun } from './run_file.ts';
import { metricTitles } from './run_result.ts';

/** Returns the page as the text of an HTML file. */
export function reportHtml(given: readonly ReportedRun[]): string {
  const runs = withNames(given);
  const models = [...new Set(runs.map(({ model }) => model).filter((model) => model !== ''))];
  const notes = runs.flatMap(({ name, notes: some }) => some.map((note) => `${name}: ${note}`));
  return reportPage('Penstock bench', [
    paragraphs([
      `${runs.length === 1 ? 'One run' : `${runs.length} runs`} of ${models.join(', ') || 'an unnamed model'}. Times are those of a client, in milliseconds.`,
      ...notes,
    ]),
    section('Throughput', throughput(runs)),
    ...byLoad(runs),
    ...metricNames.flatMap((name) => timeSections(runs, name)),
    ...tokensOverTime(runs),
    section('All figures', table(rowsOf(runs))),
  ]);
}

/** Equal names get their rate or their place in the list, so that charts tell them apart. */
function withNames(runs: readonly ReportedRun[]): readonly ReportedRun[] {
  const isTwice = (name: string): boolean => runs.filter((one) => one.name === name).length > 1;
  return runs.map((run, i) => {
    if (!isTwice(run.name)) return run;
    const at = run.rate === undefined ? '' : `, ${rounded(run.rate)}/s`;
    const most = run.maxConcurrency === undefined ? '' : `, ${run.maxConcurrency} at a time`;
    return { ...run, name: `${run.name}${at}${most} (${i + 1})` };
  });
}

function throughput(runs: readonly ReportedRun[]): string {
  const chart = (title: string, of: (run: ReportedRun) => number): string => {
    const groups = runs.map((run) => ({ name: run.name, values: [of(run)] }));
    return `${legend([title])}${barChart(groups, title, [title], rounded)}`;
  };
  return [
    chart('output tokens per second', (run) => run.outputTokensPerSecond),
    chart('requests per second', (run) => run.requestsPerSecond),
  ].join('');
}

/** Times against the rate or the concurrency that was asked for, where runs differ in it. */
function byLoad(runs: readonly ReportedRun[]): string[] {
  const axes = [
    ['requests per second', (run: ReportedRun) => run.rate],
    ['requests at a time', (run: ReportedRun) => run.maxConcurrency],
  ] as const;
  return axes.flatMap(([x, of]) => {
    const some = runs.filter((run) => of(run) !== undefined).sort((a, b) => (of(a) ?? 0) - (of(b) ?? 0));
    if (new Set(some.map(of)).size < 2) return [];
    const series = (name: string, value: (run: ReportedRun) => number | undefined): Series => ({
      name,
      isStrong: name.includes('median'),
      points: some.flatMap((run) => {
        const y = value(run);
        return y === undefined ? [] : [{ x: of(run) ?? 0, y }];
      }),
    });
    const times = [
      series('TTFT, median', ({ times: { ttft } }) => ttft.median),
      series('TTFT, p99', ({ times: { ttft } }) => ttft.p99),
      series('TPOT, median', ({ times: { tpot } }) => tpot.median),
      series('TPOT, p99', ({ times: { tpot } }) => tpot.p99),
    ].filter(({ points }) => points.length > 0);
    const tokens = [series('output tokens per second', (run) => run.outputTokensPerSecond)];
    const chart = (all: Series[], y: string, showY: (value: number) => string): string =>
      legend(all.map(({ name }) => name)) + lineChart(all, { title: `${y} by ${x}`, x, y }, { showY });
    return [section(`By ${x}`, chart(times, 'time', secondsText) + chart(tokens, 'tokens/s', rounded))];
  });
}

/** Bars of a time, and its distribution where the files have it. */
function timeSections(runs: readonly ReportedRun[], metric: (typeof metricNames)[number]): string[] {
  const [short, long] = metricTitles[metric];
  const names = ['mean', 'median', 'p99'];
  const groups = runs.map(({ name, times }) => {
    const { mean = NaN, median = NaN, p99 = NaN } = times[metric];
    return { name, values: [mean, median, p99] };
  });
  if (groups.every(({ values }) => values.every(Number.isNaN))) return [];
  const curves = runs.map(({ name, times }) => ({
    name,
    isStrong: false,
    points: times[metric].curve.map(({ percent: share, ms }) => ({ x: ms, y: share / 100 })),
  }));
  const hasCurves = curves.some(({ points }) => points.length > 0);
  const text = { title: `Requests by their ${short}`, x: `${short} in ms`, y: 'share at most so long' };
  const distribution = hasCurves
    ? legend(curves.map(({ name }) => name)) + lineChart(curves, text, { maxY: 1, showY: (share) => percent(share, 0) })
    : '';
  return [section(`${long} (${short})`, legend(names) + barChart(groups, short, names, secondsText) + distribution)];
}

/** Most points of a line. */
const MAX_POINTS = 240;

function tokensOverTime(runs: readonly ReportedRun[]): string[] {
  const series = runs.map(({ name, tokensBySecond }) => ({ name, isStrong: false, points: pointsOf(tokensBySecond) }));
  if (series.every(({ points }) => points.length < 2)) return [];
  const text = { title: 'Output tokens by second', x: 'seconds of the run', y: 'tokens/s' };
  return [section('Output tokens over the run', legend(series.map(({ name }) => name)) + lineChart(series, text))];
}

/** Returns means of equal stretches, in the middle of each. */
function pointsOf(values: readonly number[]): { readonly x: number; readonly y: number }[] {
  const size = Math.max(1, Math.ceil(values.length / MAX_POINTS));
  return Array.from({ length: Math.ceil(values.length / size) }, (_, i) => {
    const some = values.slice(i * size, (i + 1) * size);
    return { x: i * size + some.length / 2, y: some.reduce((sum, one) => sum + one, 0) / some.length };
  });
}

function rowsOf(runs: readonly ReportedRun[]): string[][] {
  const head = [
    ...['run', 'date', 'rate', 'at a time', 'done', 'failed', 'seconds', 'requests/s', 'goodput/s', 'output tokens/s'],
    ...[
      'tokens/s',
      'cached',
      ...metricNames.flatMap((name) => ['mean', 'median', 'p99'].map((one) => `${metricTitles[name][0]} ${one}`)),
    ],
  ];
  const shown = (value: number | undefined): string => (value === undefined ? '–' : rounded(value));
  const rows = runs.map((run) => [
    ...[run.name, run.date, shown(run.rate), shown(run.maxConcurrency), String(run.numDone), String(run.numFailed)],
    ...[rounded(run.durationSeconds), rounded(run.requestsPerSecond), shown(run.goodputPerSecond)],
    ...[rounded(run.outputTokensPerSecond), rounded(run.tokensPerSecond)],
    run.cachedShare === undefined ? '–' : percent(run.cachedShare),
    ...metricNames.flatMap((name) => {
      const { mean = NaN, median = NaN, p99 = NaN } = run.times[name];
      return [mean, median, p99].map(secondsText);
    }),
  ]);
  return [head, ...rows];
}
