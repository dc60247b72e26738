/** A program as a list of dispatches: each operation writes its own into the plan. */
import type { Dispatch, DispatchPlan } from './dispatch_plan.ts';
import type { FusedOperation } from './fusion.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { addDispatches } from './operations.ts';

/** A step's list, and where layers end and begin in it. */
export interface DispatchList {
  readonly dispatches: readonly Dispatch[];
  /** Number of dispatches after which the KV of each layer is stored, by layer index. */
  readonly numUntilStored: readonly number[];
  /** Number of dispatches before the attention of each layer, by layer index. */
  readonly numUntilAttention: readonly number[];
}

/** Builds a program's dispatch list, compiled and bound. @throws DeviceError for shapes that the kernels do not support. */
export async function makeDispatchList(
  plan: DispatchPlan,
  operations: readonly FusedOperation[],
  memory: GpuMemory,
): Promise<DispatchList> {
  const [numUntilStored, numUntilAttention]: [number[], number[]] = [[], []];
  for (const { op, fusion } of operations) {
    if (op.kind === 'attention') numUntilAttention[op.layer] = plan.numPlanned;
    addDispatches(plan, op, fusion);
    if (op.kind === 'rope_store') numUntilStored[op.layer] = plan.numPlanned;
  }
  return { dispatches: await plan.compile(memory), numUntilStored, numUntilAttention };
}
