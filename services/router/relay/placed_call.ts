/** A call that is placed at an instance: its work counts there until it ends, and its blocks are promised until they are computed. */
import type { Instance } from '../../../shared/placement/instance.ts';
import type { PlacedWork } from '../../../shared/placement/open_placements.ts';
import type { Source } from '../../../shared/protocol/messages.ts';
import type { Conductor } from '../../../shared/placement/conductor.ts';

/** One placed call, from its placement to its end (R2). */
export class PlacedCall {
  /** Number of the placement, which the call carries to the instance. */
  readonly placement: number;
  readonly #conductor: Conductor;
  readonly #instance: Instance;
  #endPromise: (() => void) | undefined;
  #endFetch: (() => void) | undefined;
  /** Whether the prompt is not computed yet. */
  isComputing = true;

  /** Places `work` at the instance. */
  constructor(conductor: Conductor, instance: Instance, work: PlacedWork) {
    this.#conductor = conductor;
    this.#instance = instance;
    this.placement = instance.place(work);
  }

  /** Promises the blocks `keys` at the instance, which has or fetches the first `heldTokens` for this call, from `sources`, and computes the others. */
  promise(keys: Int32Array, heldTokens: number, sources: readonly Source[]): this {
    this.#endPromise ??= this.#conductor.promise(this.#instance, keys, heldTokens, sources);
    return this;
  }

  /** Records that the instance fetches the blocks of `sources` for this call, some of which another one computes first. */
  fetch(sources: readonly Source[]): void {
    this.#endFetch ??= this.#conductor.fetch(this.#instance, sources);
  }

  /** Records that the prompt is computed: its blocks are at the instance, and no promise any more. */
  computed(): void {
    this.isComputing = false;
    this.#endPromise?.();
    this.#endPromise = undefined;
    this.#endFetch?.();
    this.#endFetch = undefined;
  }

  /** Records that the call has ended, with its promise. */
  end(): void {
    this.computed();
    this.#instance.end(this.placement);
  }
}
