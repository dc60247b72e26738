/**
 * A step's commands, encoded before anybody asks for them: hundreds of calls into Dawn take longer than all else between a step's results
 * and the next one's submit. Two steps of equal counts have equal commands, and what else varies lies in a buffer, so while the device
 * computes the second of two such steps a third like them is encoded.
 */
import { encode, type Dispatch } from './dispatch_plan.ts';
import type { GridCounts } from './step_state.ts';

/** Copied when the step is done, for the host. */
export interface ResultCopy {
  readonly to: GPUBuffer;
  readonly bytes: number;
}

interface Asked {
  readonly counts: GridCounts;
  readonly copy: ResultCopy;
}

export class StepCommands {
  readonly #device: GPUDevice;
  readonly #dispatches: readonly Dispatch[];
  readonly #results: GPUBuffer;
  /** The last step that was asked for, and whether the one before was like it. */
  #last: Asked | undefined;
  #isRepeated = false;
  /** For a step that may come; a command buffer is submitted once. */
  #ready: { readonly asked: Asked; readonly commands: GPUCommandBuffer } | undefined;

  /** `results`: what every step leaves. */
  constructor(device: GPUDevice, dispatches: readonly Dispatch[], results: GPUBuffer) {
    this.#device = device;
    this.#dispatches = dispatches;
    this.#results = results;
  }

  /** To be submitted by its caller. */
  take(counts: GridCounts, copy: ResultCopy): GPUCommandBuffer {
    const [asked, ready, last] = [{ counts, copy }, this.#ready, this.#last];
    this.#ready = undefined;
    this.#last = asked;
    this.#isRepeated = last !== undefined && areEqual(last, asked);
    return ready?.asked.copy.to === copy.to && areEqual(ready.asked, asked) ? ready.commands : this.#encode(asked);
  }

  /** When the last step was like the one before: the next may be too, with its results in another place. */
  prepare(to: GPUBuffer): void {
    if (!this.#last || !this.#isRepeated || this.#ready) return;
    const asked = { counts: this.#last.counts, copy: { to, bytes: this.#last.copy.bytes } };
    this.#ready = { asked, commands: this.#encode(asked) };
  }

  /** The dispatches [first, end) of a step that is submitted in pieces; with its last one `copy`. */
  encodePiece(encoder: GPUCommandEncoder, counts: GridCounts, first: number, end: number, copy?: ResultCopy): void {
    const pass = encoder.beginComputePass();
    for (const { launch } of this.#dispatches.slice(first, end)) encode(pass, launch(counts));
    pass.end();
    if (copy && copy.bytes > 0) encoder.copyBufferToBuffer(this.#results, 0, copy.to, 0, copy.bytes);
  }

  #encode({ counts, copy }: Asked): GPUCommandBuffer {
    const encoder = this.#device.createCommandEncoder();
    this.encodePiece(encoder, counts, 0, this.#dispatches.length, copy);
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
    a.drawn === b.drawn &&
    // Which rounds there are, not how many draws take part in one.
    a.weighed > 0 === b.weighed > 0 &&
    a.topK > 0 === b.topK > 0 &&
    a.topP > 0 === b.topP > 0
  );
}
