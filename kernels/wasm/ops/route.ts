import { requireRouting } from '../../routing.ts';
import { Control } from '../shared_step.ts';
import { struct } from '../struct.ts';
import { operation, rowCost } from './operation.ts';

/** The `route` operation: selects each row's experts, threads splitting rows; after a barrier, one thread numbers the expert slots. */
export const route = operation('route', {
  params: struct('RouteParams', {
    logits: 'u32',
    logitsStride: 'u32',
    routes: 'u32',
    routesStride: 'u32',
    routing: 'u32',
    experts: 'u32',
    perToken: 'u32',
    isNormalised: 'u32',
    scale: 'f32',
    bias: 'u32',
    groups: 'u32',
    groupsPerToken: 'u32',
    expertScales: 'u32',
  }),
  bind: (op, { buffer, regions, weight }) => {
    requireRouting(op);
    const [logits, routes] = [buffer(op.logits), buffer(op.routes)];
    return {
      logits: logits.at,
      logitsStride: logits.stride,
      routes: routes.at,
      routesStride: routes.stride,
      routing: regions.routing,
      experts: op.experts,
      perToken: op.perToken,
      isNormalised: op.isNormalised ? 1 : 0,
      scale: op.scale ?? 1,
      bias: op.bias === undefined ? 0 : weight(op.bias).at,
      groups: op.groups ?? 1,
      groupsPerToken: op.groupsPerToken ?? 1,
      expertScales: op.expertScales === undefined ? 0 : weight(op.expertScales).at,
      isSigmoid: op.scoring === 'sigmoid' ? 1 : 0,
    };
  },
  run: (step, { params, fields }) => {
    const numRows = step.count(Control.numRows);
    if (fields.isSigmoid) step.kernels.route_sigmoid(params, ...step.share(numRows), step.scratch);
    else step.kernels.route(params, ...step.share(numRows));
    step.barrier.arrive();
    const [first, end] = step.share(1);
    if (first < end) step.kernels.number_expert_slots(params, numRows);
  },
  scratchBytes: ({ experts, groups = 1 }) => 4 * (experts + groups),
  cost: (op, loaded, batch) => rowCost(loaded, [op.logits, op.routes], batch),
});
