/** Rows and totals of `penstock top`: values of the last look at a router, and rates between the last two. */
import { loadFields, type ColumnLoad, type LoadField } from '../../../shared/protocol/load_fields.ts';
import type { CounterSample, NodeSample, PoolSample, TenantSample } from './pool_sample.ts';

/** Column of the table that shows a plain value of a load. */
export interface LoadColumn {
  readonly name: keyof ColumnLoad;
  readonly title: string;
  readonly unit: LoadField['unit'];
}

/** Columns of plain values. */
export const loadColumns: readonly LoadColumn[] = loadFields.flatMap(([, { pool, column, unit }]) =>
  pool && column !== undefined ? [{ name: pool.name as keyof ColumnLoad, title: column, unit }] : [],
);

/** One line of the table, with the plain values that have a column. */
export interface NodeRow extends ColumnLoad {
  readonly name: string;
  readonly role: string;
  readonly state: string;
  readonly model: string;
  /** Fraction of each tier that is in use, by its name. */
  readonly fills: readonly { readonly tier: string; readonly fraction: number }[];
  /** Largest of the fills. */
  readonly fill: number;
  /** Hits among the lookups of the interval, else of all time; undefined where there were none. */
  readonly hitRatio: number | undefined;
  /** Bytes that the node fetched per second; undefined at the first look. */
  readonly bytesPerS: number | undefined;
}

/** Line of totals above the table. Rates are undefined at the first look, and after a restart of the router. */
export interface Totals {
  readonly running: number;
  readonly waiting: number;
  readonly requestsPerS: number | undefined;
  readonly promptTokensPerS: number | undefined;
  readonly outputTokensPerS: number | undefined;
  readonly bytesPerS: number | undefined;
  /** Tokens found in the cache among the tokens of prompts. */
  readonly hitRatio: number | undefined;
  /** Mean time to the first token, of the requests whose first token came in the interval. */
  readonly ttftMs: number | undefined;
}

/** Returns one row for each node of the sample `last`, in its order. */
export function rowsOf(before: PoolSample | undefined, last: PoolSample): NodeRow[] {
  const known = new Map(before?.nodes.map((node) => [node.epoch, node]));
  const seconds = before ? (last.atMs - before.atMs) / 1_000 : 0;
  return last.nodes.map((node) => {
    const { name, role, state, model, tiers } = node;
    const load = Object.fromEntries(loadColumns.map((column) => [column.name, node[column.name]])) as ColumnLoad;
    const earlier = known.get(node.epoch);
    const fills = tiers
      .filter(({ capacity }) => capacity > 0)
      .map(({ name: tier, bytes, capacity }) => ({ tier, fraction: bytes / capacity }));
    return {
      name,
      role,
      state,
      model,
      ...load,
      fills,
      fill: Math.max(node.kv_usage ?? 0, ...fills.map(({ fraction }) => fraction)),
      hitRatio: hitRatioOf(earlier, node),
      bytesPerS: earlier && seconds > 0 ? Math.max(0, node.fetchedBytes - earlier.fetchedBytes) / seconds : undefined,
    };
  });
}

function hitRatioOf(earlier: NodeSample | undefined, node: NodeSample): number | undefined {
  const sums = ({ tiers }: NodeSample): [hits: number, lookups: number] => [
    tiers.reduce((sum, { hits }) => sum + hits, 0),
    tiers.reduce((sum, { hits, misses }) => sum + hits + misses, 0),
  ];
  const [hits, lookups] = sums(node);
  const [hitsBefore, lookupsBefore] = earlier ? sums(earlier) : [0, 0];
  if (lookups > lookupsBefore && hits >= hitsBefore) return (hits - hitsBefore) / (lookups - lookupsBefore);
  return lookups > 0 ? hits / lookups : undefined;
}

