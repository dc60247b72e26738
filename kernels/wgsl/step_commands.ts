/**
 * A step's commands, encoded before anybody asks for them: hundreds of calls into Dawn take longer than all else between a step's results
 * and the next one's submit. Two steps of equal counts have equal commands, and what else varies lies in a buffer, so while the device
 * computes the second of two such steps a third like them is encoded.
 */
import { encode, type Dispatch } from './dispatch_plan.ts';
import type { GridCounts } from './step_state.ts';

export class StepCommands {
  readonly #device: GPUDevice;
  readonly #dispatches: readonly Dispatch[];
  /** Of the last step that was asked for. */
  #last: GridCounts | undefined;
  #isRepeated = false;
  /** For one more step like the last; a command buffer is submitted once. */
  #ready: GPUCommandBuffer | undefined;

  constructor(device: GPUDevice, dispatches: readonly Dispatch[]) {
    this.#device = device;
    this.#dispatches = dispatches;
  }

  /** To be submitted by its caller. */
  take(counts: GridCounts): GPUCommandBuffer {
    this.#isRepeated = this.#last !== undefined && areEqual(this.#last, counts);
    const ready = this.#isRepeated ? this.#ready : undefined;
    this.#last = counts;
    this.#ready = undefined;
    return ready ?? this.#encode(counts);
  }

  /** When the last step was like the one before: the next may be too. */
  prepare(): void {
    if (this.#last && this.#isRepeated) this.#ready ??= this.#encode(this.#last);
  }

  #encode(counts: GridCounts): GPUCommandBuffer {
    const encoder = this.#device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    for (const { launch } of this.#dispatches) encode(pass, launch(counts));
    pass.end();
    return encoder.finish();
  }
}

function areEqual(a: GridCounts, b: GridCounts): boolean {
  return (
    a.rows === b.rows &&
    a.samples === b.samples &&
    a.decodeItems === b.decodeItems &&
    a.prefillItems === b.prefillItems &&
    a.merges === b.merges &&
    a.listed === b.listed &&
    a.drawn === b.drawn
  );
}
