/**
 * Memory that simulated processes of one host share: a driver of shared/net/transfer_thread/host_memory.ts. Half of all processes are on each of two
 * hosts.
 */
import { slotBytes } from '../../shared/kv/slab.ts';
import type { BorrowedMemory, HostMemory, OwnMemory } from '../../shared/net/transfer_thread/host_memory.ts';
import type { SimFabric } from './simulated_network.ts';
import type { SimProcess } from './simulation.ts';

/** Every fourth record is sent over the socket of its data channel, not read in place. */
const SENT_EVERY = 4;

interface BorrowedRecord extends OwnMemory {
  readonly numBytes: number;
}

export class SimMemories {
  readonly #fabric: SimFabric;
  /** Shared memory by name. The memory of a dead process stays readable. */
  readonly #shared = new Map<string, BorrowedRecord>();
  /** Called with each record, or frame of one, that is to be read in place. */
  readonly onLent: (record: Uint8Array, from: SimProcess) => void;

  constructor(fabric: SimFabric, onLent: SimMemories['onLent']) {
    this.#fabric = fabric;
    this.onLent = onLent;
  }

  of(process: SimProcess): HostMemory {
    const host = `host ${process.name.charCodeAt(process.name.length - 1) % 2}`;
    return {
      host,
      attach: (memory, isShared) => {
        let numAsked = 0;
        const own: BorrowedRecord = {
          numBytes: memory.buffer.byteLength,
          name: isShared ? `${host}/${process.name}/${this.#shared.size}` : '',
          bytes: (slot, length) => slotBytes(memory, slot, length),
          offsetOf: (start, end) => {
            if (++numAsked % SENT_EVERY === 0) return undefined;
            this.onLent(slotBytes(memory, start, end - start), process);
            return start;
          },
        };
        if (isShared) this.#shared.set(own.name, own);
        return own;
      },
      open: (name) => {
        const found = name.startsWith(host) ? this.#shared.get(name) : undefined;
        return found && this.#borrow(found);
      },
    };
  }

  #borrow(own: BorrowedRecord): BorrowedMemory {
    const { faults } = this.#fabric;
    return {
      at: (offset, length) => {
        if (offset + length > own.numBytes) return undefined;
        const record = Buffer.from(own.bytes(offset, length));
        if (!this.#fabric.isFaulty(faults.flipsPerMillion)) return record;
        this.#fabric.numFlips++;
        const at = this.#fabric.below(length);
        record[at] = (record[at] ?? 0) ^ (1 << this.#fabric.below(8));
        return record;
      },
      close: () => undefined,
    };
  }
}