/** Returns the totals of a cluster. */
export function totalsOf(before: PoolSample | undefined, last: PoolSample): Totals {
  const sum = (of: (row: NodeRow) => number): number => rows.reduce((total, row) => total + of(row), 0);
  const rows = rowsOf(before, last);
  const { counters } = last;
  // Counters of a router that has restarted are lower than before.
  const isSame = before !== undefined && counters.promptTokens >= before.counters.promptTokens;
  const seconds = before ? (last.atMs - before.atMs) / 1_000 : 0;
  const increase = (name: keyof CounterSample): number | undefined =>
    isSame && seconds > 0 ? counters[name] - before.counters[name] : undefined;
  const rate = (name: keyof CounterSample): number | undefined => {
    const more = increase(name);
    return more === undefined ? undefined : more / seconds;
  };
  return {
    running: sum(({ running }) => running),
    waiting: sum(({ waiting }) => waiting),
    requestsPerS: rate('requests'),
    promptTokensPerS: rate('promptTokens'),
    outputTokensPerS: rate('outputTokens'),
    bytesPerS: before ? sum(({ bytesPerS }) => bytesPerS ?? 0) : undefined,
    hitRatio:
      ratioOf(increase('cacheHits'), increase('cacheQueries')) ?? ratioOf(counters.cacheHits, counters.cacheQueries),
    ttftMs: times(1_000, ratioOf(increase('ttftSeconds'), increase('ttftCount'))),
  };
}

/** Line of a tenant. Rates are undefined at the first look, and after a restart of the router. */
export interface TenantRow {
  readonly name: string;
  readonly requestsPerS: number | undefined;
  readonly outputTokensPerS: number | undefined;
  /** Engines that its requests kept busy. */
  readonly engines: number | undefined;
  readonly waiting: number;
}

/** Returns one row for each tenant: those that kept the most of the engines busy first. */
export function tenantRowsOf(before: PoolSample | undefined, last: PoolSample): TenantRow[] {
  const seconds = before ? (last.atMs - before.atMs) / 1_000 : 0;
  const rows = [...last.tenants].map(([name, tenant]): TenantRow => {
    const earlier = before?.tenants.get(name);
    const rate = (key: keyof TenantSample): number | undefined =>
      earlier && seconds > 0 && tenant[key] >= earlier[key] ? (tenant[key] - earlier[key]) / seconds : undefined;
    return {
      name,
      requestsPerS: rate('requests'),
      outputTokensPerS: rate('outputTokens'),
      engines: times(1 / 1_000, rate('engineMs')),
      waiting: tenant.waiting,
    };
  });
  return rows.sort((a, b) => (b.engines ?? 0) - (a.engines ?? 0) || b.waiting - a.waiting);
}

function ratioOf(part: number | undefined, whole: number | undefined): number | undefined {
  return part === undefined || !whole ? undefined : part / whole;
}

function times(factor: number, value: number | undefined): number | undefined {
  return value === undefined ? undefined : factor * value;
}

/** Key press, heading and order of each column by which rows can be sorted; numbers are sorted from the largest. */
export const sortings = {
  n: { title: 'name', key: ({ name }: NodeRow) => name },
  o: { title: 'role', key: ({ role }: NodeRow) => role },
  s: { title: 'state', key: ({ state }: NodeRow) => state },
  r: { title: 'running', key: ({ running }: NodeRow) => running },
  w: { title: 'waiting', key: ({ waiting }: NodeRow) => waiting },
  f: { title: 'fill', key: ({ fill }: NodeRow) => fill },
  h: { title: 'hits', key: ({ hitRatio }: NodeRow) => hitRatio ?? -1 },
  b: { title: 'bytes/s', key: ({ bytesPerS }: NodeRow) => bytesPerS ?? -1 },
} as const;

/** Key press that sorts the rows. */
export type Sorting = keyof typeof sortings;

/** Whether a key press sorts the rows. */
export function isSorting(key: string): key is Sorting {
  return Object.hasOwn(sortings, key);
}

/** Returns the rows in the order of a column, equal ones by name; `isReversed` turns that order round. */
export function sortedRows(rows: readonly NodeRow[], sorting: Sorting, isReversed: boolean): NodeRow[] {
  const { key } = sortings[sorting];
  const compare = (a: NodeRow, b: NodeRow): number => {
    const [left, right] = [key(a), key(b)];
    if (typeof left === 'number' && typeof right === 'number') return right - left;
    return left < right ? -1 : left > right ? 1 : 0;
  };
  const byName = (a: NodeRow, b: NodeRow): number => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);
  return [...rows].sort((a, b) => (isReversed ? compare(b, a) : compare(a, b)) || byName(a, b));
}
