/**
 * Mixtures of experts without their products (see expert_linear.ts): routing, permuting rows into the order of expert slots, combining
 * the results.
 */
import assert from 'node:assert/strict';
import { DeviceError } from '../../device.ts';
import { requireRouting } from '../../routing.ts';
import type { KernelSpec } from '../kernel.ts';
import { operation } from './operation.ts';

/** Maximum experts whose counts and bits fit a workgroup's memory. */
const MAX_EXPERTS = 1_024;

/** Chooses the best experts of each row and their weights; in a step of one row also numbers its expert slots. One workgroup per row. */
export const routeKernel = {
  name: 'route',
  params: {
    logits_stride: 'u32',
    routes_stride: 'u32',
    picks_at: 'u32',
    order_at: 'u32',
    items_at: 'u32',
    is_normalised: 'u32',
    scale: 'f32',
  },
  buffers: {
    logits: { access: 'read', dtype: 'f32' },
    bias: { access: 'read', dtype: 'f32' },
    expert_scales: { access: 'read', dtype: 'f32' },
    routes: { access: 'read_write', dtype: 'u32' },
    routing: { access: 'read_write', dtype: 'u32' },
  },
  constants: {
    WORKGROUP_SIZE: 64,
    EXPERTS: 8,
    PER_TOKEN: 2,
    SIGMOID: 0,
    HAS_BIAS: 0,
    HAS_SCALES: 0,
    GROUPS: 1,
    GROUPS_PER_TOKEN: 1,
  },
} as const satisfies KernelSpec;

/** Numbers the expert slots by expert, then by row, and forms the items of products, in steps of several rows; one workgroup. */
export const numberExpertSlotsKernel = {
  name: 'number_expert_slots',
  params: { routes_stride: 'u32', picks_at: 'u32', order_at: 'u32', items_at: 'u32', tiled_rows: 'u32' },
  buffers: {
    step: { access: 'read', dtype: 'u32' },
    routing: { access: 'read_write', dtype: 'u32' },
    routes: { access: 'read_write', dtype: 'u32' },
  },
  constants: { WORKGROUP_SIZE: 256, EXPERTS: 8, PER_TOKEN: 2 },
} as const satisfies KernelSpec;

/** `out[expert slot, :] = x[row of the expert slot, :]`, one workgroup per expert slot. */
export const permuteKernel = {
  name: 'permute',
  params: { stride: 'u32', order_at: 'u32' },
  buffers: {
    x: { access: 'read', dtype: 'vec4f' },
    routing: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'vec4f' },
  },
  constants: { WORKGROUP_SIZE: 64 },
} as const satisfies KernelSpec;

/** `out[r, :] (+)= sum of weight · x[expert slot, :]`, one workgroup per row. */
export const combineKernel = {
  name: 'combine',
  params: { stride: 'u32', routes_stride: 'u32', per_token: 'u32', is_accumulating: 'u32' },
  buffers: {
    x: { access: 'read', dtype: 'vec4f' },
    routes: { access: 'read', dtype: 'u32' },
    out: { access: 'read_write', dtype: 'vec4f' },
  },
  constants: { WORKGROUP_SIZE: 128 },
} as const satisfies KernelSpec;

/**
 * Adds the dispatches of `route`: the choice of experts, then, in steps of several rows, the numbering of expert slots. @throws
 * DeviceError for more than MAX_EXPERTS experts, or more experts per token than a workgroup has threads.
 */
export const route = operation('route', (plan, op) => {
  const { experts, perToken, bias } = op;
  requireRouting(op);
  if (experts > MAX_EXPERTS)
    throw new DeviceError(`the webgpu device takes mixtures of up to ${MAX_EXPERTS} experts, not ${experts}`);
  const most = routeKernel.constants.WORKGROUP_SIZE;
  if (perToken > most) throw new DeviceError(`the webgpu device takes up to ${most} experts a token, not ${perToken}`);
  const [logits, routes] = [plan.buffer(op.logits), plan.buffer(op.routes)];
  const { step, routing } = plan.resources;
  const { picksAt, orderAt, itemsAt, tiledRows } = plan.routing;
  const constants = { EXPERTS: experts, PER_TOKEN: perToken };
  plan.push({
    spec: routeKernel,
    specialisation: {
      constants: {
        ...constants,
        SIGMOID: op.scoring === 'sigmoid' ? 1 : 0,
        HAS_BIAS: bias === undefined ? 0 : 1,
        HAS_SCALES: op.expertScales === undefined ? 0 : 1,
        GROUPS: op.groups ?? 1,
        GROUPS_PER_TOKEN: op.groupsPerToken ?? 1,
      },
    },
    params: {
      logits_stride: logits.stride,
      routes_stride: routes.stride,
      picks_at: picksAt,
      order_at: orderAt,
      items_at: itemsAt,
      is_normalised: op.isNormalised ? 1 : 0,
      scale: op.scale ?? 1,
    },
    bindings: {
      logits: logits.buffer,
      routes: routes.buffer,
      routing,
      bias: plan.optionalVector(bias),
      expert_scales: plan.optionalVector(op.expertScales),
    },
    grid: ({ rows }) => [rows, 1, 1],
    work: ({ rows }) => ({ bytes: rows * experts * 4, flops: 0 }),
  });
  plan.push({
    spec: numberExpertSlotsKernel,
    specialisation: { constants },
    params: {
      routes_stride: routes.stride,
      picks_at: picksAt,
      order_at: orderAt,
      items_at: itemsAt,
      tiled_rows: tiledRows,
    },
    bindings: { step, routing, routes: routes.buffer },
    // In a step of one row, routeKernel numbers the expert slots itself.
    grid: ({ rows }) => [rows > 1 ? 1 : 0, 1, 1],
    work: ({ rows }) => ({ bytes: rows * perToken * 16, flops: 0 }),
  });
});

/** Adds the dispatch of `permute`, where it is not fused into an expert's product. */
export const permute = operation('permute', (plan, op) => {
  const [x, out] = [plan.buffer(op.x), plan.buffer(op.out)];
  assert(x.stride === out.stride, `permute ${op.x}: widths differ`);
  const { perRow = 1 } = out.spec;
  plan.push({
    spec: permuteKernel,
    params: { stride: x.stride, order_at: plan.routing.orderAt },
    bindings: { x: x.buffer, routing: plan.resources.routing, out: out.buffer },
    grid: ({ rows }) => [rows, perRow, 1],
    work: ({ rows }) => ({ bytes: rows * perRow * x.stride * 8, flops: 0 }),
  });
});

/** Adds the dispatch of `combine`. */
export const combine = operation('combine', (plan, op) => {
  const [x, routes, out] = [plan.buffer(op.x), plan.buffer(op.routes), plan.buffer(op.out)];
  assert(x.stride === out.stride, `combine ${op.x}: widths differ`);
  const { perRow = 1 } = x.spec;
  plan.push({
    spec: combineKernel,
    params: {
      stride: x.stride,
      routes_stride: routes.stride,
      per_token: perRow,
      is_accumulating: op.accumulate === false ? 0 : 1,
    },
    bindings: { x: x.buffer, routes: routes.buffer, out: out.buffer },
    grid: ({ rows }) => [rows, 1, 1],
    work: ({ rows }) => ({ bytes: rows * (perRow + 2) * x.stride * 4, flops: 0 }),
  });
});
