import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { ModelShape, RopeShape } from '../../model/model_shape.ts';
import type { Architecture } from './architecture.ts';
import { decoderProgram } from './decoder.ts';
import { decoderShape } from './decoder_config.ts';
import { windowedRope } from './decoder_rope.ts';
import { commonWindow, windowedLayers } from './decoder_windows.ts';

const schema = z.looseObject({
  hidden_size: z.int().positive(),
  head_dim: z.int().positive(),
  query_pre_attn_scalar: z.number().positive(),
  attn_logit_softcapping: z.number().positive().nullish(),
  final_logit_softcapping: z.number().positive().nullish(),
  tie_word_embeddings: z.boolean().nullish(),
  rope_local_base_freq: z.number().positive().nullish(),
  sliding_window_pattern: z.int().positive().nullish(),
  use_bidirectional_attention: z.boolean().nullish(),
});

/**
 * Builds the shape that Gemma 2 and 3 share: scaled embeddings, norm weights stored less one, norms before and after each branch, and
 * by default a head tied to the embedding.
 */
function gemmaShape(
  config: ModelConfig,
  isWindowed: readonly boolean[],
  more: {
    readonly qkNorm: 'none' | 'head';
    /** The rotary table of layers with a window, where they have one of their own. */
    readonly localRope?: RopeShape;
    /** Caps used when the configuration has no such key; a `null` in the configuration means no cap. */
    readonly caps?: { readonly scores: number; readonly logits: number };
  },
): ModelShape {
  const raw = config.read(schema);
  const window = commonWindow(config);
  if (isWindowed.includes(true) && window === 0) refuse(config, 'sliding_attention without a sliding_window');
  if (raw.use_bidirectional_attention) refuse(config, 'use_bidirectional_attention');
  const { qkNorm, localRope, caps = { scores: 0, logits: 0 } } = more;
  const capOf = (given: number | null | undefined, absent: number): number =>
    given === undefined ? absent : (given ?? 0);
  return decoderShape(config, {
    activation: 'gelu_pytorch_tanh',
    layer: {
      qkNorm,
      norms: 'both',
      hasMlpBias: false,
      scoreScale: 1 / Math.sqrt(raw.query_pre_attn_scalar),
      scoreCap: capOf(raw.attn_logit_softcapping, caps.scores),
    },
    model: {
      isTied: raw.tie_word_embeddings ?? true,
      hasNormOffset: true,
      embeddingScale: Math.sqrt(raw.hidden_size),
      logitCap: capOf(raw.final_logit_softcapping, caps.logits),
      ...(localRope ? { ropes: { local: localRope } } : {}),
    },
    windowOf: (layer) => (isWindowed[layer] ? window : 0),
    ...(localRope ? { theta: GLOBAL_THETA, hasRopesByLayers: true, isLinearWhole: true } : {}),
    ropeOf: (layer) => (localRope && isWindowed[layer] ? 'local' : 'plain'),
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

/** Every so many layers one has full attention, when the configuration does not say. */
const GEMMA3_PATTERN = 6;
/** Rotary bases used when the configuration names none: of full-attention layers, and of layers with a window. */
const GLOBAL_THETA = 1_000_000;
const LOCAL_THETA = 10_000;

/** The text part of Google's Gemma 3: norms of q and k; layers with a window have a rotary base of their own. */
export const gemma3: Architecture = {
  modelTypes: ['gemma3_text'],
  shape: (config) => {
    const raw = config.read(schema);
    const pattern = raw.sliding_window_pattern ?? GEMMA3_PATTERN;
    const localRope = windowedRope(config, raw.head_dim, raw.rope_local_base_freq ?? LOCAL_THETA);
    return gemmaShape(
      config,
      windowedLayers(config, (layer) => (layer + 1) % pattern !== 0),
      { qkNorm: 'head', localRope },
    );
  },
  program: decoderProgram,
};
