/** Slots of a slab for a fetch, as an instance gives them. */
import { slotBytes, type Slab } from '../../shared/kv/slab.ts';
import type { Slots } from '../../shared/net/fetch/transfer.ts';
import { turn } from './until.ts';

/** At most so many at a time; whoever finds none waits for one until `signal` aborts. */
export function slotsOf(slab: Slab, recordBytes: number, signal: AbortSignal, most = Infinity): Slots {
  let numTaken = 0;
  return {
    acquire: async () => {
      for (;;) {
        signal.throwIfAborted();
        const slot = numTaken < most ? slab.allocate(recordBytes) : undefined;
        if (slot !== undefined) {
          numTaken++;
          return slot;
        }
        await turn();
      }
    },
    bytes: (slot) => slotBytes(slab.memory, slot, recordBytes),
    release: (slot) => {
      slab.release(slot);
      numTaken--;
    },
  };
}
