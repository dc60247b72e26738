/** Events that an engine emits, in the order in which they happen. */
import type { FailureCode } from '../base/failure.ts';
import type { AnchoredHash, BlockHash, BlockKey } from '../kv/block_key.ts';
import type { SampledMessage } from '../protocol/messages.ts';
import type { SequenceReport } from './sequence_times.ts';

type FinishReason = 'stop' | 'length';

/** Blocks of a preempted sequence that may come back from host memory now that it was admitted again. */
export interface Restore {
  /** Number of the admission, to be named when the sequence is to proceed. */
  readonly admission: number;
  /** Blocks [0, from) were hit; those of `hashes` after them are missing. */
  readonly from: number;
  readonly hashes: readonly BlockHash[];
}

/** Event of one sequence; `id` is the id of its SequenceRequest. */
export type SequenceEvent =
  /** `report` comes with the first token of this engine; `finish` with the last. */
  | {
      readonly kind: 'token';
      readonly id: number;
      readonly sampled: SampledMessage;
      readonly report: SequenceReport | undefined;
      readonly finish: FinishReason | undefined;
    }
  /** Device blocks are taken: a fetching sequence can be delivered to. */
  | {
      readonly kind: 'admitted';
      readonly id: number;
      /** Present when the sequence waits for its blocks to be delivered again, and then for `proceed`. */
      readonly restore?: Restore | undefined;
    }
  /** The sequence was preempted: it waits for device blocks, and then hits, gets back or computes the tokens that it had. */
  | { readonly kind: 'preempted'; readonly id: number }
  /** Progress of a prefill: tokens [0, numReady) have their KV here, as far as later rows see them; numRun rows were computed. */
  | { readonly kind: 'progress'; readonly id: number; readonly numReady: number; readonly numRun: number }
  | { readonly kind: 'prefilled'; readonly id: number; readonly report: SequenceReport }
  /** The embedding of an `embed` sequence, [hidden] f32, a vector of length 1. */
  | {
      readonly kind: 'embedded';
      readonly id: number;
      readonly values: Float32Array<ArrayBuffer>;
      readonly report: SequenceReport;
    }
  /** Tokens of the prompt, in order, with what was asked of them. */
  | { readonly kind: 'prompt'; readonly id: number; readonly tokens: readonly SampledMessage[] }
  /** The sequence is gone. */
  | { readonly kind: 'refused'; readonly id: number; readonly code: FailureCode; readonly message: string };

/** Changes to the keyed full blocks of the device tier. */
export type BlockEvent =
  /** A block got its name: computed here, or fetched from another holder. */
  | { readonly kind: 'stored'; readonly hash: AnchoredHash; readonly origin: 'computed' | 'fetched' }
  | { readonly kind: 'removed'; readonly key: BlockKey };

/** Everything that an engine emits: events of sequences and blocks, and step boundaries. */
export type EngineEvent =
  | SequenceEvent
  | BlockEvent
  /** The next step is about to be submitted: what was reported so far should not wait for it. */
  | { readonly kind: 'planned' };
