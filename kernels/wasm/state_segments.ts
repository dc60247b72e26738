/** Segments of a step as recurrent kernels read them, and where a layer's states lie. */
import { Control } from './shared_step.ts';
import type { StepContext } from './step_context.ts';
import { struct } from './struct.ts';
import type { Operands } from './ops/operation.ts';

/** Rows of one sequence in a step; recurrence_params.as.ts says what the fields mean. */
export const stateSegment = struct('StateSegment', {
  row: 'u32',
  rows: 'u32',
  from: 'i32',
  saves: 'u32',
  numSaves: 'u32',
});

/** Bytes of a save: rows and slot. */
export const SAVE_BYTES = 8;

/** Calls `run` for each task of this thread: the address of a segment, and one of `tasksPerSegment` numbers. */
export function eachStateTask(
  step: StepContext,
  index: number,
  segments: number,
  tasksPerSegment: number,
  run: (segment: number, task: number) => void,
): void {
  const numTasks = step.count(Control.numStateSegments) * tasksPerSegment;
  for (let task = step.nextTask(index); task < numTasks; task = step.nextTask(index))
    run(segments + Math.floor(task / tasksPerSegment) * stateSegment.bytes, task % tasksPerSegment);
}

/** The address of a plane in slot 0, and of the step's segments. @throws DeviceError when the plane has other than `values` values. */
export function stateOf(
  { state, regions }: Operands,
  layer: number,
  plane: number,
  values: number,
): { readonly state: number; readonly slotBytes: number; readonly segments: number } {
  return { ...state(layer, plane, values), segments: regions.stateSegments };
}
