/**
 * Mixture of experts: selects the experts of each row, permutes rows into the order of their experts, and combines the results. The
 * products in between are those of linear_*.as.ts, for the rows of one expert at a time.
 *
 *   routes   [rows] of [perToken] f32 weights, best first, then [perToken] u32: the experts, replaced by their
 *            expert slots in number_expert_slots
 *   routing  [experts + 1] u32: the first expert slot of each expert, and one past the last; then [expert slots] u32: the row of each
 */
import { exp1 } from './simd.as';

/**
 * Parameters of {@link route} and {@link number_expert_slots}: router logits [rows][experts] f32, routes and routing as drawn above.
 * Strides are bytes.
 */
// @ts-ignore: decorator
@unmanaged
export class RouteParams {
  logits: usize;
  logitsStride: usize;
  routes: usize;
  routesStride: usize;
  routing: usize;
  experts: u32;
  perToken: u32;
  isNormalised: u32;
  /** Factor of the weights. */
  scale: f32;
  /** Vector [experts] f32 that is added to sigmoid scores for the choice; 0: none. */
  bias: usize;
  /** Groups of experts, of which `groupsPerToken` are chosen first; 1: no groups. */
  groups: u32;
  groupsPerToken: u32;
  /** Vector [experts] f32 by which weights are multiplied; 0: none. */
  expertScales: usize;
}

/** Selects the `perToken` experts with the highest logits for each of rows [start, end), and stores their softmax weights. */
export function route(params: RouteParams, start: u32, end: u32): void {
  const experts = params.experts;
  const perToken = params.perToken;
  for (let row = start; row < end; row++) {
    const logits = params.logits + (row as usize) * params.logitsStride;
    const weights = params.routes + (row as usize) * params.routesStride;
    const chosen = weights + ((perToken as usize) << 2);
    for (let i: u32 = 0; i < perToken; i++) {
      let best: u32 = experts;
      let highest: f32 = 0;
      for (let expert: u32 = 0; expert < experts; expert++) {
        const logit = load<f32>(logits + ((expert as usize) << 2));
        if ((best == experts || logit > highest) && !is_among(expert, chosen, i)) {
          best = expert;
          highest = logit;
        }
      }
      store<u32>(chosen + ((i as usize) << 2), best);
      store<f32>(weights + ((i as usize) << 2), highest);
    }
    const most = load<f32>(weights);
    let sum: f32 = 0;
    if (params.isNormalised) {
      for (let i: u32 = 0; i < perToken; i++) sum += exp1(load<f32>(weights + ((i as usize) << 2)) - most);
    } else {
      for (let expert: u32 = 0; expert < experts; expert++) sum += exp1(load<f32>(logits + ((expert as usize) << 2)) - most);
    }
    for (let i: u32 = 0; i < perToken; i++) {
      const at = weights + ((i as usize) << 2);
      store<f32>(at, (exp1(load<f32>(at) - most) / sum) * params.scale);
    }
    scale_by_expert(params, weights, chosen);
  }
}

/** Multiplies the weights of a row, [per_token] f32, by the values of its chosen experts, where there are such values. */
export function scale_by_expert(params: RouteParams, weights: usize, chosen: usize): void {
  const scales = params.expertScales;
  if (scales == 0) return;
  for (let i: usize = 0; i < (params.perToken as usize) << 2; i += 4) {
    const scale = load<f32>(scales + ((load<u32>(chosen + i) as usize) << 2));
    store<f32>(weights + i, load<f32>(weights + i) * scale);
  }
}

// @ts-ignore: decorator
@inline
function is_among(expert: u32, chosen: usize, count: u32): bool {
  for (let i: u32 = 0; i < count; i++) if (load<u32>(chosen + ((i as usize) << 2)) == expert) return true;
  return false;
}

/** Numbers the expert slots of all rows. One thread calls this after all rows have been routed. */
export function number_expert_slots(params: RouteParams, rows: u32): void {
  const experts = params.experts;
  const perToken = params.perToken;
  const starts = params.routing;
  const order = starts + (((experts + 1) as usize) << 2);
  memory.fill(starts, 0, ((experts + 1) as usize) << 2);
  for (let row: u32 = 0; row < rows; row++) {
    const chosen = params.routes + (row as usize) * params.routesStride + ((perToken as usize) << 2);
    for (let i: u32 = 0; i < perToken; i++) {
      const at = starts + ((load<u32>(chosen + ((i as usize) << 2)) as usize) << 2);
      store<u32>(at, load<u32>(at) + 1);
    }
  }
  // Running sums turn counts into ends; walking the rows backwards then lowers each end to its start.
  let end: u32 = 0;
  for (let expert: u32 = 0; expert <= experts; expert++) {
    const at = starts + ((expert as usize) << 2);
    end += load<u32>(at);
    store<u32>(at, end);
  }
  for (let row = rows; row-- > 0; ) {
    const chosen = params.routes + (row as usize) * params.routesStride + ((perToken as usize) << 2);
    for (let i: u32 = 0; i < perToken; i++) {
      const to = chosen + ((i as usize) << 2);
      const at = starts + ((load<u32>(to) as usize) << 2);
      const expertSlot = load<u32>(at) - 1;
      store<u32>(at, expertSlot);
      store<u32>(to, expertSlot);
      store<u32>(order + ((expertSlot as usize) << 2), row);
    }
  }
}

/** Parameters of {@link permute}. */
// @ts-ignore: decorator
@unmanaged
export class PermuteParams {
  x: usize;
  out: usize;
  /** The row stride of both. */
  rowBytes: usize;
  /** [expert slots] u32 */
  order: usize;
}

/** out[expert slot, :] = x[order[expert slot], :] */
export function permute(params: PermuteParams, start: u32, end: u32): void {
  const bytes = params.rowBytes;
  for (let expertSlot = start; expertSlot < end; expertSlot++) {
    const row = load<u32>(params.order + ((expertSlot as usize) << 2));
    memory.copy(params.out + (expertSlot as usize) * bytes, params.x + (row as usize) * bytes, bytes);
  }
}

/** Parameters of {@link combine}; routes as drawn above. */
// @ts-ignore: decorator
@unmanaged
export class CombineParams {
  x: usize;
  out: usize;
  /** The row stride of both. */
  rowBytes: usize;
  routes: usize;
  routesStride: usize;
  perToken: u32;
  isAccumulating: u32;
}

/** out[r, :] (+)= sum of weight · x[expert slot, :], best first. Whole vectors: rows are padded. */
export function combine(params: CombineParams, start: u32, end: u32): void {
  const bytes = params.rowBytes;
  const perToken = params.perToken;
  const isAccumulating = params.isAccumulating;
  for (let row = start; row < end; row++) {
    const out = params.out + (row as usize) * bytes;
    const weights = params.routes + (row as usize) * params.routesStride;
    const expertSlots = weights + ((perToken as usize) << 2);
    for (let at: usize = 0; at < bytes; at += 16) {
      let sum = f32x4.splat(0);
      for (let i: u32 = 0; i < perToken; i++) {
        const weight = v128.load32_splat(weights + ((i as usize) << 2));
        const from = params.x + (load<u32>(expertSlots + ((i as usize) << 2)) as usize) * bytes;
        sum = f32x4.add(sum, f32x4.mul(weight, v128.load(from + at)));
      }
      v128.store(out + at, isAccumulating ? f32x4.add(v128.load(out + at), sum) : sum);
    }
  }
}
