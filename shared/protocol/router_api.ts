/**
 * JSON bodies of `/api/*`, as the dashboard, `penstock top` and scripts read them. Times of day are milliseconds since 1970 on the router's
 * clock (`*_at`); durations are milliseconds (`*_ms`); sizes are bytes. Every body says in `as_of` when its values were read.
 */
import type { NodeLoad } from './load_fields.ts';

/** Tokens of a prompt by where their KV came from; the fields add up to the tokens of the prompt. */
export interface TokenSources {
  /** Blocks of the device of the instance that used them. */
  readonly device: number;
  /** Host memory of the instance that used them. */
  readonly dram: number;
  /** Another prefill or decode instance that had them before the request. */
  readonly instance: number;
  readonly store_dram: number;
  readonly store_disk: number;
  /** Computed for this request on another instance, and fetched from there. */
  readonly handoff: number;
  /** Computed by the instance that generates. */
  readonly computed: number;
}

/**
 * Reason why KV of a prompt was computed: `never_seen` (no holder ever announced it), `evicted` (the last holder removed it), `lost` (its
 * last holder left), `other_scope` (the same tokens are known under another salt or format), `held_elsewhere` (held, but the placement did
 * not fetch it), `absent` (promised by the prefix index, but not found), `tail` (tokens after the last full block, and the token whose row
 * has to be computed).
 */
export type MissReason = 'never_seen' | 'evicted' | 'lost' | 'other_scope' | 'held_elsewhere' | 'absent' | 'tail';

/** Tokens [start, end) of a prompt that were computed, and the reason. */
export interface Miss {
  readonly start: number;
  readonly end: number;
  readonly reason: MissReason;
  /** Name of the node that had the blocks, for `evicted`, `lost`, `held_elsewhere` and `absent`. */
  readonly node?: string;
  /** Tier from which the blocks were removed, or in which they are held. */
  readonly tier?: string;
  /** When the blocks were removed or lost. */
  readonly at?: number;
}

/** One request in a list. `/api/requests/{id}` has all that is known of it. */
export interface RequestRow {
  readonly id: string;
  readonly client_id: string | null;
  /** Address from which the client called; null where it is not known. */
  readonly client: string | null;
  /** Names of the client's key and of its tenant; null where the router asks for no keys. */
  readonly key: string | null;
  readonly tenant: string | null;
  readonly endpoint: string;
  readonly model: string | null;
  readonly started_at: number;
  readonly phase: string;
  readonly finish_reason: string | null;
  readonly error: string | null;
  readonly prompt_tokens: number;
  readonly output_tokens: number;
  readonly sources: TokenSources;
  readonly ttft_ms: number | null;
  readonly total_ms: number;
  /** Instance that generates; null before the placement. */
  readonly decode: string | null;
  /** Instance that computed the prompt; null where no other one did. */
  readonly prefill: string | null;
  readonly attempts: number;
  /** Reason of the last placement, in words. */
  readonly reason: string;
  /** Tokens computed by reason; empty until the prompt was computed. */
  readonly misses: Partial<Record<MissReason, number>>;
}

/** Body of `/api/requests`. */
export interface RequestPage {
  readonly as_of: number;
  readonly requests: readonly RequestRow[];
  /** Value of `cursor` for the next page; null on the last one. */
  readonly next: string | null;
  /** Requests that are kept. */
  readonly kept: number;
}

/** Kind of an event of the cluster. */
export type EventKind =
  | 'router_started'
  | 'joined'
  | 'left'
  | 'lost'
  | 'refused'
  | 'suspect'
  | 'unreachable'
  | 'reachable'
  | 'draining'
  | 'error'
  | 'policy'
  | 'alarm'
  | 'alarm_ended';

/** One event of the cluster. */
export interface ClusterEvent {
  /** Number of the event at this router, from 1. */
  readonly id: number;
  readonly at: number;
  readonly kind: EventKind;
  /** Name of the node that it is about; null for events of the cluster. */
  readonly node: string | null;
  readonly role: string | null;
  readonly model: string | null;
  /** Sentence for people: what happened and why. */
  readonly text: string;
}

/** Body of `/api/events`, newest first. */
export interface EventPage {
  readonly as_of: number;
  /** Router that numbered the events: with another epoch its numbers begin anew. */
  readonly router: { readonly name: string; readonly epoch: string };
  readonly events: readonly ClusterEvent[];
}

/** Body of `/api/history`: values of series at equal distances; null where there is no value. */
export interface HistoryBody {
  readonly as_of: number;
  /** `cluster`, `role:decode`, `model:NAME` or `node:NAME`. */
  readonly scope: string;
  /** Time of the first value. */
  readonly start_at: number;
  readonly step_ms: number;
  readonly series: Readonly<Record<string, readonly (number | null)[]>>;
}

