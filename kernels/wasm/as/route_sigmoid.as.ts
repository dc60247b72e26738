/**
 * Routing of a mixture by sigmoid scores, with a bias for the choice and groups of experts. Parameters and results are those of `route`
 * in mixture.as.ts.
 *
 *   scratch  [experts] f32: what the choice compares, the scores with their bias; then [groups] f32: sums of each group's two best
 */
import { RouteParams, scale_by_expert } from './mixture.as';
import { exp1, exp4 } from './simd.as';

/** Value of an expert or a group that cannot be chosen any more. A biased score is far above. */
const TAKEN: f32 = -1e30;

/** Selects the `perToken` experts of each of rows [start, end) by their sigmoid scores, and stores their weights. */
export function route_sigmoid(params: RouteParams, start: u32, end: u32, scratch: usize): void {
  const experts = params.experts;
  const perToken = params.perToken;
  for (let row = start; row < end; row++) {
    const logits = params.logits + (row as usize) * params.logitsStride;
    const weights = params.routes + (row as usize) * params.routesStride;
    const chosen = weights + ((perToken as usize) << 2);
    score(logits, params.bias, experts, scratch);
    if (params.groupsPerToken < params.groups) {
      keep_groups(scratch, experts / params.groups, params.groups, params.groupsPerToken, scratch + ((experts as usize) << 2));
    }
    let sum: f32 = 0;
    for (let i: u32 = 0; i < perToken; i++) {
      const best = highest(scratch, experts);
      store<f32>(scratch + ((best as usize) << 2), TAKEN);
      const weight: f32 = sigmoid(load<f32>(logits + ((best as usize) << 2)));
      store<u32>(chosen + ((i as usize) << 2), best);
      store<f32>(weights + ((i as usize) << 2), weight);
      sum += weight;
    }
    const divisor: f32 = params.isNormalised ? sum + (1e-20 as f32) : 1;
    for (let i: u32 = 0; i < perToken; i++) {
      const at = weights + ((i as usize) << 2);
      store<f32>(at, (load<f32>(at) / divisor) * params.scale);
    }
    scale_by_expert(params, weights, chosen);
  }
}

/** to[e] = sigmoid(logits[e]) + bias[e], with the bits of {@link sigmoid}. */
function score(logits: usize, bias: usize, experts: u32, to: usize): void {
  const bytes = (experts as usize) << 2;
  const one = f32x4.splat(1);
  let at: usize = 0;
  for (; at + 16 <= bytes; at += 16) {
    const value = f32x4.div(one, f32x4.add(one, exp4(f32x4.neg(v128.load(logits + at)))));
    v128.store(to + at, bias ? f32x4.add(value, v128.load(bias + at)) : value);
  }
  for (; at < bytes; at += 4) {
    const value = sigmoid(load<f32>(logits + at));
    store<f32>(to + at, bias ? value + load<f32>(bias + at) : value);
  }
}

function sigmoid(value: f32): f32 {
  return (1.0 as f32) / ((1.0 as f32) + exp1(-value));
}

/** Takes the experts of all groups but the best `count` out of `values`. `sums`: room for one f32 per group. */
function keep_groups(values: usize, size: u32, groups: u32, count: u32, sums: usize): void {
  const groupBytes = (size as usize) << 2;
  for (let group: u32 = 0; group < groups; group++) {
    const from = values + (group as usize) * groupBytes;
    let best: f32 = load<f32>(from);
    let second: f32 = size > 1 ? TAKEN : 0;
    for (let at: usize = 4; at < groupBytes; at += 4) {
      const value = load<f32>(from + at);
      second = max<f32>(second, min<f32>(best, value));
      best = max<f32>(best, value);
    }
    store<f32>(sums + ((group as usize) << 2), best + second);
  }
  for (let group: u32 = 0; group < groups; group++) {
    const own = load<f32>(sums + ((group as usize) << 2));
    let numBetter: u32 = 0;
    for (let other: u32 = 0; other < groups; other++) {
      const value = load<f32>(sums + ((other as usize) << 2));
      if (value > own || (value == own && other < group)) numBetter++;
    }
    if (numBetter < count) continue;
    const from = values + (group as usize) * groupBytes;
    for (let at: usize = 0; at < groupBytes; at += 4) store<f32>(from + at, TAKEN);
  }
}

/** Returns the index of the highest value, the lowest one on ties. */
function highest(values: usize, count: u32): u32 {
  let best: u32 = 0;
  let most = load<f32>(values);
  for (let i: u32 = 1; i < count; i++) {
    const value = load<f32>(values + ((i as usize) << 2));
    if (value > most) {
      best = i;
      most = value;
    }
  }
  return best;
}
