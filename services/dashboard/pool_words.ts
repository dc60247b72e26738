/** The pool in words: what ails a node, what a loss would cost, what more memory would bring. */
import { loadFields, type LoadField, type NodeLoad } from '../../shared/protocol/load_fields.ts';
import type { NodeView, ReuseBody } from '../../shared/protocol/router_api.ts';
import { bytes, count, dayTime, duration, NONE, percent, plural } from './format.ts';
import { TIERS } from './series.ts';

/** Why a node is not well, in words; null when it is. */
export function ailmentOf({ state, unreachable, tiers, heard_ms }: NodeView): string | null {
  const faults = Object.entries(tiers).flatMap(([name, { fault }]) =>
    fault === null ? [] : [`its ${tierWord(name)} cannot be used: ${fault}`],
  );
  if (state === 'unreachable') return [unreachable ?? 'this router cannot call it', ...faults].join('; ');
  if (state === 'suspect') return [`no heartbeat for ${duration(heard_ms)}`, ...faults].join('; ');
  if (state === 'draining') return ['it takes no new requests, and ends when its own have ended', ...faults].join('; ');
  return faults.length > 0 ? faults.join('; ') : null;
}

/** Word of a kind of tier. */
export function tierWord(name: string): string {
  return TIERS.find((tier) => tier.name === name)?.label ?? name;
}

/** Nodes of each role: "2 decode, 1 store". */
export function rolesOf(nodes: readonly NodeView[]): string {
  const numbers = new Map<string, number>();
  for (const { role } of nodes) numbers.set(role, (numbers.get(role) ?? 0) + 1);
  return [...numbers].map(([role, number]) => `${count(number)} ${role}`).join(', ');
}

/** Cost of a node's loss, as a sentence. */
export function lossSentence({ name, loss }: NodeView): string {
  if (!loss) return `It is not known what would be lost with ${name}.`;
  if (loss.only_blocks === 0) return `Nothing would be lost with ${name}: other nodes hold all its blocks, too.`;
  const held = `${plural(loss.only_blocks, 'block')} (${bytes(loss.only_bytes)}) that no other node holds`;
  const cost =
    loss.recompute_ms === null
      ? 'no instance says yet how fast it computes'
      : `one instance would need ${duration(loss.recompute_ms)} to compute them again`;
  return `With ${name} would go ${held}: ${cost}.`;
}

/** Nodes whose loss would cost anything, the dearest first. */
export function dearestFirst(nodes: readonly NodeView[]): readonly NodeView[] {
  const priceOf = ({ loss }: NodeView): number => loss?.recompute_ms ?? loss?.only_blocks ?? 0;
  return nodes.filter((node) => priceOf(node) > 0).sort((a, b) => priceOf(b) - priceOf(a));
}

/** Accesses that the curve is not drawn without. */
const FEW_ACCESSES = 200;

/** Gain of twice the capacity of each tier, as sentences; the reason when it cannot be said yet. */
export function reuseSentences({ tiers, accesses }: ReuseBody): readonly string[] {
  if (accesses < FEW_ACCESSES)
    return [`Only ${plural(accesses, 'access', 'accesses')} of blocks were sampled so far: too few for an estimate.`];
  return Object.entries(tiers).map(([name, tier]) => {
    const points = 100 * (tier.hit_ratio_doubled - tier.hit_ratio);
    const now = `${tierWord(name)}, ${bytes(tier.capacity_bytes)} in all: ${percent(tier.hit_ratio)} of blocks would be found.`;
    if (points < 0.5) return `${now} Twice as much would bring next to nothing.`;
    return `${now} Twice as much would bring ${percent(tier.hit_ratio_doubled)}, ${points.toFixed(points < 10 ? 1 : 0)} points more.`;
  });
}

/** Sum of one kind of tier over nodes. */
export interface TierSum {
  readonly name: string;
  readonly nodes: number;
  readonly blocks: number;
  readonly bytes: number;
  readonly capacity: number;
  readonly hits: number;
  readonly misses: number;
  readonly evictions: number;
}