/** Tier of a node. */
export interface TierView {
  readonly blocks: number;
  readonly bytes: number;
  readonly capacity_bytes: number;
  readonly hits: number;
  readonly misses: number;
  readonly evictions: number;
  readonly dedup_factor: number;
  readonly formats: Readonly<Record<string, { readonly blocks: number; readonly bytes: number }>> | null;
  readonly fault: string | null;
}

/** Cost of losing a node. */
export interface LossCost {
  /** Blocks that no other node holds. */
  readonly only_blocks: number;
  readonly only_bytes: number;
  /** Predicted time in which one instance would compute them again; null while no instance says how fast it computes. */
  readonly recompute_ms: number | null;
}

/** Slots of a device for recurrent states; hits and evictions since the engine's start. Declared here, since the page compiles without Node's types. */
interface StateSlotsView {
  readonly slots: number;
  readonly saved: number;
  readonly used: number;
  readonly hits: number;
  readonly evictions: number;
}

/** One process of the cluster; a router is one, too. The plain values of its load, such as `running`, are described in load_fields.ts. */
export interface NodeView extends NodeLoad {
  readonly name: string;
  readonly role: string;
  readonly model: string | null;
  readonly address: string;
  readonly pid: number;
  readonly epoch: string;
  readonly device: string | null;
  readonly numerics_class: string | null;
  /** `alive`, `draining`, `suspect` or `unreachable`. */
  readonly state: string;
  readonly unreachable: string | null;
  /** Bytes that the node fetched, by way. */
  readonly fetched_bytes: Readonly<Record<string, number>> | null;
  readonly tiers: Readonly<Record<string, TierView>>;
  /** Milliseconds since the last heartbeat. */
  readonly heard_ms: number;
  /** Heartbeats since it joined; 0 of the router. */
  readonly heartbeats: number;
  /** When the node joined. */
  readonly joined_at: number;
  /** Why the last call that could not reach the node failed; null when none failed. Members alone have this field and the two below. */
  readonly last_error?: string | null;
  /** Calls that could not reach the node. */
  readonly failed_calls?: number;
  /** Null for a model without recurrent layers. */
  readonly state_slots?: StateSlotsView | null;
  readonly loss: LossCost | null;
  /** Resident memory of a router's process; routers alone have this field and the three below. */
  readonly memory_bytes?: number;
  /** Part of the memory that JavaScript's objects take. */
  readonly heap_bytes?: number;
  /** CPU time since the process started. */
  readonly cpu_ms?: number;
  /** Largest delay of a timer within the last ten seconds: a busy router answers this late. */
  readonly loop_delay_ms?: number;
}

/** Blocks that moved from a holder to a reader over one way, since the reader started. */
export interface LinkView {
  /** Name of the holder; its address where no member has it. */
  readonly from: string;
  /** Name of the reader. */
  readonly to: string;
  /** `memory`, `socket` or `call`. */
  readonly way: string;
  readonly bytes: number;
  readonly records: number;
  /** Milliseconds in which the bytes moved. */
  readonly ms: number;
  readonly failures: number;
  /** Bytes a second of the last ten seconds. */
  readonly bytes_per_s: number;
}

/** State of the cluster in words. */
export interface Health {
  readonly state: 'ok' | 'degraded' | 'down';
  /** Sentences, the worst first; empty when all is well. */
  readonly problems: readonly string[];
}

/** Speed of moving blocks from one holder to one reader, as it was measured. */
interface LinkSpeed {
  /** Address of the holder. */
  readonly from: string;
  /** Id of the instance that fetches. */
  readonly to: string;
  readonly bytes_per_second: number;
  readonly latency_ms: number;
}

/** Placement policy in force. */
export interface PolicyView {
  readonly name: string;
  /** Policy that places while `name` cannot. */
  readonly places_by: string;
  readonly version: number;
  /** Time of day in ISO 8601. */
  readonly since: string;
  /** The router at which it was set; null: this router's own option. */
  readonly set_by: string | null;
}

/** Body of `/api/pool`. */
export interface PoolBody {
  readonly as_of: number;
  readonly health: Health;
  /** KV format of the router's first model, with its digest; null while no engine of it is a member. */
  readonly model: ({ readonly digest: string } & Readonly<Record<string, unknown>>) | null;
  readonly models: readonly string[];
  readonly index_keys: number;
  readonly index_bytes: number;
  readonly bus: {
    readonly name: string;
    readonly connected: boolean;
    /** Messages that were dropped: sealed under another cluster token or sent by another version; and those that were not new. */
    readonly unverified: number;
    readonly replayed: number;
  };
  readonly policy: PolicyView;
  readonly other_routers: readonly string[];
  /** This router; all counts are zero when nothing runs. */
  readonly router: {
    readonly name: string;
    readonly epoch: string;
    readonly started_at: number;
    readonly requests: number;
    readonly answers: number;
    readonly body_bytes: number;
    readonly promises: number;
  };
  readonly nodes: readonly NodeView[];
  readonly flows: readonly LinkView[];
  readonly links: readonly LinkSpeed[];
}

