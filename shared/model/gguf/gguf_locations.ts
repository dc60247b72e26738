/** Where a GGUF file has each tensor of a model, by Hugging Face's names. */
import type { GgufFamily, TensorLocation } from './gguf_families.ts';

/** Norms that are stored as they are where the others have their 1. */
const PLAIN_NORMS = new Set(['linear_attn.norm']);
/** Halves of the tensor that has gates and ups of a layer's experts, by the tensors that other files have for each. */
const HALVES: Readonly<Record<string, 0 | 1 | undefined>> = { ffn_gate_exps: 0, ffn_up_exps: 1 };
/** Tensors of latent attention with a matrix for each head. */
const STACKED = new Set(['attn_k_b', 'attn_v_b']);

/**
 * Returns the location in a file of this family for each module, by Hugging Face name without `.weight` or `.bias`. `numExperts` is
 * the number of experts in each layer.
 */
export function tensorLocations(
  { modules, ends = {}, vectors = {}, experts, isInterleaved, hasWholeNorms }: GgufFamily,
  numLayers: number,
  numExperts: number,
): Map<string, TensorLocation> {
  const norm = hasWholeNorms ? { offset: 1 } : {};
  const locations = new Map<string, TensorLocation>([
    ['model.embed_tokens', { name: 'token_embd' }],
    ['model.norm', { name: 'output_norm', ...norm }],
    ['lm_head', { name: 'output' }],
    ...Object.entries(ends).map(([module, name]) => [module, { name }] as const),
  ]);
  for (let layer = 0; layer < numLayers; layer++) {
    const [to, from] = [`model.layers.${layer}`, `blk.${layer}`];
    for (const [module, name] of Object.entries(modules)) {
      const heads = name === 'attn_q' ? 'q' : name === 'attn_k' ? 'k' : undefined;
      locations.set(`${to}.${module}`, {
        name: `${from}.${name}`,
        ...(heads && isInterleaved ? { heads } : {}),
        ...(module.endsWith('norm') && !PLAIN_NORMS.has(module) ? norm : {}),
        ...(module.endsWith('.sinks') ? { isBare: true } : {}),
        ...(STACKED.has(name) ? { isStacked: true } : {}),
      });
    }
    for (const [tensor, location] of Object.entries(vectors))
      locations.set(`${to}.${tensor}`, { ...location, name: `${from}.${location.name}`, isWhole: true });
    for (const [module, name] of Object.entries(experts?.modules ?? {})) {
      const half = HALVES[name];
      const place = {
        name: `${from}.${name}`,
        ...(half === undefined ? {} : { fused: { name: `${from}.ffn_gate_up_exps`, half } }),
      };
      for (let expert = 0; expert < numExperts; expert++)
        locations.set(`${to}.${experts?.path}.${expert}.${module}`, { ...place, expert });
    }
  }
  return locations;
}
