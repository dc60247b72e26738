/** The order in which the threads of a step work, as step_plan.ts derives it. */

/** Most rows, and most samples, of a step in which threads repeat operations. To wait costs less than to normalise many more. */
export const FEW_ROWS = 8;

/**
 * Operations that run in the tasks of one operation and have no turn of their own: how many come after it. `unit` and `apart` of columns: as
 * in `Following`.
 */
export interface Joined {
  readonly kind: 'columns' | 'rows';
  readonly count: number;
  readonly unit: number;
  readonly apart: number;
}

/** The order of a step; arrays by index of the operation. */
export interface StepOrder {
  readonly joined: readonly Joined[];
  /** Whether every thread runs the whole operation. */
  readonly isRepeated: readonly boolean[];
  /** Buffers of the operation of which every thread has its own. */
  readonly own: readonly (readonly string[])[];
  /** Whether a group ends after the operation. */
  readonly endsGroup: readonly boolean[];
}

/** Orders of a memory shard's operations: for any number of rows, and for at most FEW_ROWS. */
export interface StepPlan {
  readonly many: StepOrder;
  readonly few: StepOrder;
}