/** Run of blocks of the prefix tree that have one child each and the same holders. */
export interface BlockRunView {
  /** Key of the first block, 16 hexadecimal digits; `/api/blocks?root=` takes it. */
  readonly key: string;
  /** Key of the run before; null for the beginning of a prompt. */
  readonly parent: string | null;
  /** Blocks of a chain before this run. */
  readonly depth: number;
  /** Blocks of this run. */
  readonly length: number;
  /** Blocks of this run and all below it. */
  readonly blocks: number;
  /** Children, those that the body leaves out included. */
  readonly children: number;
  /** Index in `holders` of each node that has the run, and its tiers. */
  readonly held_by: readonly (readonly [number, readonly string[]])[];
  /** When a block of the run was last announced or looked up; null where that is not known. */
  readonly used_at: number | null;
}

/** Body of `/api/blocks`. */
export interface BlocksBody {
  readonly as_of: number;
  /** False while the router fetches the tree: it keeps one only while somebody looks. */
  readonly is_ready: boolean;
  readonly total_blocks: number;
  readonly holders: readonly string[];
  /** Largest subtrees first below each parent; parents before their children. */
  readonly runs: readonly BlockRunView[];
  /** Whether runs were left out, for the limit or because a holder did not name its blocks. */
  readonly is_truncated: boolean;
}

/** One placement that a prompt would get or could get. */
export interface PlacementView {
  readonly decode: string;
  readonly prefill: string | null;
  readonly price_ms: number | null;
  /** Parts of the price, in milliseconds. */
  readonly parts: Readonly<Record<string, number>>;
  readonly is_chosen: boolean;
  readonly reason: string;
}

/** Body of `POST /api/lookup`: where a prompt lies. */
export interface LookupBody {
  readonly as_of: number;
  readonly model: string;
  readonly block_size: number;
  /** Text of each token of the prompt, for this answer only; null for a prompt of token ids. */
  readonly texts: readonly string[] | null;
  readonly prompt_tokens: number;
  /** Tokens [start, end) and who holds them, ascending. */
  readonly ranges: readonly {
    readonly start: number;
    readonly end: number;
    readonly held_by: readonly { readonly node: string; readonly tiers: readonly string[] }[];
  }[];
  readonly misses: readonly Miss[];
  /** Tokens that the chosen placement would not compute. */
  readonly cached_tokens: number;
  readonly placements: readonly PlacementView[];
  /** Why a request with the prompt would wait or be refused now; null when it would be placed. */
  readonly unplaced: string | null;
}

/** Body of `/api/reuse`: hit ratio against capacity, from a sample of the keys. */
export interface ReuseBody {
  readonly as_of: number;
  /** Keys that are followed, and accesses of blocks that were counted. */
  readonly sampled_keys: number;
  readonly accesses: number;
  /** Hit ratio of a pool with the bytes, least recently used first out. */
  readonly curve: readonly { readonly bytes: number; readonly hit_ratio: number }[];
  /** Capacity of each kind of tier of the cluster, and the ratio that the curve has there and at twice as much. */
  readonly tiers: Readonly<
    Record<string, { readonly capacity_bytes: number; readonly hit_ratio: number; readonly hit_ratio_doubled: number }>
  >;
}

/** Data of the event `tick` of `/api/stream`: what has changed since the tick before; the first one has all. */
export interface StreamTick {
  readonly as_of: number;
  readonly router: { readonly name: string; readonly epoch: string };
  readonly health: Health;
  /** Newest value of each series of the cluster. */
  readonly now: Readonly<Record<string, number | null>>;
  /** New nodes, and the changed fields of others; numbers have three digits. */
  readonly nodes: readonly (Partial<NodeView> & { readonly name: string })[];
  /** Names of nodes that are gone. */
  readonly gone: readonly string[];
  /** New links, and the changed fields of others. */
  readonly flows: readonly (Partial<LinkView> & Pick<LinkView, 'from' | 'to' | 'way'>)[];
  readonly events: readonly ClusterEvent[];
  /** Requests that have ended, as many as there is room for, failed ones first; and those of the newest whose phase has changed. */
  readonly requests: readonly RequestRow[];
}

/** Answer of `/api/session`. */
export interface SessionView {
  /** Name of the key with which the browser has logged in to the dashboard; null where it has not, and need not without keys. */
  readonly logged_in_as: string | null;
}
