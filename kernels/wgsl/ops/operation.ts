/**
 * An operation on the webgpu device: a function that adds the dispatches of a program's operation to the plan. Each operation has its
 * own file.
 */
import type { Gate, Operation, OperationOf } from '../../program.ts';
import type { DispatchPlan } from '../dispatch_plan.ts';

/** Neighbouring operations that one kernel computes together with this one; see fusion.ts. */
export interface Fusion {
  /** On a norm: the next product computes this norm itself when there is one row. */
  readonly isNormOfNext?: boolean;
  /** On a product: the norm before it to apply when there is one row; and `gated`, the gate applied to its pairs of outputs. */
  readonly norm?: OperationOf<'rms_norm'>;
  readonly gated?: Gate;
  /** On an `expert_linear`: the permute it replaces. The kernel reads the unpermuted rows of x through the routing. */
  readonly permuted?: OperationOf<'permute'>;
  /** On a `rope_store`: the norm of q's and k's heads to apply before rotating them. */
  readonly headNorm?: OperationOf<'qk_norm'>;
}

/** Adds the dispatches of an operation to the plan. @throws DeviceError for shapes that the kernels do not support. */
export type WgslOperation<Op extends Operation> = (plan: DispatchPlan, op: Op, fusion: Fusion) => void;

/** Returns `dispatch` unchanged; `_kind` only gives the compiler the operation's type. */
export function operation<K extends Operation['kind']>(
  _kind: K,
  dispatch: WgslOperation<OperationOf<K>>,
): WgslOperation<OperationOf<K>> {
  return dispatch;
}
