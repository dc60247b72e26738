/** Messages between the control thread and the engine thread. Slot numbers refer to the shared slab. */
import type { BucketState } from '../base/bucket_counts.ts';
import type { BlockKey, BlockHash, TenantId } from '../kv/block_key.ts';
import type { TierCounters } from '../kv/tier_counters.ts';
import type { Format } from '../kv/format.ts';
import type { RecordKind, RecordLayout } from '../kv/record.ts';
import type { SlabMemory } from '../kv/slab.ts';
import type { ResidencyState } from '../protocol/engine_histograms.ts';
import type { InstanceWork } from '../protocol/instance_work.ts';
import type { StateSlots } from '../protocol/membership.ts';
import type { BlockEvent, SequenceEvent } from './engine_events.ts';
import type { LoadModelOptions } from './load_options.ts';
import type { QueueOrderName } from './queue_order.ts';
import type { FetchStages } from './fetch_stages.ts';
import type { BlockOrigin } from './sequence_times.ts';

/** Start parameters of the engine thread. */
export interface EngineWorkerData {
  readonly model: LoadModelOptions;
  readonly maxWaiting: number;
  readonly queueOrder: QueueOrderName;
  readonly fairShares: boolean;
  /** Blocks of a prompt between two saved recurrent states; 0: by what a state costs. */
  readonly stateInterval: number;
  readonly stepMs: number;
  readonly tbtTargetMs: number;
  /** Fault injection: the step after which it happens; 0: never. */
  readonly loseDeviceAfterSteps: number;
  /** Fault injection: the step after which it happens; 0: never. */
  readonly hangAfterSteps: number;
  /** [turns of the loop, 1 while one runs] u32: what the control thread's watchdog looks at. */
  readonly heartbeat: SharedArrayBuffer;
}

/** Message from the control thread to the engine thread. */
export type ToEngine =
  | { readonly kind: 'attach'; readonly slab: SlabMemory }
  | {
      readonly kind: 'deliver';
      readonly id: number;
      readonly blockIndex: number;
      readonly slot: number;
      /** Frame that is delivered; undefined: the complete record. */
      readonly frame: number | undefined;
      readonly origin: BlockOrigin;
      /** Present when the record is the recurrent state at the end of the block. */
      readonly record?: 'state' | undefined;
      /**
       * Whether the sequence was not admitted when this was sent: the slot then counts against the share of waiting sequences
       * (FetchSlots).
       */
      readonly isEarly: boolean;
    }
  /** No more of the blocks [start, end) come for a sequence in a pipeline; those that are missing are computed. */
  | { readonly kind: 'arrived'; readonly id: number; readonly start: number; readonly end: number }
  /** No more blocks come for the sequence. `admission`: of the one that is named only; a later one waits for its own blocks. */
  | { readonly kind: 'proceed'; readonly id: number; readonly admission?: number | undefined }
  | { readonly kind: 'cancel'; readonly id: number }
  /** Slots that the engine may fill with exports of one kind of record, blocks by default. */
  | { readonly kind: 'grant'; readonly slots: readonly number[]; readonly record?: RecordKind }
  /** A fetch begins to wait for these blocks to be computed (`isOn`), or stops waiting; each begin is matched by one stop. */
  | { readonly kind: 'await'; readonly keys: readonly BlockKey[]; readonly isOn: boolean }
  /** A fetch wants a block that only the device tier holds: the engine exports it. */
  | { readonly kind: 'export'; readonly hash: BlockHash }
  /** The blocks of a tenant are to be deleted; answered by `forgotten`. */
  | { readonly kind: 'forget'; readonly tenant: TenantId }
  /** Finish the step that runs, close the device, and report the end. */
  | { readonly kind: 'stop' };

/** Event from the engine thread to the control thread. */
export type LoopEvent =
  | SequenceEvent
  | BlockEvent
  /** The delivered slot is free again. */
  | { readonly kind: 'consumed'; readonly slot: number }
  /** A frame of the blocks that a step computes is in their slots. Frames come in order; after the step the blocks are `exported`. */
  | {
      readonly kind: 'frame';
      readonly frame: number;
      readonly blocks: readonly { readonly hash: BlockHash; readonly slot: number }[];
    }
  /** The slot holds the block's payload; its header is the transfer thread's to write. */
  | {
      readonly kind: 'exported';
      readonly hash: BlockHash;
      readonly slot: number;
      /** Present when the block was computed here and has not been offered to its home store yet. */
      readonly anchor: BlockKey | undefined;
    }
  | { readonly kind: 'export_failed'; readonly hash: BlockHash }
  /** The device has deleted `numFreed` blocks of a tenant; `numUsed` are used by sequences. Answers come in the order of the calls. */
  | { readonly kind: 'forgotten'; readonly numFreed: number; readonly numUsed: number };

/**
 * Counters and gauges of an engine: sequences, steps (`lastStepMs` in ms), keyed and allocatable device blocks, and block pool
 * counters.
 */
export interface EngineLoad {
  readonly numRunning: number;
  readonly numWaiting: number;
  /** Those of `numWaiting` that wait for something other than room: the first sample of their group, or the next step. */
  readonly numDeferred: number;
  readonly numFetching: FetchStages;
  readonly numPreemptions: number;
  readonly numSteps: number;
  readonly lastStepMs: number;
  readonly numKeyed: number;
  readonly numAvailable: number;
  readonly counters: TierCounters;
  /** Slots for recurrent states; undefined for a model without recurrent layers. */
  readonly states?: StateSlots | undefined;
  /** Tokens of the steps so far. */
  readonly iterationTokens: BucketState;
  /** How long device blocks stay. Absent from a message: as in the one before it. */
  readonly residency?: ResidencyState | undefined;
  /** Work that the sequences have left. Absent from a message: as in the one before it, or not known yet. */
  readonly work?: InstanceWork | undefined;
}

/** Facts about a loaded model and its engine. */
export interface EngineInfo {
  readonly format: Format;
  readonly layout: RecordLayout;
  readonly numBlocks: number;
  readonly maxModelLen: number;
  readonly vocabSize: number;
  /** SHA-256 of the model's configuration. */
  readonly modelConfig: string;
  /** Name under which requests select the model: that of its folder or repository; undefined when it has none. */
  readonly modelName?: string | undefined;
  readonly device: string;
  readonly loadMs: number;
}

/** Message from the engine thread to the control thread. */
export type FromEngine =
  | { readonly kind: 'loading'; readonly doneBytes: number; readonly totalBytes: number }
  | { readonly kind: 'ready'; readonly info: EngineInfo }
  | { readonly kind: 'failed'; readonly message: string }
  | { readonly kind: 'stopped' }
  | { readonly kind: 'events'; readonly events: readonly LoopEvent[]; readonly load: EngineLoad };
