/**
 * The stores that members of the cluster may use: those that have answered a call at their address. Each change is published on the
 * bus with a version number.
 */
import type { Bus } from '../../../shared/bus/bus.ts';
import { subjects, toBytes, type Member } from '../../../shared/protocol/membership.ts';
import type { Instance } from '../../../shared/placement/instance.ts';

/** Set of the stores that count, with a version number that grows with each change. */
export class CountedStores {
  readonly #bus: Bus;
  /** Epoch of this router. */
  readonly #router: string;
  readonly #stores = new Set<Instance>();
  #version = 0;

  constructor(bus: Bus, router: string) {
    this.#bus = bus;
    this.#router = router;
  }

  /** Number of changes so far. A member that has missed a change requests the whole list. */
  get version(): number {
    return this.#version;
  }

  all(): Member[] {
    return [...this.#stores].map(({ member }) => member);
  }

  /** Adds or removes a store, and publishes the change. Instances of other roles are ignored. */
  set(instance: Instance, isCounted: boolean): void {
    const { member } = instance;
    if (member.role !== 'store' || this.#stores.has(instance) === isCounted) return;
    if (isCounted) this.#stores.add(instance);
    else this.#stores.delete(instance);
    this.#version++;
    const change = isCounted ? { came: [member], gone: [] } : { came: [], gone: [member] };
    this.#bus.publish(subjects.stores, toBytes({ router: this.#router, version: this.#version, ...change }));
  }
}
