/** A simulated instance as the cluster and the run see it, whatever simulates its engine. */
import type { Random } from '../../shared/base/random.ts';
import type { QueueOrderName } from '../../shared/engine/queue_order.ts';
import type { InstanceWork } from '../../shared/protocol/instance_work.ts';
import type { Hardware } from './hardware.ts';
import type { ReplayTime } from './replay_time.ts';
import type { Transfer } from './simulated_links.ts';
import type { HandoffReceiver, SimulatedSequence } from './simulated_sequence.ts';
import type { TenantLedger } from './tenant_ledger.ts';
import type { TraceHash, TraceHashes } from './trace_hashes.ts';

/** Sizes of a simulated instance. */
export interface EngineSizes {
  readonly hardware: Hardware;
  /** Factor on the time of every step: 1 as the hardware says, 3 for a node that is three times slower. */
  readonly slowness: number;
  /** Rows of a step at most. */
  readonly chunkTokens: number;
  /** Tokens of a block of the trace. */
  readonly blockTokens: number;
  /** Target of the time between two tokens, in ms; undefined: none. */
  readonly tbtTargetMs: number | undefined;
  /** Order of the queue; first come first by default. */
  readonly queueOrder?: QueueOrderName | undefined;
  /** Whether requests have priorities that differ; false by default. */
  readonly hasPriorities?: boolean;
  /** Whether requests have tenants that differ; false by default. */
  readonly hasTenants?: boolean;
  /** Whether tenants share an engine fairly, above the order of its queue; true by default. */
  readonly fairShares?: boolean | undefined;
  /** A step takes up to this share longer or shorter than the formula says. */
  readonly noise: number;
}

/** Events that an engine reports. */
interface EngineEvents {
  /** A block was stored in a tier, or removed. */
  readonly onBlock: (isStored: boolean, tier: 'device' | 'dram', hash: TraceHash) => void;
  /** Measured speed of a fetch, between instances by name. */
  readonly onFetched: (from: Named, to: Named, bytes: number, transfer: Transfer) => void;
}

interface Named {
  readonly name: string;
}

/** Time, randomness and names that a simulated instance needs, and the receiver of its events. */
export interface EngineContext {
  readonly time: ReplayTime;
  readonly random: Random;
  readonly events: EngineEvents;
  /** Counts the milliseconds of the engine by tenant. */
  readonly ledger: TenantLedger;
  readonly hashes: TraceHashes;
}

/** Blocks that a sequence fetches from one holder; `end` in blocks. */
export interface SimulatedSource {
  readonly holder: ReplayEngine;
  readonly start: number;
  readonly end: number;
}

/** A simulated instance. */
export interface ReplayEngine extends HandoffReceiver {
  /** Sequences that hold device blocks, and that wait for them. */
  readonly numHeld: number;
  readonly numWaiting: number;
  readonly numPreemptions: number;
  /** Milliseconds in which steps ran. */
  readonly busyMs: number;
  /** Work that is left, as heartbeats carry it; blocks are those of the trace. */
  readonly work: InstanceWork;
  /** Begins the fetches of a sequence, and queues it. */
  submit(sequence: SimulatedSequence, sources: readonly SimulatedSource[]): void;
  /** Whether the block is in the device or in host memory; a block that is asked for counts as used. */
  has(hash: TraceHash): boolean;
}
