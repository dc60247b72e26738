/**
 * Latent attention (MLA) of a decoder's layer, in its absorbed form: a token keeps its normed latent and one rotated key for all heads.
 *
 *   x ─► q_a ─► norm ─► q_b ─► q ─┬─ plain part ─► key_up ──┐
 *   x ─► kv_a ─► latent, key ─────┴─► latent_store ─────────┴─► query ─► latent_attention ─► value_up ─► o ─► x
 *
 * A head's keys and values are products of the latent with its parts of `kv_b_proj`. Both are absorbed: the query is multiplied by the
 * key's part (key_up), and the attended latent by the value's part (value_up), so that no key or value of a head is ever made.
 * Prefill and decode are the same computation, so that bits depend on no chunk (E2). It costs prefill 2·rank + rotary multiply-adds for each head and
 * pair of tokens, where keys and values made per head would cost plain + rotary + value: 3.4 times as many with DeepSeek-V3's sizes
 * (1,088 to 320), 2.1 times with GLM-4.7-Flash's (1,088 to 512), in attention alone.
 */
import type { KvLayer, TensorRows } from '../../../kernels/program.ts';
import type { LatentShape, LayerShape } from '../../model/model_shape.ts';
import { matrix, type ProgramParts } from './program_parts.ts';

/** Epsilon of the norms of latents, whatever that of the other norms. */
const EPSILON = 1e-6;

/** Emits the attention branch of layer `index`. Returns what the layer stores per token: one plane. */
export function emitLatentAttention(
  program: ProgramParts,
  layer: LayerShape,
  latent: LatentShape,
  index: number,
): KvLayer {
  const { hidden } = program.shape;
  const { heads, rope, scoreScale, hasQkvBias, hasOutputBias } = layer;
  const { rank, plainDim, rotaryDim, valueDim, isInterleaved } = latent;
  const at = `model.layers.${index}`;
  const own = `${at}.self_attn`;
  const shape = { heads, rank, rotary: rotaryDim };
  const [qHead, key] = [plainDim + rotaryDim, rank + rotaryDim];
  const stored = program.buffer('latent', { rows: 'rows', width: key });
  const query = program.buffer('query', { rows: 'rows', width: heads * key });
  const attended = program.buffer('attended_latent', { rows: 'rows', width: heads * rank });
  const values = program.buffer('attended', { rows: 'rows', width: heads * valueDim });
  program.branch(layer, { before: `${at}.input_layernorm`, after: '' }, (x, to) => {
    const q = emitQueries(program, { x, own, width: heads * qHead, queryRank: latent.queryRank, hasBias: hasQkvBias });
    const modules = [{ name: `${own}.kv_a_proj_with_mqa`, outputs: key }];
    const product = { out: stored, accumulate: false };
    program.linear({ x, name: `${own}.kv_a`, inner: hidden, modules, hasBias: hasQkvBias, to: product });
    const parts = partsOfHeads(own, latent);
    const keyUp = headWeight(program, `${own}.key_up`, plainDim, heads, parts.key);
    const norm = `${own}.kv_a_layernorm.weight`;
    program.weights[norm] = program.normWeight([{ tensor: norm, outputs: rank }]);
    const valueUp = headWeight(program, `${own}.value_up`, rank, heads, parts.value);
    program.operations.push(
      { kind: 'head_linear', x: q, weight: keyUp, out: query, heads, xHead: qHead, outHead: key },
      {
        kind: 'latent_store',
        latent: stored,
        q,
        out: query,
        layer: index,
        weight: norm,
        epsilon: EPSILON,
        rope,
        qHead,
        isInterleaved,
        ...shape,
      },
      { kind: 'latent_attention', query, out: attended, layer: index, scale: scoreScale, ...shape },
      { kind: 'head_linear', x: attended, weight: valueUp, out: values, heads, xHead: rank, outHead: valueDim },
    );
    const output = [{ name: `${own}.o_proj`, outputs: hidden }];
    const inner = heads * valueDim;
    program.linear({ x: values, name: `${at}.o`, inner, modules: output, hasBias: hasOutputBias, to });
  });
  return { planes: [key] };
}

/** Where queries come from: the input `x`, the module of the layer's attention, and their width. */
interface Queries {
  readonly x: string;
  readonly own: string;
  readonly width: number;
  readonly queryRank: number | null;
  readonly hasBias: boolean;
}

/** Emits the product that makes queries, or two products with a norm between them. Returns the buffer of queries. */
function emitQueries(program: ProgramParts, { x, own, width, queryRank, hasBias }: Queries): string {
  const { hidden } = program.shape;
  const q = program.buffer('q', { rows: 'rows', width });
  const to = { out: q, accumulate: false };
  if (queryRank === null) {
    const modules = [{ name: `${own}.q_proj`, outputs: width }];
    program.linear({ x, name: `${own}.q`, inner: hidden, modules, hasBias: false, to });
    return q;
  }
  const low = program.buffer('query_latent', { rows: 'rows', width: queryRank });
  const normed = program.buffer('query_normed', { rows: 'rows', width: queryRank });
  const down = { out: low, accumulate: false };
  const first = [{ name: `${own}.q_a_proj`, outputs: queryRank }];
  program.linear({ x, name: `${own}.q_a`, inner: hidden, modules: first, hasBias, to: down });
  const weight = `${own}.q_a_layernorm.weight`;
  program.weights[weight] = program.normWeight([{ tensor: weight, outputs: queryRank }]);
  program.operations.push({ kind: 'rms_norm', x: low, weight, out: normed, epsilon: EPSILON });
  const second = [{ name: `${own}.q_b_proj`, outputs: width }];
  program.linear({ x: normed, name: `${own}.q`, inner: queryRank, modules: second, hasBias: false, to });
  return q;
}

/** Rows of the checkpoint that make keys and values of a head. */
interface HeadParts {
  readonly key: (head: number) => TensorRows;
  readonly value: (head: number) => TensorRows;
}

/** Returns where the checkpoint has the parts of each head: in one tensor whose rows alternate by heads, or in two. */
function partsOfHeads(own: string, { rank, plainDim, valueDim, isAbsorbed }: LatentShape): HeadParts {
  if (isAbsorbed) {
    return {
      key: (head) => ({ tensor: `${own}.k_b_proj.weight`, outputs: rank, firstRow: head * rank }),
      value: (head) => ({ tensor: `${own}.v_b_proj.weight`, outputs: valueDim, firstRow: head * valueDim }),
    };
  }
  const tensor = `${own}.kv_b_proj.weight`;
  const first = (head: number): number => head * (plainDim + valueDim);
  return {
    key: (head) => ({ tensor, outputs: rank, firstRow: first(head), transposedRows: plainDim }),
    value: (head) => ({ tensor, outputs: valueDim, firstRow: first(head) + plainDim }),
  };
}

/** Declares a weight of one matrix per head, [outputs, inner] each, and returns its name. */
function headWeight(
  program: ProgramParts,
  name: string,
  inner: number,
  heads: number,
  partOf: (head: number) => TensorRows,
): string {
  const parts = Array.from({ length: heads }, (_, head) => partOf(head));
  program.weights[name] = { ...matrix(inner, parts), expertOutputs: partOf(0).outputs };
  return name;
}
