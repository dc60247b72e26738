import { z } from 'zod';
import { refuse } from '../../model/model_folder.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { windowedRope } from './decoder_rope.ts';
import { commonWindow, windowedLayers } from './decoder_windows.ts';

const schema = z.looseObject({
  hidden_size: z.int().positive(),
  num_attention_heads: z.int().positive(),
  head_dim: z.int().positive().nullish(),
  rope_theta: z.number().positive().nullish(),
});

/** Values that transformers uses for absent keys: every so many layers one has full attention. */
const DEFAULTS = { pattern: 4, window: 4_096, theta: 500_000 };

/** Ai2's OLMo 3: as OLMo 2, with a window in three layers of four; only the full-attention layers have scaled rotary angles. */
export const olmo3: Architecture = {
  modelTypes: ['olmo3'],
  shape: (config) => {
    const raw = config.read(schema);
    const window = commonWindow(config, DEFAULTS.window);
    const isWindowed = windowedLayers(config, (layer) => (layer + 1) % DEFAULTS.pattern !== 0);
    if (isWindowed.includes(true) && window === 0) refuse(config, 'sliding_attention without a sliding_window');
    const headDim = raw.head_dim ?? raw.hidden_size / raw.num_attention_heads;
    const local = windowedRope(config, headDim, raw.rope_theta ?? DEFAULTS.theta);
    return decoderShape(config, {
      layer: { qkNorm: 'all', norms: 'after', hasMlpBias: false },
      model: { ropes: { local } },
      windowOf: (layer) => (isWindowed[layer] ? window : 0),
      ropeOf: (layer) => (isWindowed[layer] ? 'local' : 'plain'),
      theta: DEFAULTS.theta,
      hasRopesByLayers: true,
    });
  },
  program: decoderProgram,
};
