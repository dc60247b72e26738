/** Recurrent states of sequences that run one after another, each in a slot of its own. */
import type { Executable, Segment } from '../../kernels/device.ts';

/**
 * Returns the `state` of a segment of `rows` rows from position `start` on, whose sequence keeps its state in `slot`; nothing for a
 * program without recurrent layers.
 */
export function keptState(
  { numStateSlots }: Pick<Executable, 'numStateSlots'>,
  start: number,
  rows: number,
  slot = 0,
): Pick<Segment, 'state'> {
  if (numStateSlots === 0) return {};
  return { state: { ...(start > 0 ? { from: slot } : {}), saves: [{ rows, slot }] } };
}
