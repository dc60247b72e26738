/**
 * Builds the program of a decoder such as Llama and its relatives. Runs once, when a model is loaded, and emits operations over
 * named buffers.
 *
 *   x ─► [ norm ─► qkv ─► qk_norm ─► rope_store ─► attention ─► o ─► norm ─+► norm ─► gate_up ─► its gate ─► down ─► norm ─+► ] × layers
 *                                                        residual: x ──────┘                           residual: x ──────┘
 *   then the sampled rows only: gather ─► norm ─► logits ─► soft_cap ─► candidates ─► sample
 *
 * In a mixture of experts, rows go from the norm to a router, are permuted into the order of their experts, and are combined into
 * one row per token again. The shape decides which norms, caps, biases, windows, scales and gates there are.
 */
import assert from 'node:assert/strict';
import type { Operation, OperationOf, Program, RopeTable, TensorRows, WeightSpec } from '../../../kernels/program.ts';
import type { Activation, Experts, LayerShape, ModelShape, RopeShape } from '../../model/model_shape.ts';
import { ropeFrequencies, ropesServed } from './decoder_rope.ts';

const gates: Readonly<Record<Activation, 'silu_mul' | 'gelu_mul'>> = { silu: 'silu_mul', gelu_tanh: 'gelu_mul' };

/** How a checkpoint names and fuses the tensors of a decoder. */
export interface DecoderTensors {
  /** q, k and v lie in one tensor, gate and up in another. */
  readonly isFused?: boolean;
  /** Tensor names of a mixture-of-experts layer: the module, its router, and gate, up and down of each `experts.N`. */
  readonly mixture?: Readonly<Record<'module' | 'router' | 'gate' | 'up' | 'down', string>>;
}

/** Returns the program of a decoder; its rotary tables have `numPositions` positions. */
export function decoderProgram(shape: ModelShape, numPositions: number, tensors: DecoderTensors = {}): Program {
  const { hidden, layers, vocabSize } = shape;
  const program = new DecoderParts(shape, tensors);
  program.begin();
  layers.forEach((layer, i) => {
    program.attention(layer, i);
    program.mlp(layer, i);
  });
  program.end();

  const widest = (of: (layer: LayerShape) => number): number => Math.max(...layers.map(of));
  const ropes = Object.entries(ropesServed(shape.ropes, numPositions));
  const hasNormsAfter = layers.some(({ norms }) => norms !== 'before');
  return {
    operations: program.operations,
    weights: program.weights,
    buffers: {
      x: { rows: 'rows', width: hidden },
      normed: { rows: 'rows', width: hidden },
      qkv: { rows: 'rows', width: widest(({ heads, kvHeads, headDim }) => (heads + 2 * kvHeads) * headDim) },
      attended: { rows: 'rows', width: widest(({ heads, headDim }) => heads * headDim) },
      ...pairBuffers(layers.filter(({ experts }) => !experts)),
      ...mixtureBuffers(layers, hidden),
      ...(hasNormsAfter ? { branch: { rows: 'rows', width: hidden } } : {}),
      hidden: { rows: 'hidden', width: hidden },
      last: { rows: 'samples', width: hidden },
      last_normed: { rows: 'samples', width: hidden },
      logits: { rows: 'samples', width: vocabSize },
    },
    kv: layers.map(({ kvHeads, headDim }) => ({ planes: [kvHeads * headDim, kvHeads * headDim] })),
    rope: Object.fromEntries(ropes.map(([name, rope]) => [name, ropeTable(rope, numPositions)])),
  };
}

function pairBuffers(layers: readonly LayerShape[]): Program['buffers'] {
  if (layers.length === 0) return {};
  const inner = Math.max(...layers.map((layer) => layer.inner));
  return { gate_up: { rows: 'rows', width: 2 * inner }, gated: { rows: 'rows', width: inner } };
}

