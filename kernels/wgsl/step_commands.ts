/**
 * Encodes a step's commands ahead of time: hundreds of calls into Dawn take longer than all else between a step's results and the next
 * submit. Data that varies lies in a buffer, so commands depend only on a step's counts. While a step runs in which all sequences
 * decode, the step in which all of them continue is encoded; after two equal counts of other steps, a third step like them.
 */
import { encode, type Dispatch } from './dispatch_plan.ts';
import type { GridCounts, StepCounts } from './step_state.ts';

/** Copy of a step's results to a mappable buffer, part of the step's commands. */
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
  /**
   * Last step that was taken; #next has the counts expected of the following one: those predicted from the last step, or its own when
   * they repeat.
   */
  #last: Asked | undefined;
  #next: GridCounts | undefined;
  /** Commands of the expected step, encoded ahead; a command buffer can be submitted only once. */
  #ready: { readonly asked: Asked; readonly commands: GPUCommandBuffer } | undefined;

  /** `results` is the buffer that every step writes its results to. */
  constructor(device: GPUDevice, dispatches: readonly Dispatch[], results: GPUBuffer) {
    this.#device = device;
    this.#dispatches = dispatches;
    this.#results = results;
  }

  /** Returns the commands of a step, for the caller to submit: those encoded ahead if they fit, else new ones. */
  take(counts: StepCounts, copy: ResultCopy): GPUCommandBuffer {
    const [asked, ready, last] = [{ counts, copy }, this.#ready, this.#last];
    this.#ready = undefined;
    this.#last = asked;
    this.#next = counts.next ?? (last !== undefined && areEqual(last, asked) ? counts : undefined);
    return ready?.asked.copy.to === copy.to && areEqual(ready.asked, asked) ? ready.commands : this.#encode(asked);
  }

  /** Encodes the expected step ahead, with its results copied to `to`; does nothing when no step is expected. */
  prepare(to: GPUBuffer): void {
    if (!this.#last || !this.#next || this.#ready) return;
    const asked = { counts: this.#next, copy: { to, bytes: this.#last.copy.bytes } };
    this.#ready = { asked, commands: this.#encode(asked) };
  }

  /** Encodes the dispatches [first, end) of a step, then `copy`, which only the last slice of a step has. */
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
    a.hidden === b.hidden &&
    a.segments === b.segments &&
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
