/** Slots of a slab for a fetch, as an instance gives them. */
import { systemClock } from '../../shared/base/clock.ts';
import { slotBytes, type Slab } from '../../shared/kv/slab.ts';
import type { Slots } from '../../shared/net/fetch/transfer.ts';

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
        await systemClock.sleep(2);
      }
    },
    bytes: (slot) => slotBytes(slab.memory, slot, recordBytes),
    release: (slot) => {
      slab.release(slot);
      numTaken--;
    },
  };
}
