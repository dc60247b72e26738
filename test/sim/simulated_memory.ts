/**
 * Memory that simulated processes of one host share: a driver of shared/net/mover/host_memory.ts. Half of all processes are on each of two
 * hosts.
 */
import type { BorrowedMemory, HostMemory, LentMemory } from '../../shared/net/mover/host_memory.ts';
import type { SimFabric } from './simulated_network.ts';
import type { SimProcess } from './simulation.ts';

/** Of one lane: more goes over its socket. */
const MAX_PLACES = 4;

interface Shared {
  readonly proof: Buffer;
  readonly records: Map<number, Buffer>;
}

export class SimMemories {
  readonly #fabric: SimFabric;
  readonly #shared = new Map<string, Shared>();
  #nextPlace = 0;
  #numMade = 0;
  /** Of every record that is put into any. */
  readonly onPut: (record: Uint8Array, from: SimProcess) => void;

  constructor(fabric: SimFabric, onPut: SimMemories['onPut']) {
    this.#fabric = fabric;
    this.onPut = onPut;
  }

  of(process: SimProcess): HostMemory {
    const host = `host ${process.name.charCodeAt(process.name.length - 1) % 2}`;
    return {
      host,
      create: (name, proof) => this.#lend(`${host}/${name}/${this.#numMade++}`, proof, process),
      open: (path, proof) => {
        const found = path.startsWith(host) ? this.#shared.get(path) : undefined;
        return found?.proof.equals(proof) ? this.#borrow(found) : undefined;
      },
    };
  }

  #lend(path: string, proof: Buffer, process: SimProcess): LentMemory {
    const records = new Map<number, Buffer>();
    this.#shared.set(path, { proof: Buffer.from(proof), records });
    return {
      path,
      put: (record) => {
        if (records.size >= MAX_PLACES) return undefined;
        this.onPut(record, process);
        const place = this.#nextPlace++;
        records.set(place, Buffer.from(record));
        return place;
      },
      free: (place) => records.delete(place),
      close: () => {
        this.#shared.delete(path);
        records.clear();
      },
    };
  }

  #borrow({ records }: Shared): BorrowedMemory {
    const { faults } = this.#fabric;
    return {
      get: (place, from, into) => {
        // Nothing is left of it when its holder has gone.
        into.set(records.get(place)?.subarray(from, from + into.length) ?? []);
        if (!this.#fabric.isFaulty(faults.flipsPerMillion)) return;
        this.#fabric.numFlips++;
        const at = this.#fabric.below(into.length);
        into[at] = (into[at] ?? 0) ^ (1 << this.#fabric.below(8));
      },
      close: () => undefined,
    };
  }
}
