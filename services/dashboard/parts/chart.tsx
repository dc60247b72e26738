/** A chart with its legend, which has the newest values, or those below the pointer. */
import { useSignal } from '@preact/signals';
import type { VNode } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { Plot, type Line, type Mark, type PlotContent } from './plot.ts';

/** Properties of a chart. */
export interface ChartProps extends Partial<Omit<PlotContent, 'xs' | 'lines'>> {
  /** Name of the chart, for screen readers. */
  readonly label: string;
  readonly xs: readonly number[];
  readonly lines: readonly Line[];
  readonly from: number;
  readonly to: number;
  readonly formatX: (x: number) => string;
  readonly formatY: (y: number) => string;
  /** Text of a value in the legend; `formatY` when absent. */
  readonly formatValue?: (value: number | null, index: number, line: number) => string;
  readonly height?: number;
}

interface Pointer {
  readonly index: number | null;
  readonly marks: readonly Mark[];
}

/** A chart. */
export function Chart(props: ChartProps): VNode {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<Plot | null>(null);
  const pointer = useSignal<Pointer>({ index: null, marks: [] });
  const scheme = useSignal(0);
  const content: PlotContent = { marks: [], isStacked: false, isBySize: false, atLeast: 0, ...props };
  // Lines are a chart's own: with others it is made anew.
  const shape = props.lines.map(({ label, color }) => `${color} ${label}`).join('\n');
  useEffect(() => {
    const dark = matchMedia('(prefers-color-scheme: dark)');
    const change = (): void => {
      scheme.value++;
    };
    dark.addEventListener('change', change);
    return () => dark.removeEventListener('change', change);
  }, []);
  useEffect(() => {
    if (!box.current) return undefined;
    const made = new Plot(box.current, content, props.height ?? 170, (index, marks) => {
      const { index: before, marks: marksBefore } = pointer.peek();
      if (index !== before || marks.length + marksBefore.length > 0) pointer.value = { index, marks };
    });
    plot.current = made;
    return () => made.destroy();
  }, [shape, scheme.value]);
  useEffect(() => plot.current?.update(content));
  return (
    <div class="chart">
      <div ref={box} class="plot" role="img" aria-label={`Chart: ${props.label}`} />
      <Legend chart={props} pointer={pointer.value} />
    </div>
  );
}

function Legend({ chart, pointer }: { readonly chart: ChartProps; readonly pointer: Pointer }): VNode {
  const { xs, lines, formatX, formatY } = chart;
  const index = pointer.index ?? lastWithValue(chart);
  const format = chart.formatValue ?? ((value: number | null) => (value === null ? '–' : formatY(value)));
  const x = xs[index];
  return (
    <>
      <ul class="chart-legend">
        {lines.map(({ label, color, values, title }, line) => (
          <li key={label} title={title}>
            <span class={`line-swatch color-${color}`} aria-hidden="true" />
            {label} <b>{format(values[index] ?? null, index, line)}</b>
          </li>
        ))}
        {pointer.index !== null && x !== undefined && <li class="soft">at {formatX(x)}</li>}
      </ul>
      {pointer.marks.length > 0 && <p class="marks">{pointer.marks.map(({ text }) => text).join(' · ')}</p>}
    </>
  );
}

/** Index of the newest time at which any line has a value. */
function lastWithValue({ xs, lines }: ChartProps): number {
  for (let i = xs.length - 1; i > 0; i--) if (lines.some(({ values }) => (values[i] ?? null) !== null)) return i;
  return 0;
}