/** Returns the buffers of mixture-of-experts layers. `perRow` is the number of experts per token, which is the same in all layers. */
function mixtureBuffers(layers: readonly LayerShape[], hidden: number): Program['buffers'] {
  const mixtures = layers.filter(({ experts }) => experts);
  const [first] = mixtures;
  if (!first?.experts) return {};
  const { perToken: perRow } = first.experts;
  assert(
    mixtures.every(({ experts }) => experts?.perToken === perRow),
    'a token goes to as many experts in every layer',
  );
  const inner = Math.max(...mixtures.map((layer) => layer.inner));
  const count = Math.max(...mixtures.map(({ experts }) => experts?.count ?? 0));
  return {
    router: { rows: 'rows', width: count },
    routes: { rows: 'rows', width: 2 * perRow },
    permuted: { rows: 'rows', perRow, width: hidden },
    expert_gate_up: { rows: 'rows', perRow, width: 2 * inner },
    expert_gated: { rows: 'rows', perRow, width: inner },
    expert_out: { rows: 'rows', perRow, width: hidden },
  };
}

/** A matrix product: its input, its stacked modules, and its destination. */
interface Product {
  readonly x: string;
  readonly name: string;
  readonly inner: number;
  readonly modules: readonly { readonly name: string; readonly outputs: number; readonly firstRow?: number }[];
  readonly hasBias: boolean;
  readonly to: Pick<OperationOf<'linear'>, 'out' | 'accumulate' | 'scale'>;
}

/** Emits a decoder part by part. */
class DecoderParts {
  readonly operations: Operation[] = [];
  readonly weights: Record<string, WeightSpec> = {};
  readonly #shape: ModelShape;
  readonly #tensors: DecoderTensors;

  constructor(shape: ModelShape, tensors: DecoderTensors) {
    this.#shape = shape;
    this.#tensors = tensors;
  }

  begin(): void {
    const { hidden, vocabSize, embeddingScale } = this.#shape;
    this.weights['embed'] = matrix(hidden, [{ tensor: 'model.embed_tokens.weight', outputs: vocabSize }]);
    this.operations.push({ kind: 'embed', table: 'embed', out: 'x', ...scaledBy(embeddingScale) });
  }

