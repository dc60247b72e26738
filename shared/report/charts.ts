/**
 * Charts as SVG text, without scripts and without anything from another host. Colours are variables of the page (`--series-0`, ...), so that
 * they follow its light or dark scheme; every mark has a title that a pointer or a screen reader shows.
 */
import { rounded } from './number_text.ts';

const WIDTH = 760;
const MARGIN = { left: 88, right: 16, top: 12, bottom: 44 };
const HEIGHT = 320;
/** Height of a bar, and of the space to the next group of bars. */
const BAR = 16;
const GROUP_GAP = 14;
/** Width of the names next to bars. */
const NAME_WIDTH = 190;
/** Most characters of a name that fit there. */
const MAX_NAME_LENGTH = 28;
/** Number of different colours of the page; further series repeat them, with dashes. */
const NUM_COLOURS = 8;

/** A line: its name and its points, ascending in x. */
export interface Series {
  readonly name: string;
  readonly points: readonly { readonly x: number; readonly y: number }[];
  /** Whether the line is drawn thicker. */
  readonly isStrong: boolean;
}

/** A chart's title, for readers who do not see it, and the meaning of its axes. */
export interface ChartText {
  readonly title: string;
  readonly x: string;
  readonly y: string;
}

/** Bars of a group, one below the other, or one bar of parts side by side. */
export interface BarGroup {
  readonly name: string;
  readonly values: readonly number[];
}

/** Returns text for HTML and SVG, between tags or in quotes. */
export function escaped(text: string): string {
  return text
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('>', '&gt;')
    .replaceAll('"', '&quot;')
    .replaceAll("'", '&#39;');
}

/** Returns the colour of a series as a value of CSS. */
function colourOf(series: number): string {
  return `var(--series-${series % NUM_COLOURS})`;
}

/**
 * Returns a chart of lines. y is from 0 to `maxY`, or to the largest point; `threshold` is a dashed line across the chart. With `isLogX` the x
 * axis is logarithmic, and all x are above 0.
 */
