/** Offsets of state planes for operations, and validation of the state slots of a batch. */
import assert from 'node:assert/strict';
import { DeviceError, type LoadOptions, type Segment } from './device.ts';
import { STATE_VALUE_BYTES, type StateLayout } from './state_layout.ts';

/**
 * Returns the byte offsets of a state plane within its layer (`inLayer`) and within a slot (`inSlot`). @throws DeviceError when the layout
 * lacks the plane or the plane has another size than the `values` that an operation needs.
 */
export function statePlaneAt(
  layout: StateLayout | undefined,
  layer: number,
  plane: number,
  values: number,
): { readonly inLayer: number; readonly inSlot: number } {
  const at = layout?.layers[layer];
  const found = at?.planes[plane];
  if (!at || found?.bytes !== values * STATE_VALUE_BYTES)
    throw new DeviceError(
      `plane ${plane} of layer ${layer} has ${(found?.bytes ?? 0) / STATE_VALUE_BYTES} values of recurrent state, and its operation needs ${values}`,
    );
  return { inLayer: found.offset, inSlot: at.offset + found.offset };
}

/** Number of slots for recurrent states that `options` ask for; 0 for a program without recurrent layers. */
export function numStateSlotsOf({ state, numStateSlots = 0 }: LoadOptions): number {
  return state && state.slotBytes > 0 ? numStateSlots : 0;
}

/** Checks the state slots of batches, because kernels check nothing. */
export class StateSlotCheck {
  readonly #numSlots: number;
  readonly #isNeeded: boolean;
  /** Number of the last batch that wrote each slot. */
  readonly #written: Uint32Array;
  #batch = 0;

  constructor(options: LoadOptions) {
    this.#numSlots = numStateSlotsOf(options);
    this.#isNeeded = (options.state?.slotBytes ?? 0) > 0;
    this.#written = new Uint32Array(this.#numSlots);
  }

  /**
   * Validates the state slots of a batch. @throws AssertionError when a segment has no state, names a slot that does not exist, saves out
   * of row order, or uses a slot that another segment writes.
   */
  check(batch: readonly Segment[]): void {
    if (!this.#isNeeded) return;
    this.#batch++;
    const written = this.#written;
    for (const { state, tokens } of batch) {
      if (!state) assert.fail('each segment of a program with recurrent layers says where its state is');
      let last = 0;
      for (const { rows, slot } of state.saves) {
        this.#checkSlot(slot);
        if (rows <= last || rows > tokens.length)
          assert.fail(
            `states of a segment are saved out of order: after ${rows} of ${tokens.length} rows, following one after ${last}`,
          );
        if (written[slot] === this.#batch) assert.fail(`two states of a step are saved in slot ${slot}`);
        written[slot] = this.#batch;
        last = rows;
      }
    }
    for (const { state } of batch) {
      const from = state?.from;
      if (from === undefined) continue;
      this.#checkSlot(from);
      if (written[from] === this.#batch && !state?.saves.some(({ slot }) => slot === from))
        assert.fail(`a segment begins with slot ${from}, which another segment of the step writes`);
    }
  }

  /** @throws AssertionError for a slot that does not exist. */
  checkSlots(slots: readonly number[]): void {
    slots.forEach((slot) => {
      this.#checkSlot(slot);
    });
  }

  #checkSlot(slot: number): void {
    if (!(slot >= 0 && slot < this.#numSlots)) assert.fail(`there are ${this.#numSlots} state slots, and no ${slot}`);
  }
}
