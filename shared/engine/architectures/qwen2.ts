import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';

const schema = z.looseObject({
  num_hidden_layers: z.int().positive(),
  use_sliding_window: z.boolean().nullish(),
  sliding_window: z.int().positive().nullish(),
  max_window_layers: z.int().nonnegative().nullish(),
  layer_types: z.array(z.string()).nullish(),
});

/** What transformers takes where a key is absent; a `null` window is none. */
const DEFAULTS = { window: 4_096, firstWindowed: 28 };

/** Tokens that each layer sees; 0: all. */
function windowsOf(config: ModelConfig): number[] {
  const raw = config.read(schema);
  const numLayers = raw.num_hidden_layers;
  const ofModel = raw.sliding_window === undefined ? DEFAULTS.window : (raw.sliding_window ?? 0);
  const window = raw.use_sliding_window ? ofModel : 0;
  const types = raw.layer_types;
  if (!types) {
    const first = raw.max_window_layers ?? DEFAULTS.firstWindowed;
    return Array.from({ length: numLayers }, (_, layer) => (layer >= first ? window : 0));
  }
  if (types.length !== numLayers) refuse(config, `${types.length} layer_types for ${numLayers} layers`);
  return types.map((type) => {
    if (type === 'full_attention') return 0;
    if (type !== 'sliding_attention') return refuse(config, `a layer of type ${type}`);
    if (window === 0) refuse(config, 'sliding_attention without use_sliding_window and a sliding_window');
    return window;
  });
}

/** Alibaba's Qwen2 and Qwen2.5: biases on q, k and v alone; a sliding window in some layers, where the configuration uses one. */
export const qwen2: Architecture = {
  modelTypes: ['qwen2'],
  shape: (config) => {
    const windows = windowsOf(config);
    const biases = { hasQkvBias: true, hasOutputBias: false, hasMlpBias: false };
    return decoderShape(config, biases, (layer) => windows[layer] ?? 0);
  },
  program: decoderProgram,
};
