/** A program as a list of dispatches: each operation writes its own into the plan. */
import { isAttention, isStore } from '../program_kinds.ts';
import type { Dispatch, DispatchPlan } from './dispatch_plan.ts';
import type { FusedOperation } from './fusion.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { addDispatches } from './operations.ts';

/** A step's list, and where layers end and begin in it. */
export interface DispatchList {
  readonly dispatches: readonly Dispatch[];
  /** Number of dispatches after which the KV of each layer is stored, by layer index. */
  readonly numUntilStored: readonly number[];
  /** Number of dispatches before the attention of each layer, or of the next layer that has one, by layer index. */
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
    if (isAttention(op)) numUntilAttention[op.layer] = plan.numPlanned;
    addDispatches(plan, op, fusion);
    if (isStore(op)) numUntilStored[op.layer] = plan.numPlanned;
  }
  let next = plan.numPlanned;
  for (let layer = plan.options.kv.layers.length - 1; layer >= 0; layer--)
    next = numUntilAttention[layer] = numUntilAttention[layer] ?? next;
  return { dispatches: await plan.compile(memory), numUntilStored, numUntilAttention };
}
