/** The screen of `penstock top` as lines of text: a pure function of what was read, and of the size of the terminal. */
import { plainText, type PoolSample } from './pool_sample.ts';
import {
  loadColumns,
  rowsOf,
  sortedRows,
  sortings,
  tenantRowsOf,
  totalsOf,
  type LoadColumn,
  type NodeRow,
  type Sorting,
} from './pool_rates.ts';

/** State of the view. */
export interface TopView {
  /** Address of the router. */
  readonly address: string;
  /** Last two looks at the router; undefined before the first and the second. */
  readonly before: PoolSample | undefined;
  readonly last: PoolSample | undefined;
  /** Reason why the last attempt failed; undefined after a success. */
  readonly fault: string | undefined;
  /** Time now, on the clock of the samples. */
  readonly nowMs: number;
  readonly sorting: Sorting;
  readonly isReversed: boolean;
  /** Rows above the first shown one. */
  readonly scroll: number;
}

/** One line, and how it is shown. */
export interface ScreenLine {
  readonly text: string;
  readonly style: 'plain' | 'head' | 'alarm' | 'dim';
}

/** Values older than this are stale. */
const STALE_MS = 3_000;

/** Whether the values of the view are stale: nothing new for STALE_MS. */
export function isStale({ last, nowMs }: Pick<TopView, 'last' | 'nowMs'>): boolean {
  return last === undefined || nowMs - last.atMs > STALE_MS;
}

/** Returns the lines above the table, and the table with all its rows; cells are not cut. */
export function tableLines(view: TopView): { readonly head: ScreenLine[]; readonly table: ScreenLine[] } {
  const { last, before, sorting, isReversed } = view;
  const head = [titleLine(view)];
  if (!last) return { head, table: [] };
  const roles = new Map<string, number>();
  for (const { role } of last.nodes) roles.set(role, (roles.get(role) ?? 0) + 1);
  const counts = [...roles].map(([role, count]) => `${count} ${role}`).join(', ') || 'none';
  const { running, waiting, ...rates } = totalsOf(before, last);
  head.push(
    plain(
      `nodes: ${counts}   in flight ${last.inFlight}   running ${running}   waiting ${waiting}   index ${last.indexKeys} blocks   policy ${last.policy}`,
    ),
    plain(
      `requests/s ${rateText(rates.requestsPerS)}   prompt tokens/s ${rateText(rates.promptTokensPerS)}   output tokens/s ${rateText(rates.outputTokensPerS)}   ` +
        `TTFT ${rates.ttftMs === undefined ? '-' : `${rates.ttftMs.toFixed(0)} ms`}   cached ${percent(rates.hitRatio)}   moved ${bytesText(rates.bytesPerS)}/s`,
    ),
    ...tenantLines(before, last),
    ...last.problems.map((text): ScreenLine => ({ text, style: 'alarm' })),
  );
  const style = isStale(view) ? 'dim' : 'plain';
  const rows = sortedRows(rowsOf(before, last), sorting, isReversed);
  const [titles = '', ...cells] = aligned([
    columns.map(({ title }) => title),
    ...rows.map((row) => columns.map(({ cell }) => cell(row))),
  ]);
  const isAlarming = ({ state }: NodeRow): boolean => ['suspect', 'unreachable'].includes(state);
  const body = cells.map((text, i): ScreenLine => ({ text, style: rows[i] && isAlarming(rows[i]) ? 'alarm' : style }));
  return { head, table: [{ text: titles, style: 'head' }, ...body] };
}

/** Tenants that have a line, those that keep the most of the engines busy. */
const MAX_TENANT_LINES = 5;

/** Returns a line for each of the first tenants; none where the router asks for no keys. */
function tenantLines(before: PoolSample | undefined, last: PoolSample): ScreenLine[] {
  const rows = tenantRowsOf(before, last);
  const lines = rows
    .slice(0, MAX_TENANT_LINES)
    .map(({ name, requestsPerS, outputTokensPerS, engines, waiting }) =>
      plain(
        `tenant ${name}   requests/s ${rateText(requestsPerS)}   output tokens/s ${rateText(outputTokensPerS)}   engines ${engines?.toFixed(2) ?? '-'}   waiting ${waiting}`,
      ),
    );
  const numMore = rows.length - lines.length;
  return numMore > 0 ? [...lines, plain(`and ${numMore} further tenants: penstock_tenant_* of /metrics`)] : lines;
}

/** Returns the lines of a terminal with that size: at most `height`, each at most `width` columns wide; the last one says which keys do what. */
export function screenLines(
  view: TopView,
  { width, height }: { readonly width: number; readonly height: number },
): ScreenLine[] {
  const { head, table } = tableLines(view);
  const [titles, ...rows] = table;
  const above = head.flatMap((line) => folded(line, width));
  const room = Math.max(0, height - above.length - (titles ? 1 : 0) - 1);
  const from = scrollWithin(view.scroll, rows.length, room);
  const shown = rows.slice(from, from + room);
  const keys = Object.entries(sortings).map(([key, { title }]) => `${key} ${title}`);
  const hidden =
    rows.length > shown.length ? `   rows ${from + 1} to ${from + shown.length} of ${rows.length} (arrows)` : '';
  const foot: ScreenLine = { text: `q quit   sort by: ${keys.join(', ')}${hidden}`, style: 'dim' };
  const lines = [...above, ...(titles ? [titles] : []), ...shown].slice(0, Math.max(0, height - 1));
  return [...lines, foot].slice(0, height).map(({ text, style }) => ({ text: cut(text, width), style }));
}

