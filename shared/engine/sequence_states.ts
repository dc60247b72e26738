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
  /** Blocks before the state that the segment writes behind an answer's last full block; 0: it writes none. */
  readonly behind: number;
}

/** Slots of one sequence, each referenced once unless noted. */
export interface HeldStates {
  readonly own: number;
  /** Slot with the state at the end of the rows that were submitted; undefined at a sequence's beginning, where the state is zero. */
  current: number | undefined;
  /** Whether `current` is a saved state, referenced once more for this sequence. */
  isCurrentSaved: boolean;
  /** State behind the last full block of the answer: its slot, the blocks before it, and whether the step that writes it has returned. */
  behind: { readonly slot: number; blocks: number; isWritten: boolean } | undefined;
  /** Blocks at whose end a state is wanted besides the usual points. */
  readonly points: Set<number>;
  /** Blocks before the last saved state. */
  lastSaved: number;
  /** Slot for the state that is being fetched. */
  spare: number | undefined;
  /** Saved states that it references until it ends: those that a fetch has brought, and that behind its answer, which a step may read. */
  readonly kept: number[];
  hasEnded: boolean;
}
