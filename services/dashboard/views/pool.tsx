/** The view Pool: health in words, what is held where, how full it is, what more would bring, and what a loss would cost. */
import { useSignal } from '@preact/signals';
import type { VNode } from 'preact';
import type { NodeView } from '../../../shared/protocol/router_api.ts';
import { bytes, count, duration, plural } from '../format.ts';
import { store } from '../page.ts';
import { Card, NodeLink } from '../parts/common.tsx';
import { FillChart } from '../parts/fill_chart.tsx';
import { NodeTable } from '../parts/node_table.tsx';
import { ReuseCard } from '../parts/reuse_card.tsx';
import { TierTable } from '../parts/tier_table.tsx';
import { RangeChoice } from '../parts/time_chart.tsx';
import { useTimeline } from '../parts/use_timeline.ts';
import { ailmentOf, dearestFirst, lossSentence, rolesOf } from '../pool_words.ts';
import { TIER_FILL } from '../series.ts';
import { RANGES } from '../timeline.ts';
import { NodeDetail } from './node_detail.tsx';

/** The view Pool; `#/pool/node/NAME` is one node. */
export function Pool({ args }: { readonly args: readonly string[] }): VNode {
  const [kind, name] = args;
  return kind === 'node' && name !== undefined ? <NodeDetail key={name} name={name} /> : <WholePool />;
}

function WholePool(): VNode {
  const range = useSignal(RANGES[0]);
  const state = useTimeline('cluster', range.value, TIER_FILL);
  return (
    <>
      <HealthCard />
      <NodeTable />
      <div class="bar wide">
        <RangeChoice value={range.value} onChange={(chosen) => (range.value = chosen)} />
      </div>
      <FillChart state={state} range={range.value} events={store.events.value} title="How full the tiers are" />
      <TiersCard />
      <ReuseCard />
      <LossCard />
    </>
  );
}

const HEADINGS = {
  ok: 'All is well.',
  degraded: 'The cluster works, but not all of it.',
  down: 'No prompt can be served.',
};
/** Nodes that the card names one by one. */
const NAMED = 8;

/** Health of the cluster in words, and which nodes are sick and why. */
function HealthCard(): VNode {
  const health = store.health.value;
  const nodes = store.nodes.all();
  const sick = nodes.filter((node) => ailmentOf(node) !== null);
  const named = sick.slice(0, NAMED);
  // The list of sick nodes says these again, with a link.
  const isNamed = (problem: string): boolean =>
    named.some(
      ({ name }) => problem.startsWith(`${name} is suspect`) || problem.startsWith(`${name} cannot be reached`),
    );
  const problems = health?.problems.filter((problem) => !isNamed(problem)) ?? [];
  return (
    <Card title="Health" wide>
      <p class="lead">{health ? HEADINGS[health.state] : 'Asking the router…'}</p>
      <p class="soft">
        {plural(nodes.length, 'node')}: {rolesOf(nodes)}.
      </p>
      {problems.length > 0 && (
        <ul class="sentences">
          {problems.map((problem) => (
            <li key={problem}>{problem}</li>
          ))}
        </ul>
      )}
      {sick.length > 0 && (
        <ul class="sentences" aria-label="Nodes that are not well">
          {named.map((node) => (
            <li key={node.name}>
              <NodeLink name={node.name} /> <span class="word bad">{node.state}</span> {ailmentOf(node)}
            </li>
          ))}
          {sick.length > NAMED && <li>and {count(sick.length - NAMED)} more: choose “Sick first” below</li>}
        </ul>
      )}
    </Card>
  );
}

/** Contents of each kind of tier now, over all nodes. */
function TiersCard(): VNode {
  return (
    <Card title="What the tiers hold">
      <TierTable nodes={store.nodes.all()} />
    </Card>
  );
}

/** The dearest loss in words. */
function LossCard(): VNode {
  const nodes = store.nodes.all();
  const ranked = dearestFirst(nodes);
  const [dearest] = ranked;
  return (
    <Card title="What the loss of a node would cost">
      {dearest ? (
        <>
          <p>{lossSentence(dearest)}</p>
          <LossTable nodes={ranked} />
        </>
      ) : (
        <p>
          {nodes.some(({ loss }) => loss !== null)
            ? 'No node holds a block that is not on another one, too: the loss of any one would cost nothing.'
            : 'It is not known yet which blocks only one node holds.'}
        </p>
      )}
    </Card>
  );
}

/** The dearest losses, one a row. */
function LossTable({ nodes }: { readonly nodes: readonly NodeView[] }): VNode {
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">Without</th>
          <th scope="col" class="number" title="Blocks that no other node holds">
            Blocks lost
          </th>
          <th scope="col" class="number rank-1">
            Size
          </th>
          <th scope="col" class="number" title="Time in which one instance would compute them again">
            To compute again
          </th>
        </tr>
      </thead>
      <tbody>
        {nodes.slice(0, NAMED).map(({ name, loss }) => (
          <tr key={name}>
            <td>
              <NodeLink name={name} />
            </td>
            <td class="number">{count(loss?.only_blocks)}</td>
            <td class="number rank-1">{bytes(loss?.only_bytes)}</td>
            <td class="number">{duration(loss?.recompute_ms)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