/** Sums of all kinds of tiers over nodes, from the fastest kind. */
export function tierSums(nodes: readonly NodeView[]): readonly TierSum[] {
  const sums = new Map<string, TierSum>();
  const none = { nodes: 0, blocks: 0, bytes: 0, capacity: 0, hits: 0, misses: 0, evictions: 0 };
  for (const node of nodes)
    for (const [name, tier] of Object.entries(node.tiers)) {
      const sum = sums.get(name) ?? { name, ...none };
      sums.set(name, {
        name,
        nodes: sum.nodes + 1,
        blocks: sum.blocks + tier.blocks,
        bytes: sum.bytes + tier.bytes,
        capacity: sum.capacity + tier.capacity_bytes,
        hits: sum.hits + tier.hits,
        misses: sum.misses + tier.misses,
        evictions: sum.evictions + tier.evictions,
      });
    }
  const rank = ({ name }: TierSum): number => TIERS.findIndex((tier) => tier.name === name);
  return [...sums.values()].sort((a, b) => rank(a) - rank(b));
}

/** A label with its value. */
export type Fact = readonly [label: string, value: string];

/** Returns the facts of a node that its role has, as labels and values. `asOf` is the time of the values. */
export function nodeFacts(node: NodeView, asOf: number | null): readonly Fact[] {
  const isRouter = node.role === 'router';
  return [
    ['Role', node.role],
    ...(isRouter ? routerFacts(node, asOf) : memberFacts(node)),
    ['Address', `${node.address}, process ${node.pid}`],
    [isRouter ? 'Started' : 'Joined', dayTime(node.joined_at)],
    ...(isRouter ? [] : [['Last heartbeat', `${duration(node.heard_ms)} before`] as const]),
    ...(node.last_error ? [['Last failed call to it', node.last_error] as const] : []),
  ];
}

function routerFacts(node: NodeView, asOf: number | null): readonly Fact[] {
  const { memory_bytes: memory, heap_bytes: heap, cpu_ms: cpu, loop_delay_ms: delay } = node;
  const ageMs = asOf === null ? 0 : asOf - node.joined_at;
  const share = cpu !== undefined && ageMs > 0 ? `, ${percent(cpu / ageMs)} of one core since it started` : '';
  return [
    ['Requests in flight', count(node.running)],
    ['Memory', memory === undefined ? NONE : `${bytes(memory)}, of it ${bytes(heap)} of objects`],
    ['CPU time', `${duration(cpu)}${share}`],
    ['Answers late by', delay === undefined ? NONE : `${duration(delay)} at most in the last ten seconds`],
  ];
}

function memberFacts(node: NodeView): readonly Fact[] {
  const fetched = Object.entries(node.fetched_bytes ?? {}).filter(([, moved]) => moved > 0);
  const common: readonly Fact[] = [
    ['Fetched', fetched.map(([way, moved]) => `${bytes(moved)} by ${way}`).join(', ') || 'nothing yet'],
  ];
  if (node.role === 'store') return [...plainFacts(node), ...common];
  return [
    ['Model', node.model ?? NONE],
    ['Running and waiting', `${count(node.running)} + ${count(node.waiting)}`],
    ...plainFacts(node),
    ...common,
    ['Device', node.device ?? NONE],
    ['Numerics', node.numerics_class ?? NONE],
  ];
}

/** Returns the plain values that have a label and that the node's role measures. */
function plainFacts(node: NodeView): readonly Fact[] {
  return loadFields.flatMap(([, { pool, label, unit, roles }]) => {
    if (!pool || label === undefined || !roles.some((role) => role === node.role)) return [];
    return [[label, plainText(node[pool.name as keyof NodeLoad], unit)] as const];
  });
}

function plainText(value: number | null | undefined, unit: LoadField['unit']): string {
  if (unit === 'share') return percent(value);
  if (unit === 'ms') return value === 0 ? NONE : duration(value);
  return count(value);
}
