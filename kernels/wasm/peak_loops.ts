/** Loops that measure what the machine can do, as operations of a step; see peaks.ts. */
import type { BoundOperation } from './bound_operation.ts';
import type { StepContext } from './step_context.ts';

/** Bytes that one iteration of the read loop reads. */
const READ_BYTES = 128;

/** Loops by kind. Their fields: `iterations` of an arithmetic loop; `from` and `bytes` of the region to read. */
export const peakLoops = {
  multiply_add: ({ kernels, scratch }, { fields: { iterations } }) => {
    kernels.multiply_add_loop(iterations!, scratch);
  },
  multiply_add_int: ({ kernels, scratch }, { fields: { iterations } }) => {
    kernels.multiply_add_loop_int(iterations!, scratch);
  },
  multiply_add_int4: ({ kernels, scratch }, { fields: { iterations } }) => {
    kernels.multiply_add_loop_int4(iterations!, scratch);
  },
  read: (step, { fields: { from, bytes } }) => {
    const [start, end] = step.share(bytes!, READ_BYTES);
    step.kernels.read_loop(from! + start, from! + end);
  },
  /** Does nothing, so that only the barrier after each operation is measured. */
  nothing: () => undefined,
} satisfies Readonly<Record<string, (step: StepContext, op: BoundOperation) => void>>;

/** Name of one of the {@link peakLoops}. */
export type PeakLoop = keyof typeof peakLoops;
