/** Flows of blocks between processes, as members report them, with their speed of the last seconds. */
import type { Instance } from '../../../shared/placement/instance.ts';
import type { LinkView } from '../../../shared/protocol/router_api.ts';
import { RecentGrowth } from './recent_growth.ts';

/** Milliseconds over which a speed is measured. */
const SPEED_MS = 10_000;
/** Links that are listed (P1): the fastest, and of equal ones those that moved most. */
const MAX_LINKS = 4_096;

/** Speed of a flow: bytes at the last look, and their growth while it moves. */
interface Speed {
  bytes: number;
  bytesPerSecond: number;
  growth: RecentGrowth | undefined;
}

/** Speeds of a member's flows, by the keys of the flows. */
type Speeds = Map<string, Speed>;

/** Speeds of all flows. Bounded by the members and the flows that each of them reports. */
export class LinkViews {
  readonly #speeds = new WeakMap<Instance, Speeds>();

  /** Measures the speeds at router time `nowMs`; to be called about once a second. */
  measure(instances: readonly Instance[], nowMs: number): void {
    for (const instance of instances) {
      if (instance.flows.size === 0) continue;
      const known = this.#speeds.get(instance) ?? (new Map() as Speeds);
      this.#speeds.set(instance, known);
      for (const [key, { bytes }] of instance.flows) {
        const speed = known.get(key);
        if (speed) grow(speed, bytes, nowMs);
        else known.set(key, { bytes, bytesPerSecond: 0, growth: undefined });
      }
      if (known.size > instance.flows.size)
        for (const key of known.keys()) if (!instance.flows.has(key)) known.delete(key);
    }
  }

  /** Returns the links into these members. */
  list(instances: readonly Instance[]): LinkView[] {
    const names = new Map(instances.map(({ member }) => [member.address, member.name]));
    const isListed = this.#choice(instances);
    return instances.flatMap((instance) => {
      const speeds = this.#speeds.get(instance);
      const links: LinkView[] = [];
      for (const [key, { from, way, bytes, records, ms, failures }] of instance.flows) {
        const speed = speeds?.get(key)?.bytesPerSecond ?? 0;
        if (!isListed(speed, bytes)) continue;
        links.push({
          from: names.get(from) ?? from,
          to: instance.member.name,
          way,
          bytes,
          records,
          ms,
          failures,
          bytes_per_s: Math.round(speed),
        });
      }
      return links;
    });
  }

  /** Returns which links are among the first MAX_LINKS. Their numbers are sorted, not the links: there can be a million. */
  #choice(instances: readonly Instance[]): (speed: number, bytes: number) => boolean {
    const numFlows = instances.reduce((sum, { flows }) => sum + flows.size, 0);
    if (numFlows <= MAX_LINKS) return () => true;
    const ranks = new Float64Array(numFlows);
    let at = 0;
    for (const instance of instances) {
      const speeds = this.#speeds.get(instance);
      for (const [key, { bytes }] of instance.flows) ranks[at++] = rankOf(speeds?.get(key)?.bytesPerSecond ?? 0, bytes);
    }
    const least = ranks.sort()[numFlows - MAX_LINKS] ?? 0;
    let numLeft = MAX_LINKS;
    return (speed, bytes) => rankOf(speed, bytes) >= least && numLeft-- > 0;
  }
}

/** Returns a number that is larger for a faster link, and of links that rest for the one that has moved more. */
function rankOf(speed: number, bytes: number): number {
  return speed > 0 ? speed : -1 / (bytes + 1);
}

/** Measures a flow. One that rests takes no memory for its growth, and a comparison. */
function grow(speed: Speed, bytes: number, nowMs: number): void {
  if (speed.growth === undefined && bytes === speed.bytes) return;
  if (!speed.growth) {
    speed.growth = new RecentGrowth();
    speed.growth.within(speed.bytes, SPEED_MS, nowMs);
  }
  speed.bytes = bytes;
  speed.bytesPerSecond = (speed.growth.within(bytes, SPEED_MS, nowMs) * 1_000) / SPEED_MS;
  if (speed.bytesPerSecond === 0) speed.growth = undefined;
}
