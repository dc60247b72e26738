/** The mixture of experts of a decoder's layer. */
import assert from 'node:assert/strict';
import type { OperationOf, TensorRows } from '../../../kernels/program.ts';
import type { Experts, LayerShape } from '../../model/model_shape.ts';
import { gateOf, matrix, modulesOf, scaledBy, type ProgramParts } from './program_parts.ts';

/**
 * Emits the mixture of layer `index`: rows go from the norm to a router, are permuted into the order of their experts, and are
 * combined into one row per token again. The number of experts per token is the same in all layers.
 */
export function emitMixture(program: ProgramParts, layer: LayerShape, experts: Experts, index: number): void {
  const { hidden, branchScale } = program.shape;
  const { inner, norms } = layer;
  const { count, perToken, isNormalised, hasBias = false } = experts;
  const { mixture: names } = program.tensors;
  assert(names && norms === 'before', 'a mixture is normalised before it');
  const at = `model.layers.${index}`;
  const own = `${at}.${names.module}`;
  program.norm('x', `${at}.post_attention_layernorm`, 'normed');
  const router = `${own}.${names.router}`;
  program.weights[`${router}.weight`] = {
    ...matrix(hidden, [{ tensor: `${router}.weight`, outputs: count }]),
    isExact: true,
  };
  if (hasBias) program.vector(`${router}.bias`, count);
  const product = (name: string, modules: readonly string[], inputs: number, outputs: number) => {
    const partsOf = (what: string): TensorRows[] =>
      Array.from({ length: count }, (_, expert) =>
        modules.map((module) => ({ tensor: `${own}.experts.${expert}.${module}.${what}`, outputs })),
      ).flat();
    const [weight, bias] = [`${own}.${name}`, `${own}.${name}.bias`];
    program.weights[weight] = { ...matrix(inputs, partsOf('weight')), expertOutputs: modules.length * outputs };
    if (hasBias) program.weights[bias] = matrix(1, partsOf('bias'));
    return { weight, experts: count, ...(hasBias ? { bias } : {}) };
  };
  const gateUp = product('gate_up', [names.gate, names.up], hidden, inner);
  const down = product('down', [names.down], inner, hidden);
  const perExpert = { rows: 'rows', perRow: perToken } as const;
  const logits = program.buffer('router', { rows: 'rows', width: count });
  const routes = program.buffer('routes', { rows: 'rows', width: 2 * perToken });
  const permuted = program.buffer('permuted', { ...perExpert, width: hidden });
  const pair = program.buffer('expert_gate_up', { ...perExpert, width: 2 * inner });
  const gated = program.buffer('expert_gated', { ...perExpert, width: inner });
  const out = program.buffer('expert_out', { ...perExpert, width: hidden });
  program.operations.push(
    {
      kind: 'linear',
      x: 'normed',
      weight: `${router}.weight`,
      out: logits,
      accumulate: false,
      ...(hasBias ? { bias: `${router}.bias` } : {}),
    },
    {
      kind: 'route',
      logits,
      routes,
      experts: count,
      perToken,
      isNormalised,
      ...scoringOf(program, own, experts, branchScale),
    },
    { kind: 'permute', x: 'normed', routes, out: permuted },
    { kind: 'expert_linear', x: permuted, out: pair, ...gateUp },
    gateOf(layer, pair, gated),
    { kind: 'expert_linear', x: gated, out, ...down },
    { kind: 'combine', x: out, routes, out: 'x' },
  );
  if (experts.shared) emitSharedExperts(program, layer, experts.shared, own);
}

/**
 * Returns the fields of `route` for sigmoid scores, and adds the vector that is added to them; for softmax only the factor of the
 * weights, by which the branch is scaled.
 */
function scoringOf(
  program: ProgramParts,
  module: string,
  { count, sigmoid }: Experts,
  branchScale: number,
): Partial<OperationOf<'route'>> {
  if (!sigmoid) return scaledBy(branchScale);
  const { hasBias, groups, groupsPerToken, scale } = sigmoid;
  const bias = `${module}.${program.tensors.mixture?.bias}`;
  if (hasBias) program.vector(bias, count);
  return {
    scoring: 'sigmoid',
    ...(hasBias ? { bias } : {}),
    ...(groups > 1 ? { groups, groupsPerToken } : {}),
    ...scaledBy(scale * branchScale),
  };
}

/** Emits the MLP of the shared experts, all of them as one, which reads the same rows as the router and is added to `x`. */
function emitSharedExperts(
  program: ProgramParts,
  layer: LayerShape,
  { inner, isGated }: NonNullable<Experts['shared']>,
  module: string,
): void {
  const { hidden, branchScale } = program.shape;
  const own = `${module}.${program.tensors.mixture?.shared}`;
  const gateUp = program.buffer('gate_up', { rows: 'rows', width: 2 * inner });
  const gated = program.buffer('gated', { rows: 'rows', width: inner });
  const names = program.tensors.fused ? ['gate_up_proj'] : ['gate_proj', 'up_proj'];
  const pair = modulesOf(
    names.map((one) => `${own}.${one}`),
    [inner, inner],
  );
  const hasBias = false;
  const product = { out: gateUp, accumulate: false };
  program.linear({ x: 'normed', name: `${own}.gate_up`, inner: hidden, modules: pair, hasBias, to: product });
  program.operations.push(gateOf({ ...layer, inner }, gateUp, gated));
  if (isGated) {
    const [name, gate] = [
      `${module}.${program.tensors.mixture?.sharedGate}`,
      program.buffer('shared_gate', { rows: 'rows', width: 1 }),
    ];
    const ofRow = { out: gate, accumulate: false };
    program.linear({
      x: 'normed',
      name,
      inner: hidden,
      modules: [{ name, outputs: 1 }],
      hasBias,
      isExact: true,
      to: ofRow,
    });
    program.operations.push({ kind: 'sigmoid_mul', x: gated, width: inner, gate, first: 0, isPerRow: true });
  }
  const down = modulesOf([`${own}.down_proj`], [hidden]);
  const to = { out: 'x', accumulate: true, ...scaledBy(branchScale) };
  program.linear({ x: gated, name: `${own}.down`, inner, modules: down, hasBias, to });
}
