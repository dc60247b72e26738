/**
 * The plain values of a member's load, one entry each. Made from this table: the schema of a heartbeat (`membership.ts`), the fields of a node in
 * `/api/pool` and their types (`router_api.ts`), the series of `/metrics` and of `/api/history`, the columns of `penstock top`, and the facts of a
 * node on the dashboard. A value that is added here and measured where a load is filled is in all of them. Values that have parts (tiers,
 * links, work, states) are in `membership.ts`. The dashboard loads this module, so it imports nothing.
 */

const ENGINES = ['prefill', 'decode'] as const;
const MEMBERS = [...ENGINES, 'store'] as const;

/** One plain value of a load: its unit and meaning, and its name at each place that has it. */
export interface LoadField {
  /** Sentence for people: the meaning of the value, and the help of its series in `/metrics`. */
  readonly help: string;
  readonly type: 'int' | 'number';
  /** A counter only grows while its process lives: `/api/history` has its growth per second. */
  readonly kind: 'gauge' | 'counter';
  /** Unit of the value; `share` is 0 to 1. */
  readonly unit: 'ms' | 'share' | 'sequences' | 'streams' | 'slots' | 'blocks';
  /** Roles that measure the value. Others leave it out, or send 0 where every heartbeat has it. */
  readonly roles: readonly (typeof MEMBERS)[number][];
  /** A heartbeat without the value is refused. A new field must not say this: processes of earlier versions do not send it. */
  readonly isRequired?: true;
  /** Name in `/api/pool`, and the value there for a member that does not report one. The router's own node lacks fields `ofMembers`. */
  readonly pool?: { readonly name: string; readonly absent: 0 | null; readonly ofMembers?: true };
  /** Names of its series in `/metrics`; those of vLLM describe engines alone. Prometheus has seconds where a load has milliseconds. */
  readonly metrics?: readonly string[];
  /** Name of its series of a node in `/api/history`. `isSummed`: a gauge whose sum is a series of the cluster, of roles and of models too. */
  readonly history?: { readonly name: string; readonly isSummed?: true };
  /** Heading of its column in `penstock top`. */
  readonly column?: string;
  /** Label of the value on the dashboard's page of a node. */
  readonly label?: string;
}

/** Fields by their name in a heartbeat. Bodies and series list them in this order. */
export const LOAD_FIELDS = {
  running: {
    help: 'sequences that hold device blocks',
    type: 'int',
    kind: 'gauge',
    unit: 'sequences',
    roles: MEMBERS,
    isRequired: true,
    pool: { name: 'running', absent: 0 },
    metrics: ['vllm:num_requests_running'],
    history: { name: 'running', isSummed: true },
    column: 'RUN',
  },
  waiting: {
    help: 'sequences that wait',
    type: 'int',
    kind: 'gauge',
    unit: 'sequences',
    roles: MEMBERS,
    isRequired: true,
    pool: { name: 'waiting', absent: 0 },
    metrics: ['vllm:num_requests_waiting'],
    history: { name: 'waiting', isSummed: true },
    column: 'WAIT',
  },
  deferred: {
    help: 'sequences among those that wait that wait for something other than room, such as the first sample of their group',
    type: 'int',
    kind: 'gauge',
    unit: 'sequences',
    roles: ENGINES,
  },
  kvUsage: {
    help: 'device blocks in use, of all; 1 is full',
    type: 'number',
    kind: 'gauge',
    unit: 'share',
    roles: ENGINES,
    pool: { name: 'kv_usage', absent: null },
    metrics: ['vllm:kv_cache_usage_perc', 'vllm:gpu_cache_usage_perc'],
    history: { name: 'kv_usage' },
    label: 'Blocks of running sequences',
  },
  lastStepMs: {
    help: 'duration of the last step',
    type: 'number',
    kind: 'gauge',
    unit: 'ms',
    roles: ENGINES,
    isRequired: true,
    pool: { name: 'last_step_ms', absent: 0 },
    metrics: ['penstock_step_seconds'],
    history: { name: 'step_ms' },
    label: 'Last step',
  },
  openStreams: {
    help: 'fetch streams that the process serves now',
    type: 'int',
    kind: 'gauge',
    unit: 'streams',
    roles: MEMBERS,
    pool: { name: 'open_streams', absent: 0, ofMembers: true },
    history: { name: 'open_streams' },
  },
  arriving: {
    help: 'slots of host memory in use for blocks that the instance fetches',
    type: 'int',
    kind: 'gauge',
    unit: 'slots',
    roles: ENGINES,
    pool: { name: 'arriving', absent: 0, ofMembers: true },
  },
  lent: {
    help: 'slots of host memory that are acquired and hold no record yet: for fetched blocks, and for exports of the engine',
    type: 'int',
    kind: 'gauge',
    unit: 'slots',
    roles: MEMBERS,
    pool: { name: 'lent', absent: 0, ofMembers: true },
  },
  preemptions: {
    help: 'sequences that were preempted: they lost their device blocks to another',
    type: 'int',
    kind: 'counter',
    unit: 'sequences',
    roles: ENGINES,
    isRequired: true,
    pool: { name: 'preemptions', absent: 0 },
    metrics: ['vllm:num_preemptions_total'],
    history: { name: 'preemptions_per_s' },
    label: 'Preempted sequences',
  },
  divergent: {
    help: 'offered blocks whose bytes differ from those in a store, though both were computed with the same numerics; any is an alarm',
    type: 'int',
    kind: 'counter',
    unit: 'blocks',
    roles: ['store'],
    pool: { name: 'divergent', absent: 0, ofMembers: true },
    metrics: ['penstock_divergent_blocks_total'],
  },
} as const satisfies Readonly<Record<string, LoadField>>;

type Fields = typeof LOAD_FIELDS;
/** Name of a plain value in a heartbeat. */
export type LoadName = keyof Fields;
/** Names of the fields whose entry has these properties. */
type LoadNameWith<Properties> = {
  [Name in LoadName]: Fields[Name] extends Properties ? Name : never;
}[LoadName];

type PoolName = LoadNameWith<{ readonly pool: object }>;
type OfMembers = LoadNameWith<{ readonly pool: { readonly ofMembers: true } }>;
type PoolValue<Name extends PoolName> = Fields[Name]['pool']['absent'] extends null ? number | null : number;

/** The plain values of a node that reports all of them, under their names in `/api/pool`. */
export type PoolLoad = { readonly [Name in PoolName as Fields[Name]['pool']['name']]: PoolValue<Name> };
/** The plain values of a node of `/api/pool`: the router's own has no streams and slots. */
export type NodeLoad = Omit<PoolLoad, Fields[OfMembers]['pool']['name']> &
  Partial<Pick<PoolLoad, Fields[OfMembers]['pool']['name']>>;

type InColumn = LoadNameWith<{ readonly pool: object; readonly column: string }>;
/** The plain values that `penstock top` has a column for. */
export type ColumnLoad = Pick<PoolLoad, Fields[InColumn]['pool']['name']>;

/** The table as a list, with the properties that an entry may lack. */
export const loadFields = Object.entries(LOAD_FIELDS) as unknown as readonly (readonly [LoadName, LoadField])[];

/** Fields of `/api/pool`: name in a heartbeat, name there, and the value of a member that reports none. */
export const poolFields = loadFields.flatMap(([name, { pool }]) => (pool ? [{ from: name, ...pool }] : []));
