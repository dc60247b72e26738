/** Attention of a decoder's layer: norm, q, k and v, norms of heads, rotation, storing, attention, output product. */
import type { KvLayer, TensorRows } from '../../../kernels/program.ts';
import type { LayerShape } from '../../model/model_shape.ts';
import { modulesOf, type Module, type ProgramParts } from './program_parts.ts';

/** Emits the attention branch of layer `index`. Returns what the layer stores per token. */
export function emitAttention(program: ProgramParts, layer: LayerShape, index: number): KvLayer {
  const { hidden } = program.shape;
  const { heads, headDim, rope, hasQkvBias, hasOutputBias } = layer;
  const at = `model.layers.${index}`;
  const own = `${at}.self_attn`;
  const qWidth = heads * headDim;
  const after = layer.norms === 'before' ? '' : `${at}.post_attention_layernorm`;
  const stored = storedBy(layer);
  const gatesAt = qWidth + stored.widths.reduce((sum, one) => sum + one, 0);
  const qkv = program.buffer('qkv', { rows: 'rows', width: gatesAt + (layer.hasOutputGate ? qWidth : 0) });
  const attended = program.buffer('attended', { rows: 'rows', width: qWidth });
  program.branch(layer, { before: `${at}.input_layernorm`, after }, (x, to) => {
    const names =
      program.tensors.fused === 'all'
        ? [`${own}.qkv_proj`]
        : ['q', ...stored.projections].map((one) => `${own}.${one}_proj`);
    const modules = layer.hasOutputGate ? gatedModules(own, layer) : modulesOf(names, [qWidth, ...stored.widths]);
    const product = { out: qkv, accumulate: false };
    program.linear({ x, name: `${at}.qkv`, inner: hidden, modules, hasBias: hasQkvBias, to: product });
    emitHeadNorms(program, layer, own, qkv);
    const { kvHeads, keys } = stored;
    program.operations.push({ kind: 'rope_store', qkv, layer: index, rope, heads, kvHeads, headDim, ...keys });
    emitScores(program, layer, index, { qkv, attended });
    if (layer.hasOutputGate)
      program.operations.push({ kind: 'sigmoid_mul', x: attended, width: qWidth, gate: qkv, first: gatesAt });
    const output = [{ name: `${own}.o_proj`, outputs: hidden }];
    program.linear({ x: attended, name: `${at}.o`, inner: qWidth, modules: output, hasBias: hasOutputBias, to });
  });
  return { planes: stored.widths };
}

/** Returns which parts of K and V a layer computes and stores: none where it reads another's, V alone where K follows from V. */
function storedBy({ kvHeads, headDim, kv }: LayerShape): {
  readonly projections: readonly ('k' | 'v')[];
  /** Values of a token in each plane, and in each part of a row after q. */
  readonly widths: readonly number[];
  readonly kvHeads: number;
  readonly keys: { readonly keys?: 'computed' };
} {
  const width = kvHeads * headDim;
  if (kv?.fromLayer !== undefined) return { projections: [], widths: [], kvHeads: 0, keys: {} };
  if (kv?.isOneProduct) return { projections: ['k'], widths: [width], kvHeads, keys: { keys: 'computed' } };
  return { projections: ['k', 'v'], widths: [width, width], kvHeads, keys: {} };
}

/** Emits the norms of q, and of k and v where the layer has its own. `own`: the module of the layer's attention. */
function emitHeadNorms(program: ProgramParts, layer: LayerShape, own: string, qkv: string): void {
  const { heads, headDim, qkNorm, kv } = layer;
  if (qkNorm === 'none') return;
  const { kvHeads, keys } = storedBy(layer);
  const [q, k] = qkNorm === 'head' ? [headDim, headDim] : [heads * headDim, layer.kvHeads * headDim];
  const weight = `${own}.qk_norm`;
  const ofKeys: TensorRows = { tensor: `${own}.k_norm.weight`, outputs: k };
  const hasKeys = kvHeads > 0 && !keys.keys;
  program.weights[weight] = program.normWeight([
    { tensor: `${own}.q_norm.weight`, outputs: q },
    ...(hasKeys ? [ofKeys] : []),
  ]);
  if (keys.keys) program.weights[keyNorm(own)] = program.normWeight([ofKeys]);
  program.operations.push({
    kind: 'qk_norm',
    qkv,
    weight,
    epsilon: program.shape.epsilon,
    span: qkNorm,
    heads,
    kvHeads,
    headDim,
    ...keys,
    ...(kv?.hasValueNorm ? { hasValueNorm: true } : {}),
  });
}

function keyNorm(attention: string): string {
  return `${attention}.k_norm`;
}

function emitScores(
  program: ProgramParts,
  { heads, kvHeads, headDim, rope, window, scoreScale, scoreCap, kv, hasSinks }: LayerShape,
  index: number,
  { qkv, attended }: { readonly qkv: string; readonly attended: string },
): void {
  const from = kv?.fromLayer ?? index;
  const sinks = `model.layers.${index}.self_attn.sinks`;
  if (hasSinks) program.vector(sinks, heads);
  program.operations.push({
    kind: 'attention',
    qkv,
    out: attended,
    layer: index,
    scale: scoreScale,
    heads,
    kvHeads,
    headDim,
    ...(window > 0 ? { window } : {}),
    ...(scoreCap > 0 ? { cap: scoreCap } : {}),
    ...(hasSinks ? { sinks } : {}),
    ...(from === index ? {} : { kvLayer: from }),
    ...(kv?.isOneProduct ? { keyNorm: keyNorm(`model.layers.${from}.self_attn`), keyRope: rope } : {}),
  });
}

/** Returns q, k, v and the gates, in this order. The product of q has the gates of each head after its q. */
function gatedModules(attention: string, { heads, kvHeads, headDim }: LayerShape): Module[] {
  const ofHeads = (first: number): Module[] =>
    Array.from({ length: heads }, (_, head) => ({
      name: `${attention}.q_proj`,
      outputs: headDim,
      firstRow: 2 * head * headDim + first,
    }));
  const stored = ['k', 'v'].map((one) => ({ name: `${attention}.${one}_proj`, outputs: kvHeads * headDim }));
  return [...ofHeads(0), ...stored, ...ofHeads(headDim)];
}