  attention(layer: LayerShape, index: number): void {
    const { hidden, epsilon } = this.#shape;
    const { heads, kvHeads, headDim, rope, window, scoreScale, scoreCap, qkNorm, hasQkvBias, hasOutputBias } = layer;
    const at = `model.layers.${index}`;
    const own = `${at}.self_attn`;
    const [qWidth, kvWidth] = [heads * headDim, kvHeads * headDim];
    const shape = { heads, kvHeads, headDim };
    const after = layer.norms === 'before' ? '' : `${at}.post_attention_layernorm`;
    this.#branch(layer, { before: `${at}.input_layernorm`, after }, (x, to) => {
      const names = this.#tensors.isFused ? [`${own}.qkv_proj`] : ['q', 'k', 'v'].map((one) => `${own}.${one}_proj`);
      const modules = modulesOf(names, [qWidth, kvWidth, kvWidth]);
      const qkv = { out: 'qkv', accumulate: false };
      this.#linear({ x, name: `${at}.qkv`, inner: hidden, modules, hasBias: hasQkvBias, to: qkv });
      if (qkNorm !== 'none') {
        const [q, k] = qkNorm === 'head' ? [headDim, headDim] : [qWidth, kvWidth];
        const weight = `${own}.qk_norm`;
        const parts = [
          { tensor: `${own}.q_norm.weight`, outputs: q },
          { tensor: `${own}.k_norm.weight`, outputs: k },
        ];
        this.weights[weight] = this.#normWeight(parts);
        this.operations.push({ kind: 'qk_norm', qkv: 'qkv', weight, epsilon, span: qkNorm, ...shape });
      }
      this.operations.push({ kind: 'rope_store', qkv: 'qkv', layer: index, rope, ...shape });
      this.operations.push({
        ...{ kind: 'attention', qkv: 'qkv', out: 'attended', layer: index, scale: scoreScale, ...shape },
        ...(window > 0 ? { window } : {}),
        ...(scoreCap > 0 ? { cap: scoreCap } : {}),
      });
      const output = [{ name: `${own}.o_proj`, outputs: hidden }];
      this.#linear({ x: 'attended', name: `${at}.o`, inner: qWidth, modules: output, hasBias: hasOutputBias, to });
    });
  }

  mlp(layer: LayerShape, index: number): void {
    if (layer.experts) {
      this.#mixture(layer, layer.experts, index);
      return;
    }
    const { hidden } = this.#shape;
    const { inner, activation, hasMlpBias: hasBias } = layer;
    const at = `model.layers.${index}`;
    const own = `${at}.mlp`;
    const before = `${at}.${layer.norms === 'both' ? 'pre_feedforward' : 'post_attention'}_layernorm`;
    this.#branch(layer, { before, after: `${at}.post_feedforward_layernorm` }, (x, to) => {
      const names = this.#tensors.isFused ? [`${own}.gate_up_proj`] : [`${own}.gate_proj`, `${own}.up_proj`];
      const modules = modulesOf(names, [inner, inner]);
      const pair = { out: 'gate_up', accumulate: false };
      this.#linear({ x, name: `${at}.gate_up`, inner: hidden, modules, hasBias, to: pair });
      this.operations.push({ kind: gates[activation], gateUp: 'gate_up', out: 'gated', inner });
      const down = [{ name: `${own}.down_proj`, outputs: hidden }];
      this.#linear({ x: 'gated', name: `${at}.down`, inner, modules: down, hasBias, to });
    });
  }

  #mixture({ inner, activation, norms }: LayerShape, { count, perToken, isNormalised }: Experts, index: number): void {
    const { hidden, branchScale } = this.#shape;
    const { mixture: names } = this.#tensors;
    assert(names && norms === 'before' && branchScale === 1, 'a mixture is normalised before it, and added as it is');
    const at = `model.layers.${index}`;
    const own = `${at}.${names.module}`;
    this.#norm('x', `${at}.post_attention_layernorm`, 'normed');
    const router = `${own}.${names.router}.weight`;
    this.weights[router] = { ...matrix(hidden, [{ tensor: router, outputs: count }]), isExact: true };
    const ofAll = (modules: readonly string[], outputs: number): TensorRows[] =>
      Array.from({ length: count }, (_, expert) =>
        modules.map((name) => ({ tensor: `${own}.experts.${expert}.${name}.weight`, outputs })),
      ).flat();
    const [gateUp, down] = [`${own}.gate_up`, `${own}.down`];
    const pairs = ofAll([names.gate, names.up], inner);
    this.weights[gateUp] = { ...matrix(hidden, pairs), expertOutputs: 2 * inner };
    this.weights[down] = { ...matrix(inner, ofAll([names.down], hidden)), expertOutputs: hidden };
    const rows = { logits: 'router', routes: 'routes', experts: count, perToken, isNormalised };
    this.operations.push(
      { kind: 'linear', x: 'normed', weight: router, out: 'router', accumulate: false },
      { kind: 'route', ...rows },
      { kind: 'permute', x: 'normed', routes: 'routes', out: 'permuted' },
      { kind: 'expert_linear', x: 'permuted', weight: gateUp, out: 'expert_gate_up', experts: count },
      { kind: gates[activation], gateUp: 'expert_gate_up', out: 'expert_gated', inner },
      { kind: 'expert_linear', x: 'expert_gated', weight: down, out: 'expert_out', experts: count },
      { kind: 'combine', x: 'expert_out', routes: 'routes', out: 'x' },
    );
  }

  end(): void {
    const { hidden, vocabSize, isTied, logitScale, logitCap } = this.#shape;
    this.operations.push({ kind: 'gather_samples', x: 'x', out: 'last' });
    this.#norm('x', 'model.norm', 'hidden');
    this.#norm('last', 'model.norm', 'last_normed');
    if (!isTied) this.weights['lm_head'] = matrix(hidden, [{ tensor: 'lm_head.weight', outputs: vocabSize }]);
    const weight = isTied ? 'embed' : 'lm_head';
    this.operations.push({
      ...{ kind: 'linear', x: 'last_normed', weight, out: 'logits', accumulate: false },
      ...scaledBy(logitScale),
    });
    if (logitCap > 0) this.operations.push({ kind: 'soft_cap', x: 'logits', cap: logitCap });
    this.operations.push({ kind: 'candidates', logits: 'logits', vocab: vocabSize });
    this.operations.push({ kind: 'sample', logits: 'logits', vocab: vocabSize });
  }

  /**
   * Emits one residual branch: the norm before, the operations of `emit`, and the norm after. The product is added to the residual
   * stream `x`.
   */
  #branch(
    { norms }: LayerShape,
    { before, after }: { readonly before: string; readonly after: string },
    emit: (x: string, to: Product['to']) => void,
  ): void {
    const { branchScale } = this.#shape;
    if (norms !== 'after') this.#norm('x', before, 'normed');
    const x = norms === 'after' ? 'x' : 'normed';
    if (norms === 'before') {
      emit(x, { out: 'x', accumulate: true, ...scaledBy(branchScale) });
      return;
    }
    assert(branchScale === 1, 'no model scales what it normalises');
    emit(x, { out: 'branch', accumulate: false });
    this.#norm('branch', after, 'x', true);
  }

  #norm(x: string, module: string, out: string, accumulate = false): void {
    const { hidden, epsilon } = this.#shape;
    const weight = `${module}.weight`;
    this.weights[weight] = this.#normWeight([{ tensor: weight, outputs: hidden }]);
    this.operations.push({ kind: 'rms_norm', x, weight, out, epsilon, ...(accumulate ? { accumulate } : {}) });
  }

  #normWeight(parts: readonly TensorRows[]): WeightSpec {
    return { ...matrix(1, parts), ...(this.#shape.hasNormOffset ? { offset: 1 } : {}) };
  }

  #linear({ x, name, inner, modules, hasBias, to }: Product): void {
    const partsOf = (what: string): TensorRows[] =>
      modules.map(({ name: module, ...rows }) => ({ tensor: `${module}.${what}`, ...rows }));
    const bias = `${name}.bias`;
    this.weights[name] = matrix(inner, partsOf('weight'));
    if (hasBias) this.weights[bias] = matrix(1, partsOf('bias'));
    this.operations.push({ kind: 'linear', x, weight: name, ...(hasBias ? { bias } : {}), ...to });
  }
}

