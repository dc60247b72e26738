import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { ModelShape } from '../../model/model_shape.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { commonWindow, windowedLayers } from './decoder_windows.ts';

const schema = z.looseObject({
  hidden_size: z.int().positive(),
  head_dim: z.int().positive(),
  query_pre_attn_scalar: z.number().positive(),
  attn_logit_softcapping: z.number().positive().nullish(),
  final_logit_softcapping: z.number().positive().nullish(),
  tie_word_embeddings: z.boolean().nullish(),
  rope_local_base_freq: z.number().positive().nullish(),
  rope_parameters: z
    .looseObject({ sliding_attention: z.looseObject({ rope_theta: z.number().positive() }).nullish() })
    .nullish(),
  sliding_window_pattern: z.int().positive().nullish(),
  use_bidirectional_attention: z.boolean().nullish(),
});

/** What both have: scaled embeddings, norms before and after each branch, stored less one, and a head that is the embedding. */
function gemmaShape(
  config: ModelConfig,
  isWindowed: readonly boolean[],
  more: {
    readonly qkNorm: 'none' | 'head';
    readonly localTheta?: number;
    /** Where the configuration does not say; `null` is none. */
    readonly caps?: { readonly scores: number; readonly logits: number };
  },
): ModelShape {
  const raw = config.read(schema);
  const window = commonWindow(config);
  if (isWindowed.includes(true) && window === 0) refuse(config, 'sliding_attention without a sliding_window');
  if (raw.use_bidirectional_attention) refuse(config, 'use_bidirectional_attention');
  const { qkNorm, localTheta, caps = { scores: 0, logits: 0 } } = more;
  const capOf = (said: number | null | undefined, absent: number): number =>
    said === undefined ? absent : (said ?? 0);
  return decoderShape(config, {
    activation: 'gelu_pytorch_tanh',
    layer: {
      ...{ qkNorm, norms: 'both', hasMlpBias: false },
      scoreScale: raw.query_pre_attn_scalar ** -0.5,
      scoreCap: capOf(raw.attn_logit_softcapping, caps.scores),
    },
    model: {
      isTied: raw.tie_word_embeddings ?? true,
      hasNormOffset: true,
      embeddingScale: Math.sqrt(raw.hidden_size),
      logitCap: capOf(raw.final_logit_softcapping, caps.logits),
      ...(localTheta === undefined ? {} : { ropes: { local: { theta: localTheta, dim: raw.head_dim } } }),
    },
    windowOf: (layer) => (isWindowed[layer] ? window : 0),
    ropeOf: (layer) => (localTheta !== undefined && isWindowed[layer] ? 'local' : 'plain'),
  });
}

/** Google's Gemma 2: caps on scores and logits, a window in every other layer from the first on. */
export const gemma2: Architecture = {
  modelTypes: ['gemma2'],
  shape: (config) =>
    gemmaShape(
      config,
      windowedLayers(config, (layer) => layer % 2 === 0),
      { qkNorm: 'none', caps: { scores: 50, logits: 30 } },
    ),
  program: decoderProgram,
};

/** Layers up to the next that sees everything, where the configuration does not say. */
const GEMMA3_PATTERN = 6;
/** Of layers with a window, where it does not say. */
const LOCAL_THETA = 10_000;

/** The text part of Google's Gemma 3: norms of q and k; layers with a window have a rotary base of their own. */
export const gemma3: Architecture = {
  modelTypes: ['gemma3_text'],
  shape: (config) => {
    const raw = config.read(schema);
    const pattern = raw.sliding_window_pattern ?? GEMMA3_PATTERN;
    const localTheta = raw.rope_parameters?.sliding_attention?.rope_theta ?? raw.rope_local_base_freq ?? LOCAL_THETA;
    return gemmaShape(
      config,
      windowedLayers(config, (layer) => (layer + 1) % pattern !== 0),
      { qkNorm: 'head', localTheta },
    );
  },
  program: decoderProgram,
};
