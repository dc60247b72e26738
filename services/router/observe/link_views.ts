/** Flows of blocks between processes, as members report them, with their speed of the last seconds. */
import type { Instance } from '../cluster/instance.ts';
import type { LinkView } from './api_types.ts';
import { RecentGrowth } from './recent_growth.ts';

/** Milliseconds over which a speed is measured. */
const SPEED_MS = 10_000;
/** Links that are listed (P1): the fastest, and of equal ones those that moved most. */
const MAX_LINKS = 4_096;

/** Speeds of all flows. Bounded by the members and the flows that each of them reports. */
export class LinkViews {
  #growths = new WeakMap<Instance, Map<string, { readonly growth: RecentGrowth; bytesPerSecond: number }>>();

  /** Measures the speeds at router time `nowMs`; to be called about once a second. */
  measure(instances: readonly Instance[], nowMs: number): void {
    for (const instance of instances) {
      if (instance.flows.size === 0) continue;
      const known = this.#growths.get(instance) ?? new Map();
      this.#growths.set(instance, known);
      for (const [key, { bytes }] of instance.flows) {
        const speed = known.get(key) ?? { growth: new RecentGrowth(), bytesPerSecond: 0 };
        known.set(key, speed);
        speed.bytesPerSecond = (speed.growth.within(bytes, SPEED_MS, nowMs) * 1_000) / SPEED_MS;
      }
      for (const key of known.keys()) if (!instance.flows.has(key)) known.delete(key);
    }
  }

  /** Returns the links into these members. */
  list(instances: readonly Instance[]): LinkView[] {
    const names = new Map(instances.map(({ member }) => [member.address, member.name]));
    const links = instances.flatMap((instance) => {
      const speeds = this.#growths.get(instance);
      return Array.from(instance.flows, ([key, { from, way, bytes, records, ms, failures }]): LinkView => ({
        ...{ from: names.get(from) ?? from, to: instance.member.name, way, bytes, records, ms, failures },
        bytes_per_s: Math.round(speeds?.get(key)?.bytesPerSecond ?? 0),
      }));
    });
    if (links.length <= MAX_LINKS) return links;
    return links.sort((a, b) => b.bytes_per_s - a.bytes_per_s || b.bytes - a.bytes).slice(0, MAX_LINKS);
  }
}