/** Returns each module by itself, or, when `names` has only one name, consecutive row ranges of that fused module. */
function modulesOf(names: readonly string[], outputs: readonly number[]): Product['modules'] {
  const [only] = names;
  if (names.length > 1 || only === undefined) return names.map((name, i) => ({ name, outputs: outputs[i]! }));
  let firstRow = 0;
  return outputs.map((count) => {
    firstRow += count;
    return { name: only, outputs: count, firstRow: firstRow - count };
  });
}

function scaledBy(scale: number): { readonly scale?: number } {
  return scale === 1 ? {} : { scale };
}

/** Angles in f32 as transformers computes them: inv_freq rounded, then position · inv_freq rounded. [positions, dim / 2] */
function ropeTable(shape: RopeShape, numPositions: number): RopeTable {
  const half = shape.dim / 2;
  const { inverse, attentionFactor } = ropeFrequencies(shape);
  const cos = new Float32Array(numPositions * half);
  const sin = new Float32Array(numPositions * half);
  for (let i = 0; i < half; i++) {
    const frequency = inverse[i] ?? 0;
    for (let position = 0; position < numPositions; position++) {
      const angle = Math.fround(position * frequency);
      cos[position * half + i] = Math.cos(angle) * attentionFactor;
      sin[position * half + i] = Math.sin(angle) * attentionFactor;
    }
  }
  return { dim: shape.dim, cos, sin };
}

function matrix(inner: number, parts: readonly TensorRows[]): WeightSpec {
  return { inner, outputs: parts.reduce((sum, { outputs }) => sum + outputs, 0), parts };
}