/** Blanks between two values of a line above the table. */
const GAP = '   ';

/** Returns the values of a line on as many lines as they need; a value that is wider than the terminal is left to be cut. */
function folded({ text, style }: ScreenLine, width: number): ScreenLine[] {
  const lines: string[] = [];
  for (const part of text.split(GAP)) {
    const last = lines.at(-1);
    const longer = last === undefined ? part : `${last}${GAP}${part}`;
    if (last === undefined || widthOf(longer) > width) lines.push(part);
    else lines[lines.length - 1] = longer;
  }
  return lines.map((line) => ({ text: line, style }));
}

/** Returns how many rows are above the first shown one, where the last row is not left behind. */
function scrollWithin(scroll: number, numRows: number, room: number): number {
  return Math.max(0, Math.min(scroll, numRows - room));
}

function titleLine({ address, last, fault, nowMs, ...view }: TopView): ScreenLine {
  const where = `penstock top   ${plainText(address)}`;
  const why = fault === undefined ? '' : ` (${plainText(fault)})`;
  if (!last) return { text: `${where}   no answer yet${why}`, style: fault === undefined ? 'plain' : 'alarm' };
  const time = new Date(last.asOfMs).toISOString().slice(11, 19);
  const order = `sorted by ${sortings[view.sorting].title}${view.isReversed ? ', reversed' : ''}`;
  if (!isStale({ last, nowMs })) return plain(`${where}   as of ${time} UTC   ${order}`);
  const seconds = Math.floor((nowMs - last.atMs) / 1_000);
  return { text: `${where}   STALE: no answer for ${seconds} s${why}; values as of ${time} UTC`, style: 'alarm' };
}

interface Column {
  readonly title: string;
  readonly cell: (row: NodeRow) => string;
  readonly isNumber?: boolean;
}

const columns: readonly Column[] = [
  { title: 'NAME', cell: ({ name }) => name },
  { title: 'ROLE', cell: ({ role }) => role },
  { title: 'STATE', cell: ({ state }) => state },
  ...loadColumns.map(({ name, title, unit }): Column => ({
    title,
    cell: (row) => valueText(row[name], unit),
    isNumber: true,
  })),
  { title: 'HITS', cell: ({ hitRatio }) => percent(hitRatio), isNumber: true },
  { title: 'MOVED/S', cell: ({ bytesPerS }) => bytesText(bytesPerS), isNumber: true },
  {
    title: 'FILL',
    cell: ({ fills }) => fills.map(({ tier, fraction }) => `${tier} ${percent(fraction)}`).join('  ') || '-',
  },
  { title: 'MODEL', cell: ({ model }) => model || '-' },
];

/** Cells wider than this are cut, so that a long name leaves room for the rest. */
const MAX_CELL = 40;

/** Returns rows of cells as lines in which columns begin at the same place. */
function aligned(rows: readonly (readonly string[])[]): string[] {
  const cells = rows.map((row) => row.map((text) => cut(text, MAX_CELL)));
  const widths = columns.map((_, i) => Math.max(...cells.map((row) => widthOf(row[i] ?? ''))));
  return cells.map((row) =>
    row
      .map((text, i) => {
        const gap = ' '.repeat((widths[i] ?? 0) - widthOf(text));
        return columns[i]?.isNumber ? gap + text : text + gap;
      })
      .join('  ')
      .trimEnd(),
  );
}

/** Characters that take two columns of a terminal. */
const WIDE =
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;

function widthOf(text: string): number {
  let width = 0;
  for (const character of text) width += WIDE.test(character) ? 2 : 1;
  return width;
}

function cut(text: string, width: number): string {
  if (widthOf(text) <= width) return text;
  let [result, used] = ['', 1];
  for (const character of text) {
    used += WIDE.test(character) ? 2 : 1;
    if (used > width) break;
    result += character;
  }
  return width > 0 ? `${result}…` : '';
}

function plain(text: string): ScreenLine {
  return { text, style: 'plain' };
}

function percent(fraction: number | undefined): string {
  return fraction === undefined ? '-' : `${(100 * fraction).toFixed(0)}%`;
}

function valueText(value: number | null, unit: LoadColumn['unit']): string {
  if (value === null) return '-';
  if (unit === 'share') return percent(value);
  return unit === 'ms' ? `${value.toFixed(0)} ms` : String(value);
}

function rateText(rate: number | undefined): string {
  if (rate === undefined) return '-';
  return rate.toFixed(rate < 10 ? 1 : 0);
}

function bytesText(bytes: number | undefined): string {
  if (bytes === undefined) return '-';
  const units = ['B', 'KiB', 'MiB', 'GiB'] as const;
  const unit = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, bytes)) / 10)));
  return `${(bytes / 2 ** (10 * unit)).toFixed(unit === 0 ? 0 : 1)} ${units[unit] ?? ''}`;
}