export function lineChart(
  series: readonly Series[],
  text: ChartText,
  {
    maxY = undefined as number | undefined,
    threshold = undefined as number | undefined,
    isLogX = false,
    showY = rounded,
  } = {},
): string {
  const points = series.flatMap((one) => one.points);
  const top = maxY ?? niceCeiling(Math.max(0, ...points.map(({ y }) => y)));
  const scale = (x: number): number => (isLogX ? Math.log10(x) : x);
  const xs = points.map(({ x }) => scale(x));
  const [low, high] = isLogX ? [Math.min(...xs), Math.max(...xs)] : [0, niceCeiling(Math.max(0, ...xs))];
  const xOf = (x: number): number =>
    MARGIN.left + ((scale(x) - low) / (high - low || 1)) * (WIDTH - MARGIN.left - MARGIN.right);
  const yOf = (y: number): number => HEIGHT - MARGIN.bottom - (y / (top || 1)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  const right = WIDTH - MARGIN.right;
  return figure(text.title, HEIGHT, [
    ...ticks.map((share) => {
      const y = yOf(share * top);
      return `<line class="grid" x1="${MARGIN.left}" y1="${px(y)}" x2="${right}" y2="${px(y)}"/>${label(MARGIN.left - 8, y + 4, showY(share * top), 'end')}`;
    }),
    ...ticks.map((share) => {
      const value = low + share * (high - low);
      const x = MARGIN.left + share * (right - MARGIN.left);
      return label(x, HEIGHT - MARGIN.bottom + 18, rounded(isLogX ? 10 ** value : value), 'middle');
    }),
    threshold === undefined
      ? ''
      : `<line class="threshold" x1="${MARGIN.left}" y1="${px(yOf(threshold))}" x2="${right}" y2="${px(yOf(threshold))}"/>`,
    ...series.map((one, i) => lineOf(one, i, xOf, yOf, showY)),
    label((MARGIN.left + right) / 2, HEIGHT - 8, text.x, 'middle'),
    `<text class="axis" transform="translate(14 ${HEIGHT / 2}) rotate(-90)" text-anchor="middle">${escaped(text.y)}</text>`,
  ]);
}

function lineOf(
  { name, points, isStrong }: Series,
  i: number,
  xOf: (x: number) => number,
  yOf: (y: number) => number,
  showY: (y: number) => string,
): string {
  const dash = i < NUM_COLOURS ? '' : ' stroke-dasharray="6 4"';
  const path = points.map(({ x, y }) => `${px(xOf(x))},${px(yOf(y))}`).join(' ');
  const marks = points.map(
    ({ x, y }) =>
      `<circle cx="${px(xOf(x))}" cy="${px(yOf(y))}" r="3" fill="${colourOf(i)}"><title>${escaped(`${name}: ${showY(y)} at ${rounded(x)}`)}</title></circle>`,
  );
  return `<polyline points="${path}" fill="none" stroke="${colourOf(i)}" stroke-width="${isStrong ? 3.5 : 1.75}"${dash}/>${marks.join('')}`;
}

/** Returns a chart of horizontal bars: for each group its name, and below one another a bar for each value. */
export function barChart(
  groups: readonly BarGroup[],
  title: string,
  names: readonly string[],
  show: (value: number) => string,
): string {
  const widest = Math.max(0, ...groups.flatMap(({ values }) => values.filter(Number.isFinite))) || 1;
  const room = WIDTH - NAME_WIDTH - 90;
  const groupHeight = names.length * BAR + GROUP_GAP;
  const marks = groups.map(({ name, values }, row) => {
    const top = GROUP_GAP / 2 + row * groupHeight;
    const bars = values.map((value, i) => {
      const y = top + i * BAR;
      const width = Number.isFinite(value) ? Math.max(1, (value / widest) * room) : 0;
      const title = `<title>${escaped(`${name}, ${names[i] ?? ''}: ${show(value)}`)}</title>`;
      return `<rect x="${NAME_WIDTH}" y="${px(y)}" width="${px(width)}" height="${BAR - 3}" fill="${colourOf(i)}">${title}</rect>${label(NAME_WIDTH + width + 6, y + 11, show(value), 'start')}`;
    });
    return `${label(NAME_WIDTH - 10, top + (names.length * BAR) / 2 + 4, shortened(name), 'end')}${bars.join('')}`;
  });
  return figure(title, groups.length * groupHeight, marks);
}

/** Returns a chart of one horizontal bar per group, whose parts (shares from 0 to 1, NaN where unknown) lie side by side. */
export function stackedBarChart(
  groups: readonly BarGroup[],
  title: string,
  names: readonly string[],
  show: (value: number) => string,
): string {
  const room = WIDTH - NAME_WIDTH - 16;
  const rowHeight = BAR + 6 + GROUP_GAP;
  const marks = groups.map(({ name, values }, row) => {
    const y = GROUP_GAP / 2 + row * rowHeight;
    let x = NAME_WIDTH;
    const parts = values.map((value, i) => {
      const width = Number.isFinite(value) ? value * room : 0;
      const title = `<title>${escaped(`${name}, ${names[i] ?? ''}: ${show(value)}`)}</title>`;
      const inside =
        width > 52
          ? `<text class="inside" x="${px(x + width / 2)}" y="${px(y + 15)}" text-anchor="middle">${escaped(show(value))}</text>`
          : '';
      const part = `<rect x="${px(x)}" y="${px(y)}" width="${px(width)}" height="${BAR + 6}" fill="${colourOf(i)}">${title}</rect>${inside}`;
      x += width;
      return part;
    });
    return `${label(NAME_WIDTH - 10, y + 15, shortened(name), 'end')}${parts.join('')}`;
  });
  return figure(title, groups.length * rowHeight, marks);
}

/** Returns a legend: a coloured mark and a name for each series. */
export function legend(names: readonly string[]): string {
  const entries = names.map((name, i) => `<li><span style="background:${colourOf(i)}"></span>${escaped(name)}</li>`);
  return `<ul class="legend">${entries.join('')}</ul>`;
}

function figure(title: string, height: number, marks: readonly string[]): string {
  return `<svg viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="${escaped(title)}">${marks.join('')}</svg>`;
}

/** Returns a name as next to its bars, whose titles have all of it. */
function shortened(name: string): string {
  return name.length > MAX_NAME_LENGTH ? `${name.slice(0, MAX_NAME_LENGTH - 1)}…` : name;
}

function label(x: number, y: number, text: string, anchor: 'start' | 'middle' | 'end'): string {
  return `<text class="axis" x="${px(x)}" y="${px(y)}" text-anchor="${anchor}">${escaped(text)}</text>`;
}

/** A coordinate, rounded to a tenth. */
function px(value: number): string {
  return String(Math.round(10 * value) / 10);
}

/** Returns the next larger number of 1, 1.2, 1.6, 2, 2.4, ... times a power of ten that four intervals divide evenly. */
function niceCeiling(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10].find((factor) => factor * power >= value * (1 - 1e-9)) ?? 10) * power;
}
