/** Reads from configurations which layers of a decoder have an attention window, and of how many tokens. */
import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';

/** A layer's kind as newer configurations name it. */
const layerTypes = { sliding_attention: true, full_attention: false } as const;

const windowsSchema = z.looseObject({
  num_hidden_layers: z.int().positive(),
  sliding_window: z.int().positive().nullish(),
  layer_types: z.array(z.string()).nullish(),
});

/**
 * Returns for each layer whether it has an attention window: from `layer_types`, or from `isWindowed` when the configuration has none.
 * @throws ModelError for an unknown layer type, or when the number of types is not the number of layers.
 */
export function windowedLayers(config: ModelConfig, isWindowed: (layer: number) => boolean): boolean[] {
  const { num_hidden_layers: numLayers, layer_types: types } = config.read(windowsSchema);
  if (!types) return Array.from({ length: numLayers }, (_, i) => isWindowed(i));
  if (types.length !== numLayers) refuse(config, `${types.length} layer_types for ${numLayers} layers`);
  return types.map((type) => {
    if (!Object.hasOwn(layerTypes, type)) return refuse(config, `a layer of type ${type}`);
    return layerTypes[type as keyof typeof layerTypes];
  });
}

/**
 * Returns the attention window that all windowed layers share, in tokens; 0 when `sliding_window` is null, and `absent` when the
 * configuration has no such key.
 */
export function commonWindow(config: ModelConfig, absent = 0): number {
  const { sliding_window: window } = config.read(windowsSchema);
  return window === undefined ? absent : (window ?? 0);
}

const optionalSchema = z.looseObject({
  use_sliding_window: z.boolean().nullish(),
  sliding_window: z.int().positive().nullish(),
  max_window_layers: z.int().nonnegative().nullish(),
});

/** Values that transformers uses for absent keys; a `null` window means no window. */
const DEFAULTS = { window: 4_096, firstWindowed: 28 };

/** Tokens that each layer sees, where a configuration may have a window and not use it, as Qwen's do; 0: all. */
export function optionalWindows(config: ModelConfig): number[] {
  const raw = config.read(optionalSchema);
  const ofModel = raw.sliding_window === undefined ? DEFAULTS.window : (raw.sliding_window ?? 0);
  const window = raw.use_sliding_window ? ofModel : 0;
  const first = raw.max_window_layers ?? DEFAULTS.firstWindowed;
  const isConfigured = windowedLayers(config, () => false).some((one) => one);
  if (isConfigured && window === 0) refuse(config, 'sliding_attention without use_sliding_window and a sliding_window');
  return windowedLayers(config, (layer) => layer >= first).map((isWindowed) => (isWindowed ? window : 0));
}
