import { z } from 'zod';
import { refuse } from '../../model/model_folder.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { commonWindow, windowedLayers } from './decoder_windows.ts';

const schema = z.looseObject({
  intermediate_size: z.int().positive(),
  num_local_experts: z.int().positive(),
  num_experts_per_tok: z.int().positive(),
  swiglu_alpha: z.number().positive().nullish(),
  swiglu_limit: z.number().positive().nullish(),
});

/** Values that transformers takes where the configuration has no such key. */
const DEFAULTS = { alpha: 1.702, limit: 7, window: 128, theta: 150_000 };

const mixture = { module: 'mlp', router: 'router', gate: 'gate_proj', up: 'up_proj', down: 'down_proj' };

/** OpenAI's gpt-oss: attention with sinks, every other layer with a window, and mixtures of experts with biases and a clamped gate. */
export const gptOss: Architecture = {
  modelTypes: ['gpt_oss'],
  shape: (config) => {
    const raw = config.read(schema);
    const { num_local_experts: count, num_experts_per_tok: perToken } = raw;
    if (perToken > count) refuse(config, `${perToken} of ${count} experts for each token`);
    const window = commonWindow(config, DEFAULTS.window);
    const windows = windowedLayers(config, (layer) => layer % 2 === 0);
    const experts = { count, perToken, isNormalised: true, hasBias: true };
    const clamp = { alpha: raw.swiglu_alpha ?? DEFAULTS.alpha, limit: raw.swiglu_limit ?? DEFAULTS.limit };
    return decoderShape(config, {
      layer: { hasSinks: true },
      theta: DEFAULTS.theta,
      windowOf: (layer) => (windows[layer] ? window : 0),
      mixtureOf: () => ({ inner: raw.intermediate_size, experts, clamp }),
    });
  },
  program: (shape, numPositions) => decoderProgram(shape, numPositions, { mixture }),
};
