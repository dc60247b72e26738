/** What the control thread and the engine thread say to each other. Slots are those of the shared slab. */
import type { BlockKey, BlockHash } from '../kv/block_key.ts';
import type { TierCounters } from '../kv/tier_counters.ts';
import type { Format } from '../kv/format.ts';
import type { RecordLayout } from '../kv/record.ts';
import type { SlabMemory } from '../kv/slab.ts';
import type { BlockEvent, SequenceEvent } from './engine_events.ts';
import type { LoadModelOptions } from './load_model.ts';

export interface EngineWorkerData {
  readonly model: LoadModelOptions;
  readonly maxWaiting: number;
  readonly stepMs: number;
  /** For drills; 0: never. */
  readonly loseDeviceAfterSteps: number;
  /** For drills; 0: never. */
  readonly hangAfterSteps: number;
  /** [turns of the loop, 1 while one runs] u32: what the control thread's watchdog looks at. */
  readonly heartbeat: SharedArrayBuffer;
}

export type ToEngine =
  | { readonly kind: 'attach'; readonly slab: SlabMemory }
  | {
      readonly kind: 'deliver';
      readonly id: number;
      readonly blockIndex: number;
      readonly slot: number;
      /** Only that frame of it is there; undefined: all of it. */
      readonly frame: number | undefined;
      /** Its sequence waits, as far as the sender knows: the slot is one of those that waiting sequences may hold. */
      readonly isEarly: boolean;
    }
  | { readonly kind: 'proceed'; readonly id: number }
  | { readonly kind: 'cancel'; readonly id: number }
  /** Slots that the engine may fill with exports. */
  | { readonly kind: 'grant'; readonly slots: readonly number[] }
  /** Somebody waits for these to be computed, or does no longer; as often as it was said. */
  | { readonly kind: 'await'; readonly keys: readonly BlockKey[]; readonly isOn: boolean }
  /** Somebody wants a block that is only in the device tier. */
  | { readonly kind: 'export'; readonly hash: BlockHash }
  /** Finish the step that runs, let the device go, say so. */
  | { readonly kind: 'stop' };

export type LoopEvent =
  | SequenceEvent
  | BlockEvent
  /** The delivered slot is free again. */
  | { readonly kind: 'consumed'; readonly slot: number }
  /** Of blocks that a step computes: that frame is in their slots. In order; when the step is done they are `exported`. */
  | {
      readonly kind: 'frame';
      readonly frame: number;
      readonly blocks: readonly { readonly hash: BlockHash; readonly slot: number }[];
    }
  /** The slot holds the block's payload; its header is the mover's to write. */
  | {
      readonly kind: 'exported';
      readonly hash: BlockHash;
      readonly slot: number;
      /** Present when the block was computed here and has not been offered to its home store yet. */
      readonly anchor: BlockKey | undefined;
    }
  | { readonly kind: 'export_failed'; readonly hash: BlockHash };

export interface EngineLoad {
  readonly numRunning: number;
  readonly numWaiting: number;
  readonly numPreemptions: number;
  readonly numSteps: number;
  readonly lastStepMs: number;
  readonly numKeyed: number;
  readonly numAvailable: number;
  readonly counters: TierCounters;
}

/** What an instance knows once its model is loaded. */
export interface EngineInfo {
  readonly format: Format;
  readonly layout: RecordLayout;
  readonly numBlocks: number;
  readonly maxModelLen: number;
  readonly vocabSize: number;
  /** SHA-256 of the model's configuration. */
  readonly modelConfig: string;
  /** As it is asked for. */
  readonly modelName?: string | undefined;
  readonly device: string;
  readonly loadMs: number;
}

export type FromEngine =
  | { readonly kind: 'loading'; readonly doneBytes: number; readonly totalBytes: number }
  | { readonly kind: 'ready'; readonly info: EngineInfo }
  | { readonly kind: 'failed'; readonly message: string }
  | { readonly kind: 'stopped' }
  | { readonly kind: 'events'; readonly events: readonly LoopEvent[]; readonly load: EngineLoad };
