/** The nodes: who holds what, what they do, and what ails them. */
import { computed, useSignal, type Signal } from '@preact/signals';
import type { VNode } from 'preact';
import type { NodeView, TierView } from '../../../shared/protocol/router_api.ts';
import { bytes, compareNames, count, duration, NONE, percent } from '../format.ts';
import { store } from '../page.ts';
import { ailmentOf, tierWord } from '../pool_words.ts';
import { hrefOf } from '../route.ts';
import { Card, Meter, StateWord } from './common.tsx';
import { Table, type Column } from './table.tsx';

const COLUMNS: readonly Column<NodeView>[] = [
  { label: 'Node', cell: ({ name }) => name },
  { label: 'Role', rank: 2, cell: ({ role }) => role },
  { label: 'State', cell: (node) => <State node={node} />, sort: (node) => (ailmentOf(node) === null ? 0 : 1) },
  tierColumn('device'),
  tierColumn('dram'),
  tierColumn('disk'),
  { label: 'Fill', title: 'Of its fullest tier', rank: 'narrow', cell: fullest },
  {
    label: 'Running',
    title: 'Sequences that it computes',
    isNumber: true,
    rank: 1,
    cell: ({ running }) => count(running),
    sort: ({ running }) => running,
  },
  {
    label: 'Waiting',
    title: 'Sequences that wait for room',
    isNumber: true,
    rank: 1,
    cell: ({ waiting }) => count(waiting),
    sort: ({ waiting }) => waiting,
  },
  {
    label: 'Found',
    title: 'Share of the blocks asked of its tiers that they had; the hit rate of prompts is in Overview',
    isNumber: true,
    rank: 3,
    cell: (node) => percent(hitRate(node)),
    sort: hitRate,
  },
  {
    label: 'Only here',
    title: 'Blocks that no other node holds',
    isNumber: true,
    rank: 2,
    cell: ({ loss }) => count(loss?.only_blocks),
    sort: ({ loss }) => loss?.only_blocks ?? -1,
  },
  {
    label: 'To compute again',
    title: 'Time in which one instance would compute those blocks',
    isNumber: true,
    rank: 2,
    cell: ({ loss }) => duration(loss?.recompute_ms),
    sort: ({ loss }) => loss?.recompute_ms ?? -1,
  },
  { label: 'Address', rank: 3, cell: ({ address }) => address },
];

function tierColumn(name: string): Column<NodeView> {
  return {
    label: tierWord(name),
    title: `How full its ${tierWord(name)} is`,
    rank: 1,
    cell: ({ tiers }) => tierCell(tiers[name]),
    sort: ({ tiers }) => shareOf(tiers[name]) ?? -1,
  };
}

function shareOf(tier: TierView | undefined): number | undefined {
  return tier && tier.capacity_bytes > 0 ? tier.bytes / tier.capacity_bytes : undefined;
}

function tierCell(tier: TierView | undefined): VNode | string {
  if (!tier) return NONE;
  if (tier.fault !== null)
    return (
      <span class="word bad" title={tier.fault}>
        cannot be used
      </span>
    );
  const label = `${bytes(tier.bytes)} of ${bytes(tier.capacity_bytes)}, ${count(tier.blocks)} blocks`;
  return <Meter share={shareOf(tier) ?? 0} label={label} />;
}

function fullest({ tiers }: NodeView): VNode | string {
  const [first] = Object.values(tiers).sort((a, b) => (shareOf(b) ?? 0) - (shareOf(a) ?? 0));
  return tierCell(first);
}

function hitRate({ tiers }: NodeView): number {
  const sum = (of: 'hits' | 'misses'): number => Object.values(tiers).reduce((total, tier) => total + tier[of], 0);
  return sum('hits') / Math.max(1, sum('hits') + sum('misses'));
}

function State({ node }: { readonly node: NodeView }): VNode {
  const ailment = ailmentOf(node);
  return (
    <span title={ailment ?? 'It sends heartbeats and can be called'}>
      <StateWord state={ailment !== null && node.state === 'alive' ? 'fault' : node.state} />
    </span>
  );
}

/** The card with the table and its filters. */
export function NodeTable(): VNode {
  const text = useSignal('');
  const role = useSignal('');
  const isSickFirst = useSignal(false);
  const ids = orderedIds(text.value, role.value, isSickFirst.value);
  return (
    <Card title="Nodes: who holds what" wide>
      <div class="bar">
        <Filters text={text} role={role} />
        <button
          type="button"
          aria-pressed={isSickFirst.value ? 'true' : 'false'}
          onClick={() => (isSickFirst.value = !isSickFirst.value)}
        >
          Sick first
        </button>
        <span class="soft">{count(ids.length)} shown</span>
      </div>
      <Table
        label="Nodes"
        columns={COLUMNS}
        ids={ids}
        row={(id) => store.nodes.row(id)}
        href={(id) => hrefOf('pool', 'node', id)}
        empty={text.value || role.value ? 'No node matches.' : 'No node has joined yet.'}
      />
    </Card>
  );
}

function Filters({ text, role }: { readonly text: Signal<string>; readonly role: Signal<string> }): VNode {
  const roles = rolesNow.value;
  return (
    <>
      <input
        type="search"
        placeholder="Name, model or address"
        aria-label="Show nodes whose name, model or address has this text"
        value={text.value}
        onInput={(event) => (text.value = event.currentTarget.value)}
      />
      <select aria-label="Role" value={role.value} onChange={(event) => (role.value = event.currentTarget.value)}>
        <option value="">all roles</option>
        {roles.map((one) => (
          <option key={one} value={one}>
            {one}
          </option>
        ))}
      </select>
    </>
  );
}

/** Roles of the nodes that there are. */
const rolesNow = computed(() => {
  const roles = store.nodes.ids.value.flatMap((id) => store.nodes.row(id)?.peek().role ?? []);
  return [...new Set(roles)].sort(compareNames);
});

/** Names of all nodes by role and name. Sorted when a node joins or leaves, not with every tick. */
const sortedNames = computed(() => {
  const nodes = store.nodes.ids.value.flatMap((id) => store.nodes.row(id)?.peek() ?? []);
  return nodes.sort((a, b) => compareNames(a.role, b.role) || compareNames(a.name, b.name)).map(({ name }) => name);
});

/** The nodes that match, each in its place; on demand those that are not well before all others. */
function orderedIds(text: string, role: string, isSickFirst: boolean): readonly string[] {
  const names = sortedNames.value;
  const wanted = text.toLowerCase();
  if (wanted === '' && role === '' && !isSickFirst) return names;
  const matches = (node: NodeView): boolean =>
    (role === '' || node.role === role) &&
    `${node.name} ${node.model ?? ''} ${node.address}`.toLowerCase().includes(wanted);
  const changes = store.nodes.changes.value;
  const nodes = changes === 0 ? [] : names.flatMap((name) => store.nodes.row(name)?.peek() ?? []).filter(matches);
  const isSick = (node: NodeView): boolean => isSickFirst && ailmentOf(node) !== null;
  return [...nodes.filter(isSick), ...nodes.filter((node) => !isSick(node))].map(({ name }) => name);
}
