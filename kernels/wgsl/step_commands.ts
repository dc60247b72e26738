/**
 * A step's commands, encoded before anybody asks for them: hundreds of calls into Dawn take longer than all else between a step's results
 * and the next one's submit. What varies lies in a buffer, but for the counts: while the device computes a step in which sequences decode,
 * the one is encoded in which they all go on; of other steps, when two had equal counts, a third like them.
 */
import { encode, type Dispatch } from './dispatch_plan.ts';
import type { GridCounts, StepCounts } from './step_state.ts';

/** Copied when the step is done, for the host. */
export interface ResultCopy {
  readonly to: GPUBuffer;
  readonly bytes: number;
}

interface Asked {
  readonly counts: GridCounts;
  readonly copy: ResultCopy;
}

/** Encodes the commands of steps, the likely next one ahead of time. */
export class StepCommands {
  readonly #device: GPUDevice;
  readonly #dispatches: readonly Dispatch[];
  readonly #results: GPUBuffer;
  /** The last step that was asked for, and the counts of the one that may come: those of the one after it, or its own when they repeat. */
  #last: Asked | undefined;
  #next: GridCounts | undefined;
  /** For a step that may come; a command buffer is submitted once. */
  #ready: { readonly asked: Asked; readonly commands: GPUCommandBuffer } | undefined;

  /** `results`: what every step leaves. */
  constructor(device: GPUDevice, dispatches: readonly Dispatch[], results: GPUBuffer) {
    this.#device = device;
    this.#dispatches = dispatches;
    this.#results = results;
  }

  /** To be submitted by its caller. */
  take(counts: StepCounts, copy: ResultCopy): GPUCommandBuffer {
    const [asked, ready, last] = [{ counts, copy }, this.#ready, this.#last];
    this.#ready = undefined;
    this.#last = asked;
    this.#next = counts.next ?? (last !== undefined && areEqual(last, asked) ? counts : undefined);
    return ready?.asked.copy.to === copy.to && areEqual(ready.asked, asked) ? ready.commands : this.#encode(asked);
  }

  /** The step that may come, with its results in another place. */
  prepare(to: GPUBuffer): void {
    if (!this.#last || !this.#next || this.#ready) return;
    const asked = { counts: this.#next, copy: { to, bytes: this.#last.copy.bytes } };
    this.#ready = { asked, commands: this.#encode(asked) };
  }

  /** The dispatches [first, end) of a step that is submitted in slices; with its last one `copy`. */
  encodeSlice(encoder: GPUCommandEncoder, counts: GridCounts, first: number, end: number, copy?: ResultCopy): void {
    const pass = encoder.beginComputePass();
    for (const { launch } of this.#dispatches.slice(first, end)) encode(pass, launch(counts));
    pass.end();
    if (copy && copy.bytes > 0) encoder.copyBufferToBuffer(this.#results, 0, copy.to, 0, copy.bytes);
  }

  #encode({ counts, copy }: Asked): GPUCommandBuffer {
    const encoder = this.#device.createCommandEncoder();
    this.encodeSlice(encoder, counts, 0, this.#dispatches.length, copy);
    return encoder.finish();
  }
}

function areEqual({ counts: a, copy }: Asked, { counts: b, copy: other }: Asked): boolean {
  return (
    copy.bytes === other.bytes &&
    a.rows === b.rows &&
    a.samples === b.samples &&
    a.decodeItems === b.decodeItems &&
    a.prefillItems === b.prefillItems &&
    a.merges === b.merges &&
    a.listed === b.listed &&
    a.sampled === b.sampled &&
    // Compare whether each round runs: the number of samples that take part in a round changes no command.
    a.weighed > 0 === b.weighed > 0 &&
    a.topK > 0 === b.topK > 0 &&
    a.topP > 0 === b.topP > 0
  );
}
