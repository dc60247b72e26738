/** Recurrent states of one sequence on the device: those that it holds, and those that one of its steps reads and saves. */
import type { SegmentState } from '../../kernels/device.ts';

/** A state that a step saves: its slot, the blocks before it, and the tokens that a hit on it saves from being computed again. */
export interface SavedState {
  readonly slot: number;
  readonly blocks: number;
  readonly tokens: number;
}

/** States that one segment of a step reads and writes; passed to RecurrentStates.complete() when the step has returned. */
export interface SegmentStates {
  readonly segment: SegmentState;
  readonly saves: readonly SavedState[];
  /** Saved state that the segment begins with, referenced until the step has returned. */
  readonly read: number | undefined;
  /** Number of blocks at whose end this segment writes the answer's rolling state; 0: it writes none. */
  readonly rolling: number;
}

/** Slots of one sequence, each referenced once unless noted. */
export interface HeldStates {
  readonly own: number;
  /** Slot with the state at the end of the rows that were submitted; undefined at a sequence's beginning, where the state is zero. */
  current: number | undefined;
  /** Whether `current` is a saved state, referenced once more for this sequence. */
  isCurrentSaved: boolean;
  /**
   * Rolling slot for the state at the last full block of the answer: the slot, the number of blocks before that state, and whether the step
   * that writes it has returned.
   */
  rolling: { readonly slot: number; blocks: number; isWritten: boolean } | undefined;
  /** Blocks at whose end a state is wanted besides the usual points. */
  readonly points: Set<number>;
  /** Number of blocks before the last saved state. */
  lastSaved: number;
  /** Slot for the state that is being fetched. */
  spare: number | undefined;
  /** Saved states pinned until the sequence ends: fetched ones, and its own answer's, which a submitted step may still read. */
  readonly kept: number[];
  hasEnded: boolean;
}
