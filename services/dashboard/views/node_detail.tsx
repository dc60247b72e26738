/** One node: what it is, what it does over time, what it holds, what happened to it, and its links. */
import type { VNode } from 'preact';
import type { ClusterEvent, EventPage } from '../../../shared/protocol/router_api.ts';
import { mergedEvents } from '../event_words.ts';
import { short } from '../format.ts';
import { store } from '../page.ts';
import { Card, Notice, StateWord } from '../parts/common.tsx';
import { EventList } from '../parts/event_list.tsx';
import { FillChart } from '../parts/fill_chart.tsx';
import { busiestFirst, LinkTable } from '../parts/link_table.tsx';
import { TierTable } from '../parts/tier_table.tsx';
import { TimeChart } from '../parts/time_chart.tsx';
import { useJson } from '../parts/use_json.ts';
import { useTimeline } from '../parts/use_timeline.ts';
import { ailmentOf, lossSentence, nodeFacts } from '../pool_words.ts';
import { hrefOf } from '../route.ts';
import { LOAD, NODE_SERIES } from '../series.ts';
import { linkId } from '../store.ts';
import { NODE_RANGE } from '../timeline.ts';

/** The page of a node. */
export function NodeDetail({ name }: { readonly name: string }): VNode {
  const older = useJson<EventPage>(`api/events?limit=200&node=${encodeURIComponent(name)}`, 0);
  const events = mergedEvents(store.events.value, older.body?.events ?? []).filter(({ node }) => node === name);
  // Read here so that a node that joins or leaves while its page is open appears or goes.
  const isHere = store.nodes.ids.value.includes(name);
  const role = isHere ? store.nodes.row(name)?.peek().role : undefined;
  return (
    <>
      <p class="wide">
        <a href={hrefOf('pool')}>← All nodes</a>
      </p>
      {isHere ? <Facts name={name} /> : <Gone name={name} hasEvents={events.length > 0} />}
      {role !== 'router' && <Charts name={name} role={role} events={events} />}
      {(isHere || events.length > 0) && (
        <Card title="What happened to it" wide>
          <EventList events={events} limit={50} />
        </Card>
      )}
      {role !== 'router' && isHere && (
        <Card title="Links of this node" wide>
          <Links name={name} />
        </Card>
      )}
    </>
  );
}

/** Values of a member over time; nothing for one that is gone and whose values are, too. */
function Charts(props: {
  readonly name: string;
  readonly role: string | undefined;
  readonly events: readonly ClusterEvent[];
}): VNode | null {
  const { name, role, events } = props;
  const state = useTimeline(`node:${name}`, NODE_RANGE, NODE_SERIES);
  if (role === undefined && !state.timeline) return null;
  const common = { state, range: NODE_RANGE, events };
  return (
    <>
      {role !== 'store' && <TimeChart {...common} title="Sequences" series={LOAD} formatY={short} />}
      <FillChart
        {...common}
        title="How full its tiers are"
        capacityOf={(tier) => store.nodes.row(name)?.peek().tiers[tier]?.capacity_bytes}
      />
    </>
  );
}

function Gone({ name, hasEvents }: { readonly name: string; readonly hasEvents: boolean }): VNode {
  return (
    <Card title={name} wide>
      <Notice>
        {hasEvents
          ? `The router knows no node ${name} now. What happened to it stands below.`
          : `The router knows no node ${name}, and nothing happened to one of this name since the router started.`}
      </Notice>
    </Card>
  );
}

function Facts({ name }: { readonly name: string }): VNode | null {
  const node = store.nodes.row(name)?.value;
  if (!node) return null;
  const ailment = ailmentOf(node);
  const isRouter = node.role === 'router';
  return (
    <>
      <Card title={node.name} wide={isRouter}>
        <p>
          <StateWord state={node.state} /> {ailment ?? ''}
        </p>
        <dl class="node-facts">
          {nodeFacts(node, store.asOf.value).map(([label, value]) => (
            <div key={label}>
              <dt>{label}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      </Card>
      {!isRouter && (
        <Card title="What it holds">
          <TierTable nodes={[node]} />
          <p>{lossSentence(node)}</p>
        </Card>
      )}
    </>
  );
}

function Links({ name }: { readonly name: string }): VNode {
  const links = store.flows.all().filter(({ from, to }) => from === name || to === name);
  return <LinkTable ids={busiestFirst(links, linkId)} empty="No block has moved to or from it." height={360} />;
}
