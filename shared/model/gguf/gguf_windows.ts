/** Layers with an attention window, as the metadata of a GGUF file names them. */
import type { Keys } from './gguf_keys.ts';

/**
 * Returns `layer_types` of a model whose file has either a flag for each layer, or every how many layers one has full attention;
 * `pattern` where it has neither. @throws Error for as many flags as there are no layers
 */
export function layerTypes(keys: Keys, numLayers: number, pattern: number): string[] {
  const key = 'attention.sliding_window_pattern';
  const flags = keys.list(key);
  // Layers that predict further tokens may stand after those of the model.
  if (flags && flags.length < numLayers) keys.refuse(key, `has ${flags.length} values for ${numLayers} layers`);
  const period = flags ? pattern : (keys.number(key) ?? pattern);
  return Array.from({ length: numLayers }, (_, layer) => {
    const isWindowed = flags ? Boolean(flags[layer]) : (layer + 1) % period !== 0;
    return isWindowed ? 'sliding_attention' : 'full_attention';
  });
}
