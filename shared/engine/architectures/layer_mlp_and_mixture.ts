/**
 * An MLP and a mixture of experts side by side, as Gemma 4 has them: both read the residual stream through norms of their own, and
 * their outputs, each normalised, are added, normalised together, and added to the stream.
 *
 *   x ─► norm ─► gate_up ─► its gate ─► down ─► norm ─────────────────────────────+► sum ─► norm ─+► x
 *   x ─► norm without weight · scale ─► router ─► route                           │
 *   x ─► norm ─► permute ─► experts ─► combine, by the weights of the route ─► norm ┘
 */
import type { TensorRows } from '../../../kernels/program.ts';
import type { LayerShape } from '../../model/model_shape.ts';
import { gateOf, matrix, modulesOf, type ProgramParts } from './program_parts.ts';

type Mixture = NonNullable<LayerShape['parallelMixture']>;

/** Emits both branches of layer `index`, and the norms of their sum. */
export function emitMlpAndMixture(program: ProgramParts, layer: LayerShape, mixture: Mixture, index: number): void {
  const { hidden } = program.shape;
  const { inner } = layer;
  const at = `model.layers.${index}`;
  const row = { rows: 'rows', width: hidden } as const;
  const [branch, sum] = [program.buffer('branch', row), program.buffer('mlp_sum', row)];
  const gateUp = program.buffer('gate_up', { rows: 'rows', width: 2 * inner });
  const gated = program.buffer('gated', { rows: 'rows', width: inner });
  const mlp = `${at}.mlp`;
  program.norm('x', `${at}.pre_feedforward_layernorm`, 'normed');
  const pair = modulesOf([`${mlp}.gate_proj`, `${mlp}.up_proj`], [inner, inner]);
  const toPair = { out: gateUp, accumulate: false };
  program.linear({ x: 'normed', name: `${at}.gate_up`, inner: hidden, modules: pair, hasBias: false, to: toPair });
  program.operations.push(gateOf(layer, gateUp, gated));
  const down = modulesOf([`${mlp}.down_proj`], [hidden]);
  const to = { out: branch, accumulate: false };
  program.linear({ x: gated, name: `${at}.down`, inner, modules: down, hasBias: false, to });
  program.norm(branch, `${at}.post_feedforward_layernorm_1`, sum);

  emitRouter(program, mixture, at);
  program.norm('x', `${at}.pre_feedforward_layernorm_2`, 'normed');
  emitExperts(program, layer, mixture, { at, out: branch });
  program.norm(branch, `${at}.post_feedforward_layernorm_2`, sum, { accumulate: true });

  const scalar = layer.hasScalar && !program.shape.layerInputs ? `${at}.layer_scalar` : undefined;
  program.norm(sum, `${at}.post_feedforward_layernorm`, 'x', { accumulate: true, scalar });
}

/** The router reads the residual stream through a norm without a weight, times a vector and 1 / √hidden. */
function emitRouter(program: ProgramParts, { experts: { count, perToken, isNormalised } }: Mixture, at: string): void {
  const { hidden, epsilon } = program.shape;
  const [scale, weight, expertScales] = ['scale', 'proj.weight', 'per_expert_scale'].map(
    (one) => `${at}.router.${one}`,
  );
  const logits = program.buffer('router', { rows: 'rows', width: count });
  const routes = program.buffer('routes', { rows: 'rows', width: 2 * perToken });
  program.vector(scale!, hidden);
  program.weights[weight!] = { ...matrix(hidden, [{ tensor: weight!, outputs: count }]), isExact: true };
  program.vector(expertScales!, count);
  program.operations.push(
    { kind: 'rms_norm', x: 'x', weight: scale!, out: 'normed', epsilon },
    { kind: 'linear', x: 'normed', weight: weight!, out: logits, accumulate: false, scale: 1 / Math.sqrt(hidden) },
    { kind: 'route', logits, routes, experts: count, perToken, isNormalised, expertScales: expertScales! },
  );
}

function emitExperts(
  program: ProgramParts,
  layer: LayerShape,
  { inner, experts: { count, perToken } }: Mixture,
  { at, out }: { readonly at: string; readonly out: string },
): void {
  const { hidden } = program.shape;
  const partsOf = (modules: readonly string[], outputs: number): TensorRows[] =>
    Array.from({ length: count }, (_, expert) =>
      modules.map((name) => ({ tensor: `${at}.experts.${expert}.${name}.weight`, outputs })),
    ).flat();
  const [gateUp, down] = [`${at}.experts.gate_up`, `${at}.experts.down`];
  program.weights[gateUp] = {
    ...matrix(hidden, partsOf(['gate_proj', 'up_proj'], inner)),
    expertOutputs: 2 * inner,
  };
  program.weights[down] = { ...matrix(inner, partsOf(['down_proj'], hidden)), expertOutputs: hidden };
  const perExpert = { rows: 'rows', perRow: perToken } as const;
  const permuted = program.buffer('permuted', { ...perExpert, width: hidden });
  const pair = program.buffer('expert_gate_up', { ...perExpert, width: 2 * inner });
  const gated = program.buffer('expert_gated', { ...perExpert, width: inner });
  const made = program.buffer('expert_out', { ...perExpert, width: hidden });
  program.operations.push(
    { kind: 'permute', x: 'normed', routes: 'routes', out: permuted },
    { kind: 'expert_linear', x: permuted, weight: gateUp, out: pair, experts: count },
    gateOf({ ...layer, inner }, pair, gated),
    { kind: 'expert_linear', x: gated, weight: down, out: made, experts: count },
    { kind: 'combine', x: made, routes: 'routes', out, accumulate: false },
  );
}
