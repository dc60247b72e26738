/** Model folders of any size that take no disk: their safetensors files have headers, and holes where the weights would be. */
import { closeSync, ftruncateSync, openSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { withHeader } from './checkpoint_folder.ts';

/** Sizes of a Llama with bf16 weights. */
export interface SparseSizes {
  readonly layers: number;
  readonly hidden: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly inner: number;
  readonly vocab: number;
  readonly maxPositions: number;
  readonly numFiles: number;
}

const HEAD_DIM = 128;
const BYTES = 2;

/** Writes config.json, an index and files of the stated sizes into `folder`; all weights read as zeros. */
export function writeSparseModel(folder: string, sizes: SparseSizes): void {
  const { layers, hidden, heads, kvHeads, inner, vocab, maxPositions, numFiles } = sizes;
  const config = {
    architectures: ['LlamaForCausalLM'],
    model_type: 'llama',
    hidden_act: 'silu',
    vocab_size: vocab,
    hidden_size: hidden,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: HEAD_DIM,
    intermediate_size: inner,
    max_position_embeddings: maxPositions,
    rms_norm_eps: 1e-5,
    rope_theta: 500_000,
    tie_word_embeddings: false,
    eos_token_id: 2,
  };
  writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
  const tensors = tensorsOf(sizes);
  const perFile = Math.ceil(tensors.length / numFiles);
  const weightMap: Record<string, string> = {};
  for (let i = 0; i < numFiles; i++) {
    const file = `model-${i}.safetensors`;
    let end = 0;
    const header: Record<string, object> = {};
    for (const [name, shape] of tensors.slice(i * perFile, (i + 1) * perFile)) {
      const start = end;
      end += BYTES * shape.reduce((a, b) => a * b, 1);
      header[name] = { dtype: 'BF16', shape, data_offsets: [start, end] };
      weightMap[name] = file;
    }
    const begin = withHeader(JSON.stringify(header), []);
    const opened = openSync(join(folder, file), 'w');
    writeSync(opened, begin);
    ftruncateSync(opened, begin.length + end);
    closeSync(opened);
  }
  writeFileSync(join(folder, 'model.safetensors.index.json'), JSON.stringify({ weight_map: weightMap }));
}

function tensorsOf({ layers, hidden, heads, kvHeads, inner, vocab }: SparseSizes): [string, number[]][] {
  const [query, kv] = [heads * HEAD_DIM, kvHeads * HEAD_DIM];
  const ofLayer = (i: number): [string, number[]][] => [
    [`model.layers.${i}.input_layernorm.weight`, [hidden]],
    [`model.layers.${i}.post_attention_layernorm.weight`, [hidden]],
    [`model.layers.${i}.self_attn.q_proj.weight`, [query, hidden]],
    [`model.layers.${i}.self_attn.k_proj.weight`, [kv, hidden]],
    [`model.layers.${i}.self_attn.v_proj.weight`, [kv, hidden]],
    [`model.layers.${i}.self_attn.o_proj.weight`, [hidden, query]],
    [`model.layers.${i}.mlp.gate_proj.weight`, [inner, hidden]],
    [`model.layers.${i}.mlp.up_proj.weight`, [inner, hidden]],
    [`model.layers.${i}.mlp.down_proj.weight`, [hidden, inner]],
  ];
  return [
    ['model.embed_tokens.weight', [vocab, hidden]],
    ['model.norm.weight', [hidden]],
    ['lm_head.weight', [vocab, hidden]],
    ...Array.from({ length: layers }, (_, i) => ofLayer(i)).flat(),
  ];
}
