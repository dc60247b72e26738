/** What an operation of a program is on the webgpu device: kernels, and the dispatches that it adds to a step's list. One file an operation. */
import type { Gate, Operation, OperationOf } from '../../program.ts';
import type { DispatchPlan } from '../dispatch_plan.ts';

/** What neighbours of an operation do in its kernel, or it in theirs; see fusion.ts. */
export interface Fusion {
  /** Of a norm: the product after it does it too, when there is one row. */
  readonly isNormOfNext?: boolean;
  /** Of a product: the norm before it, and what makes its outputs pairs of gate and up. */
  readonly norm?: OperationOf<'rms_norm'>;
  readonly gated?: Gate;
  /** Of an expert's product: rows are taken where they lie, not in the order of places. */
  readonly permuted?: OperationOf<'permute'>;
  /** Of what rotates and stores q and k: it normalises their heads first. */
  readonly headNorm?: OperationOf<'qk_norm'>;
}

/** @throws DeviceError for what the kernels do not have. */
export type WgslOperation<Op extends Operation> = (plan: DispatchPlan, op: Op, fusion: Fusion) => void;

export function operation<K extends Operation['kind']>(
  _kind: K,
  dispatch: WgslOperation<OperationOf<K>>,
): WgslOperation<OperationOf<K>> {
  return dispatch;
}
