/** uPlot with the page's colours: lines or stacked areas over time or over sizes, and events as marks. */
import uPlot from 'uplot';

/** A line of a chart. */
export interface Line {
  readonly label: string;
  /** Number of the colour in colours.css. */
  readonly color: number;
  readonly values: readonly (number | null)[];
  readonly title?: string | undefined;
}

/** A moment with a name, drawn as a vertical line. `at` is a value of the horizontal axis. */
export interface Mark {
  readonly at: number;
  readonly text: string;
  readonly isBad: boolean;
}

/** Content of a chart. */
export interface PlotContent {
  /** Values of the horizontal axis: milliseconds since 1970, or sizes. */
  readonly xs: readonly number[];
  readonly lines: readonly Line[];
  readonly marks: readonly Mark[];
  /** First and last value of the horizontal axis. */
  readonly from: number;
  readonly to: number;
  readonly isStacked: boolean;
  /** Whether the horizontal axis has sizes, by powers of two, instead of times. */
  readonly isBySize: boolean;
  /** Largest value that the vertical axis shows at least. */
  readonly atLeast: number;
  readonly formatX: (x: number) => string;
  readonly formatY: (y: number) => string;
}

/** Distances of two ticks of a time axis, in milliseconds. uPlot's own have none between one minute and five. */
const TIME_STEPS_MS = [
  ...[1, 2, 5, 10, 15, 30].map((seconds) => seconds * 1_000),
  ...[1, 2, 3, 5, 10, 15, 30].map((minutes) => minutes * 60_000),
  ...[1, 2, 3, 4, 6, 8, 12, 24].map((hours) => hours * 3_600_000),
];

/** Pixels around a mark in which the pointer is at it. */
const NEAR_PX = 5;

/** A logarithmic scale. uPlot's enum for it exists for the compiler only. */
const BY_POWERS_OF_TWO = { distr: 3, log: 2 } as unknown as uPlot.Scale;

/** A chart in an element. Its owner calls `update` with new content, and `destroy` in the end. */
export class Plot {
  readonly #plot: uPlot;
  readonly #observer: ResizeObserver;
  #content: PlotContent;

  /** @param onPoint called with the index of the value below the pointer, and with the marks near it. */
  constructor(
    box: HTMLElement,
    content: PlotContent,
    height: number,
    onPoint: (index: number | null, marks: readonly Mark[]) => void,
  ) {
    this.#content = content;
    const now = (): PlotContent => this.#content;
    const point = (plot: uPlot): void => onPoint(plot.cursor.idx ?? null, this.#marksNear(plot.cursor.left ?? -1));
    this.#plot = new uPlot({ ...optionsOf(now, point), width: widthOf(box), height }, dataOf(content), box);
    this.#observer = new ResizeObserver(() => {
      if (widthOf(box) !== this.#plot.width) this.#plot.setSize({ width: widthOf(box), height });
    });
    this.#observer.observe(box);
  }

  /** Draws other content, with as many lines as before. */
  update(content: PlotContent): void {
    this.#content = content;
    this.#plot.setData(dataOf(content));
  }

  /** Removes the chart from its element. */
  destroy(): void {
    this.#observer.disconnect();
    this.#plot.destroy();
  }

  #marksNear(left: number): readonly Mark[] {
    if (left < 0) return [];
    return this.#content.marks.filter(({ at }) => Math.abs(this.#plot.valToPos(at, 'x') - left) <= NEAR_PX);
  }
}

function widthOf(box: HTMLElement): number {
  return Math.max(120, Math.floor(box.clientWidth));
}

/** Stacked lines are sums: each line with those after it in the list, the first one on top. */
function dataOf({ xs, lines, isStacked }: PlotContent): uPlot.AlignedData {
  if (!isStacked) return [xs as number[], ...lines.map(({ values }) => values as (number | null)[])];
  let below: (number | null)[] = xs.map(() => null);
  const sums = lines.toReversed().map(({ values }) => {
    below = below.map((sum, i) => {
      const value = values[i] ?? null;
      return value === null ? sum : value + (sum ?? 0);
    });
    return below;
  });
  return [xs as number[], ...sums.toReversed()];
}

function colorOf(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function optionsOf(content: () => PlotContent, point: (plot: uPlot) => void): Omit<uPlot.Options, 'width' | 'height'> {
  const { lines, isStacked, isBySize } = content();
  const axis = { stroke: colorOf('soft'), font: '12px system-ui, sans-serif', ticks: { show: false } };
  const grid = { stroke: colorOf('line'), width: 1 };
  return {
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { size: 6 }, ...(isBySize ? {} : { sync: { key: 'time' } }) },
    ms: 1,
    scales: {
      x: {
        time: !isBySize,
        ...(isBySize ? BY_POWERS_OF_TWO : {}),
        range: () => [content().from, content().to],
      },
      y: { range: (_plot, _min, max) => [0, niceTop(Math.max(max, content().atLeast))] },
    },
    axes: [
      {
        ...axis,
        grid: { show: false },
        space: 72,
        size: 26,
        ...(isBySize ? {} : { incrs: TIME_STEPS_MS }),
        values: (_plot, xs) => labelsOf(xs, content().formatX),
      },
      { ...axis, grid, size: 64, space: 30, values: (_plot, ys) => labelsOf(ys, content().formatY) },
    ],
    series: [
      {},
      ...lines.map(({ label, color }) => ({
        label,
        stroke: colorOf(`series-${color}`),
        width: isStacked ? 1 : 1.75,
        points: { show: !isStacked, size: 4, filter: alone },
        ...(isStacked ? { fill: colorOf(`series-${color}`) } : {}),
      })),
    ],
    hooks: { setCursor: [point], draw: [(plot) => drawMarks(plot, content().marks)] },
  };
}

/** Text of the ticks. uPlot leaves out ticks of a logarithmic axis that would be too near to others: they are null. */
function labelsOf(ticks: readonly (number | null)[], format: (value: number) => string): string[] {
  return ticks.map((tick) => (tick === null ? '' : format(tick)));
}

/** Indices of values without a neighbour, which no line would show. */
function alone(plot: uPlot, line: number): number[] {
  const values = plot.data[line] ?? [];
  const has = (i: number): boolean => (values[i] ?? null) !== null;
  return Array.from(values.keys()).filter((i) => has(i) && !has(i - 1) && !has(i + 1));
}

/** A little room above the highest value; 1 where all are zero. */
function niceTop(max: number | null): number {
  return max === null || max <= 0 ? 1 : max * 1.08;
}

function drawMarks(plot: uPlot, marks: readonly Mark[]): void {
  const { ctx, bbox } = plot;
  ctx.save();
  for (const { at, isBad } of marks) {
    const x = Math.round(plot.valToPos(at, 'x', true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    const size = 5 * devicePixelRatio;
    ctx.strokeStyle = ctx.fillStyle = colorOf(isBad ? 'mark' : 'soft');
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(x - size, bbox.top);
    ctx.lineTo(x + size, bbox.top);
    ctx.lineTo(x, bbox.top + size * 1.4);
    ctx.fill();
  }
  ctx.restore();
}
