/** How full tiers were over time. */
import type { VNode } from 'preact';
import type { ClusterEvent } from '../../../shared/protocol/router_api.ts';
import { percent } from '../format.ts';
import { TIERS } from '../series.ts';
import type { Range, Timeline } from '../timeline.ts';
import { TimeChart } from './time_chart.tsx';
import type { TimelineState } from './use_timeline.ts';

/** Chart of the share of each kind of tier that is taken, of the cluster or of one node. */
export function FillChart(props: {
  readonly state: TimelineState;
  readonly range: Range;
  readonly events: readonly ClusterEvent[];
  readonly title: string;
  /** Capacity of a kind of tier, for series that have none. */
  readonly capacityOf?: (name: string) => number | undefined;
}): VNode {
  const { state } = props;
  const { timeline } = state;
  const series = TIERS.filter(({ name }) => timeline?.has(`${name}_bytes`));
  return (
    <TimeChart
      title={props.title}
      state={state}
      range={props.range}
      events={props.events}
      series={series}
      formatY={percent}
      atLeast={1}
      valuesOf={(from, name) => fillOf(from, name, props.capacityOf?.(name))}
    />
  );
}

function fillOf(timeline: Timeline, name: string, known: number | undefined): readonly (number | null)[] {
  const held = timeline.values(`${name}_bytes`);
  const capacity = timeline.values(`${name}_capacity_bytes`);
  return held.map((value, i) => {
    const room = known ?? capacity[i] ?? 0;
    return value === null || room <= 0 ? null : value / room;
  });
}
