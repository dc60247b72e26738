/** Series of a timeline as a chart, with the cluster's events as marks; and the choice of its span. */
import type { VNode } from 'preact';
import type { ClusterEvent } from '../../../shared/protocol/router_api.ts';
import { clockMinute, clockTime, NONE } from '../format.ts';
import { eventWord } from '../event_words.ts';
import type { SeriesWord } from '../series.ts';
import { RANGES, type Range, type Timeline } from '../timeline.ts';
import { Chart } from './chart.tsx';
import { Card, Notice } from './common.tsx';
import type { Mark } from './plot.ts';
import type { TimelineState } from './use_timeline.ts';

/** Marks that a chart has at most: the newest ones. */
const MAX_MARKS = 60;

/** Properties of a chart over time. */
export interface TimeChartProps {
  readonly title: string;
  readonly state: TimelineState;
  readonly range: Range;
  readonly series: readonly SeriesWord[];
  readonly events?: readonly ClusterEvent[];
  readonly formatY: (y: number) => string;
  readonly isStacked?: boolean;
  readonly atLeast?: number;
  readonly isWide?: boolean;
  /** Values of a series at all times; those of the timeline when absent. */
  readonly valuesOf?: (timeline: Timeline, name: string) => readonly (number | null)[];
  /** Whether the legend adds each value's share of the sum. */
  readonly hasShares?: boolean;
  readonly note?: string;
}

/** A card with a chart over time. */
export function TimeChart(props: TimeChartProps): VNode {
  const { timeline, error } = props.state;
  return (
    <Card title={props.title} wide={props.isWide ?? false}>
      {props.note !== undefined && <p class="soft">{props.note}</p>}
      {timeline && timeline.times.length > 0 ? (
        <Drawn {...props} timeline={timeline} />
      ) : (
        <Notice error={error}>{timeline ? 'No values yet.' : 'Asking the router for the values…'}</Notice>
      )}
    </Card>
  );
}

function Drawn(props: TimeChartProps & { readonly timeline: Timeline }): VNode {
  const { timeline, range, formatY } = props;
  const read = props.valuesOf ?? ((from: Timeline, name: string) => from.values(name));
  const lines = props.series.map(({ name, label, color, title }) => ({
    label,
    color,
    title,
    values: read(timeline, name),
  }));
  const to = timeline.times.at(-1) ?? 0;
  // A cluster that has just started has few values: they take the whole width, from a minute on.
  const from = Math.max(to - range.spanMs, Math.min(timeline.times[0] ?? 0, to - 60_000));
  const shareOf = (value: number | null, index: number): string => {
    if (value === null) return NONE;
    const sum = lines.reduce((total, { values }) => total + (values[index] ?? 0), 0);
    return sum > 0 ? `${formatY(value)}, ${Math.round((100 * value) / sum)} %` : formatY(value);
  };
  return (
    <Chart
      label={props.title}
      xs={timeline.times}
      lines={lines}
      from={from}
      to={to}
      marks={marksOf(props.events ?? [], from)}
      isStacked={props.isStacked ?? false}
      atLeast={props.atLeast ?? 0}
      formatX={range.stepMs < 60_000 && range.spanMs < 3_600_000 ? clockTime : clockMinute}
      formatY={formatY}
      {...(props.hasShares ? { formatValue: shareOf } : {})}
    />
  );
}

function marksOf(events: readonly ClusterEvent[], from: number): readonly Mark[] {
  return events
    .filter(({ at }) => at >= from)
    .slice(0, MAX_MARKS)
    .map((event) => ({
      at: event.at,
      text: `${clockTime(event.at)} ${event.text}`,
      isBad: eventWord(event).tone === 'bad',
    }));
}

/** Buttons that choose the span of charts. */
export function RangeChoice(props: { readonly value: Range; readonly onChange: (range: Range) => void }): VNode {
  return (
    <div class="choice" role="group" aria-label="Span of the charts">
      {RANGES.map((range) => (
        <button
          key={range.label}
          type="button"
          aria-pressed={range === props.value ? 'true' : 'false'}
          onClick={() => props.onChange(range)}
        >
          {range.label}
        </button>
      ))}
    </div>
  );
}
