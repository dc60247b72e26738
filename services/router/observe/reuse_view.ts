/** `/api/reuse`: the hit ratio against the capacity of each model's pool. */
import type { Instance } from '../../../shared/placement/instance.ts';
import type { ReuseBody } from '../../../shared/protocol/router_api.ts';
import { ReuseCurve } from './reuse.ts';

/** Models that are followed (P1). */
const MAX_MODELS = 16;

/** Curves of all models. */
export class ReuseCurves {
  readonly #curves = new Map<string, ReuseCurve>();

  /** Counts that a request of a model looked the blocks of its prompt up; keys of two words each, the low word first. */
  look(model: string, keys: Int32Array): void {
    let curve = this.#curves.get(model);
    if (!curve) {
      if (this.#curves.size >= MAX_MODELS) return;
      curve = new ReuseCurve();
      this.#curves.set(model, curve);
    }
    curve.look(keys);
  }

  /**
   * Returns the curve of a model, with the tiers of all instances of the model and of all stores. `wallMs` is the time of day. Sizes are in
   * bytes of records as engines send them; without an engine that reports its work there are no points.
   */
  view(model: string, instances: readonly Instance[], wallMs: number): ReuseBody {
    const curve = this.#curves.get(model) ?? new ReuseCurve();
    const own = instances.filter((one) => one.model === model || one.model === undefined);
    const blockBytes = own.find(({ load }) => load?.work)?.load?.work?.blockBytes ?? 0;
    const capacities: Record<string, number> = {};
    for (const { load } of own) {
      for (const [tier, { capacityBytes }] of Object.entries(load?.tiers ?? {}))
        capacities[tier] = (capacities[tier] ?? 0) + capacityBytes;
    }
    const ratioAt = (bytes: number): number => digits(curve.hitRatio(blockBytes > 0 ? bytes / blockBytes : 0));
    const tiers = Object.entries(capacities).map(([tier, capacity_bytes]) => [
      tier,
      { capacity_bytes, hit_ratio: ratioAt(capacity_bytes), hit_ratio_doubled: ratioAt(2 * capacity_bytes) },
    ]);
    const points = blockBytes > 0 ? curve.curve : [];
    return {
      as_of: wallMs,
      sampled_keys: curve.sampledKeys,
      accesses: curve.accesses,
      curve: points.map(({ blocks, hitRatio }) => ({ bytes: blocks * blockBytes, hit_ratio: digits(hitRatio) })),
      tiers: Object.fromEntries(tiers) as ReuseBody['tiers'],
    };
  }
}

function digits(ratio: number): number {
  return Math.round(ratio * 1e4) / 1e4;
}
