/** One node: what it is, what it does over time, what it holds, what happened to it, and its links. */
import type { VNode } from 'preact';
import type { EventPage, NodeView } from '../../observe/api_types.ts';
import { mergedEvents } from '../event_words.ts';
import { bytes, count, dayTime, duration, NONE, percent, short } from '../format.ts';
import { store } from '../page.ts';
import { Card, Notice, StateWord } from '../parts/common.tsx';
import { EventList } from '../parts/event_list.tsx';
import { FillChart } from '../parts/fill_chart.tsx';
import { busiestFirst, LinkTable } from '../parts/link_table.tsx';
import { TierTable } from '../parts/tier_table.tsx';
import { TimeChart } from '../parts/time_chart.tsx';
import { useJson } from '../parts/use_json.ts';
import { useTimeline } from '../parts/use_timeline.ts';
import { ailmentOf, lossSentence } from '../pool_words.ts';
import { hrefOf } from '../route.ts';
import { LOAD, NODE_SERIES } from '../series.ts';
import { linkId } from '../store.ts';
import { NODE_RANGE } from '../timeline.ts';

/** The page of a node. */
export function NodeDetail({ name }: { readonly name: string }): VNode {
  const older = useJson<EventPage>(`api/events?limit=200&node=${encodeURIComponent(name)}`, 0);
  const events = mergedEvents(store.events.value, older.body?.events ?? []).filter(({ node }) => node === name);
  const state = useTimeline(`node:${name}`, NODE_RANGE, NODE_SERIES);
  // Read here so that a node that joins or leaves while its page is open appears or goes.
  const isHere = store.nodes.ids.value.includes(name);
  return (
    <>
      <p class="wide">
        <a href={hrefOf('pool')}>← All nodes</a>
      </p>
      {isHere ? <Facts name={name} /> : <Gone name={name} />}
      <TimeChart title="Sequences" state={state} range={NODE_RANGE} events={events} series={LOAD} formatY={short} />
      <FillChart
        state={state}
        range={NODE_RANGE}
        events={events}
        title="How full its tiers are"
        capacityOf={(tier) => store.nodes.row(name)?.peek().tiers[tier]?.capacity_bytes}
      />
      <Card title="What happened to it" wide>
        <EventList events={events} limit={50} />
      </Card>
      <Card title="Links of this node" wide>
        <Links name={name} />
      </Card>
    </>
  );
}

function Gone({ name }: { readonly name: string }): VNode {
  return (
    <Card title={name} wide>
      <Notice>{`The router knows no node ${name} now: it has not joined, or it left. What happened to it stands below.`}</Notice>
    </Card>
  );
}

function Facts({ name }: { readonly name: string }): VNode | null {
  const node = store.nodes.row(name)?.value;
  if (!node) return null;
  const ailment = ailmentOf(node);
  return (
    <>
      <Card title={node.name}>
        <p>
          <StateWord state={node.state} /> {ailment ?? ''}
        </p>
        <dl class="node-facts">
          {factsOf(node).map(([label, value]) => (
            <div key={label}>
              <dt>{label}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      </Card>
      <Card title="What it holds">
        <TierTable nodes={[node]} />
        <p>{lossSentence(node)}</p>
      </Card>
    </>
  );
}

function factsOf(node: NodeView): readonly (readonly [string, string])[] {
  const fetched = Object.entries(node.fetched_bytes ?? {}).filter(([, moved]) => moved > 0);
  return [
    ['Role', node.role],
    ['Model', node.model ?? NONE],
    ['Running and waiting', `${count(node.running)} + ${count(node.waiting)}`],
    ['Last step', node.last_step_ms > 0 ? duration(node.last_step_ms) : NONE],
    ['Blocks of running sequences', percent(node.kv_usage)],
    ['Preempted sequences', count(node.preemptions)],
    ['Fetched', fetched.map(([way, moved]) => `${bytes(moved)} by ${way}`).join(', ') || NONE],
    ['Device', node.device ?? NONE],
    ['Numerics', node.numerics_class ?? NONE],
    ['Address', `${node.address}, process ${node.pid}`],
    ['Joined', dayTime(node.joined_at)],
    ['Last heartbeat', `${duration(node.heard_ms)} before`],
    ...(node.last_error ? [['Last failed call to it', node.last_error] as const] : []),
  ];
}

function Links({ name }: { readonly name: string }): VNode {
  const links = store.flows.all().filter(({ from, to }) => from === name || to === name);
  return <LinkTable ids={busiestFirst(links, linkId)} empty="No block has moved to or from it." height={360} />;
}
