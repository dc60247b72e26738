/**
 * Rotary frequencies: plain, and as models scale them to longer contexts than they were first trained for. The formulas, and the f32 in
 * which they are evaluated, are those of transformers' modeling_rope_utils.
 */
import assert from 'node:assert/strict';
import { z } from 'zod';
import { refuse, type ModelConfig } from '../../model/model_folder.ts';
import type { RopeScaling, RopeShape } from '../../model/model_shape.ts';
import { rotaryParameters, type RotaryParameters } from './decoder_rotary.ts';

/**
 * The scaling that rotary parameters ask for, of heads of which `dim` values are rotated; undefined: none.
 * @throws ModelError for one that lacks a number.
 */
function ropeScaling(config: ModelConfig, raw: RotaryParameters, dim: number): RopeScaling | undefined {
  const { kind, place } = raw;
  const needed = (
    key: 'factor' | 'low_freq_factor' | 'high_freq_factor' | 'original_max_position_embeddings',
  ): number => raw[key] ?? refuse(config, `${place} ${kind} without ${key}`);
  // Phi has this key at the top of the configuration, where it applies to every kind of scaling that has the key.
  const { original_max_position_embeddings: atTop } = config.read(originalSchema);
  switch (kind) {
    case 'default':
      return undefined;
    case 'proportional':
      return raw.factor === undefined ? undefined : { kind: 'linear', factor: raw.factor };
    case 'linear':
      return { kind, factor: needed('factor') };
    case 'llama3': {
      const [low, high] = [needed('low_freq_factor'), needed('high_freq_factor')];
      if (low >= high) refuse(config, `${place} llama3 with low_freq_factor ${low} and high_freq_factor ${high}`);
      const originalPositions = atTop ?? needed('original_max_position_embeddings');
      return { kind, factor: needed('factor'), lowFactor: low, highFactor: high, originalPositions };
    }
    case 'yarn': {
      const original = atTop ?? raw.original_max_position_embeddings;
      // Without `factor`, the ratio of the full context to the original context is used.
      const factor = raw.factor ?? (original === undefined ? needed('factor') : config.maxPositions / original);
      return {
        kind,
        factor,
        originalPositions: original ?? config.maxPositions,
        attentionFactor: raw.attention_factor ?? yarnAttention(factor, raw.mscale, raw.mscale_all_dim),
        betaFast: raw.beta_fast ?? 32,
        betaSlow: raw.beta_slow ?? 1,
        isTruncated: raw.truncate ?? true,
      };
    }
    case 'dynamic':
      return { kind, factor: needed('factor'), originalPositions: config.maxPositions };
    case 'longrope':
      return longrope(config, raw, dim, atTop ?? undefined);
  }
}

/**
 * Returns the rotary table of layers with a window, for models where they have rotary parameters of their own; `theta` is used when
 * those name none. @throws ModelError
 */
export function windowedRope(config: ModelConfig, headDim: number, theta: number): RopeShape {
  const own = rotaryParameters(config, 'sliding_attention', { isByLayers: true });
  if (own.partial_rotary_factor !== undefined) refuse(config, 'partial_rotary_factor of sliding_attention');
  return ropeShape(config, own, headDim, theta);
}

/**
 * Returns the rotary table of heads of `headDim` values; `theta` is used when the parameters name none, and `rotaryDim`, the values that
 * are rotated, when they name no share.
 * @throws ModelError for a share of a head that kernels cannot rotate
 */
export function ropeShape(
  config: ModelConfig,
  raw: RotaryParameters,
  headDim: number,
  theta: number,
  rotaryDim?: number,
): RopeShape {
  const partial = raw.partial_rotary_factor ?? (rotaryDim === undefined ? 1 : rotaryDim / headDim);
  const isProportional = raw.kind === 'proportional';
  const dim = isProportional ? 2 * Math.floor((headDim * partial) / 2) : Math.floor(headDim * partial);
  // Kernels process pairs of neighbours of each half, so a half must have an even number of values.
  if (dim < headDim && dim % 4 !== 0)
    refuse(config, raw.partial_rotary_factor === undefined ? `rotary_dim ${dim}` : `partial_rotary_factor ${partial}`);
  const scaling = ropeScaling(config, raw, dim);
  return {
    theta: raw.rope_theta ?? theta,
    dim,
    ...(isProportional ? { span: headDim } : {}),
    ...(scaling ? { scaling } : {}),
  };
}

const originalSchema = z.looseObject({ original_max_position_embeddings: z.number().positive().nullish() });

function longrope(config: ModelConfig, raw: RotaryParameters, dim: number, atTop: number | undefined): RopeScaling {
  const { place } = raw;
  const [short, long] = [raw.short_factor ?? [], raw.long_factor ?? []];
  if (short.length !== dim / 2 || long.length !== dim / 2)
    refuse(config, `${place} longrope with ${short.length} short and ${long.length} long factors for ${dim / 2}`);
  const originalPositions =
    atTop ??
    raw.original_max_position_embeddings ??
    refuse(config, `${place} longrope without original_max_position_embeddings`);
  // With `original_max_position_embeddings` at the top level, the ratio of both contexts wins over `factor`.
  const ofContexts = config.maxPositions / originalPositions;
  const factor = atTop ? ofContexts : (raw.factor ?? ofContexts);
  const attentionFactor =
    raw.attention_factor ?? (factor <= 1 ? 1 : Math.sqrt(1 + Math.log(factor) / Math.log(originalPositions)));
  return { kind: 'longrope', short, long, originalPositions, attentionFactor };
}

/**
 * The longest context of a model whose configuration names `maxPositions`. YaRN and linear scaling lengthen what a configuration names;
 * llama3 and longrope have it named whole already, and dynamic scaling goes beyond it only when more is asked for.
 */
export function scaledPositions(maxPositions: number, scaling: RopeScaling | undefined): number {
  if (scaling?.kind === 'yarn') return Math.floor(scaling.originalPositions * scaling.factor);
  return scaling?.kind === 'linear' ? Math.floor(maxPositions * scaling.factor) : maxPositions;
}

function yarnAttention(factor: number, mscale: number | undefined, mscaleAllDim: number | undefined): number {
  const of = (scale: number): number => (factor <= 1 ? 1 : 0.1 * scale * Math.log(factor) + 1);
  return mscale && mscaleAllDim ? of(mscale) / of(mscaleAllDim) : of(1);
}

/**
 * Resolves scaling that depends on the context length for a context of `numPositions`. The angles of a position must be the same in
 * every request, whatever its length, because KV is shared by prefix (K1).
 */
export function ropesServed(
  ropes: Readonly<Record<string, RopeShape>>,
  numPositions: number,
): Readonly<Record<string, RopeShape>> {
  return Object.fromEntries(Object.entries(ropes).map(([name, rope]) => [name, ropeServed(rope, numPositions)]));
}

function ropeServed(rope: RopeShape, numPositions: number): RopeShape {
  const { theta, dim, scaling } = rope;
  if (scaling?.kind === 'dynamic') {
    const { factor, originalPositions } = scaling;
    const grown = (factor * Math.max(numPositions, originalPositions)) / originalPositions - (factor - 1);
    // In f32: powers in f64 differ in their last bit among versions of V8, and the digest of the format includes this number.
    return { theta: Math.fround(theta * grown ** (dim / (dim - 2))), dim };
  }
  if (scaling?.kind === 'longrope') {
    const { short, long, originalPositions, attentionFactor } = scaling;
    return {
      theta,
      dim,
      scaling: { kind: 'divided', divisors: numPositions > originalPositions ? long : short, attentionFactor },
    };
  }
  return rope;
}

/** Returns the inverse frequencies, [dim / 2] f32, and the factor of all cosines and sines. */
export function ropeFrequencies({ theta, dim, span = dim, scaling }: RopeShape): {
  inverse: Float32Array;
  attentionFactor: number;
} {
  const plain = Float32Array.from({ length: dim / 2 }, (_, i) => (theta === 0 ? 0 : 1 / theta ** ((2 * i) / span)));
  switch (scaling?.kind) {
    case undefined:
      return { inverse: plain, attentionFactor: 1 };
    case 'linear':
      return { inverse: plain.map((value) => value / scaling.factor), attentionFactor: 1 };
    case 'llama3':
      return { inverse: plain.map((value) => llama3Frequency(value, scaling)), attentionFactor: 1 };
    case 'divided': {
      const { divisors, attentionFactor } = scaling;
      const inverse = plain.map((_, i) => 1 / (Math.fround(divisors[i]!) * Math.fround(theta ** ((2 * i) / dim))));
      return { inverse, attentionFactor };
    }
    case 'dynamic':
    case 'longrope':
      return assert.fail(`${scaling.kind} depends on the context that is served`);
    case 'yarn':
      return { inverse: yarnFrequencies(theta, dim, scaling), attentionFactor: scaling.attentionFactor };
  }
}

/** Long waves are stretched, short ones stay, those between are blended. */
function llama3Frequency(
  frequency: number,
  { factor, lowFactor, highFactor, originalPositions }: Extract<RopeScaling, { kind: 'llama3' }>,
): number {
  const wavelength = (2 * Math.PI) / frequency;
  if (wavelength > originalPositions / lowFactor) return frequency / factor;
  if (wavelength < originalPositions / highFactor) return frequency;
  const smooth = (originalPositions / wavelength - lowFactor) / (highFactor - lowFactor);
  return ((1 - smooth) * frequency) / factor + smooth * frequency;
}

/**
 * Frequencies with more than `betaFast` turns within the original context stay, those with fewer than `betaSlow` turns are divided by
 * `factor`, and those between are blended.
 */
function yarnFrequencies(
  theta: number,
  dim: number,
  { factor, originalPositions, betaFast, betaSlow, isTruncated }: Extract<RopeScaling, { kind: 'yarn' }>,
): Float32Array {
  const dimensionOf = (rotations: number): number =>
    (dim * Math.log(originalPositions / (rotations * 2 * Math.PI))) / (2 * Math.log(theta));
  const [first, last] = [dimensionOf(betaFast), dimensionOf(betaSlow)];
  const low = Math.max(isTruncated ? Math.floor(first) : first, 0);
  const high = Math.min(isTruncated ? Math.ceil(last) : last, dim - 1);
  const span = high === low ? 0.001 : high - low;
  return Float32Array.from({ length: dim / 2 }, (_, i) => {
    const frequency = 1 / theta ** ((2 * i) / dim);
    const stretched = Math.min(1, Math.max(0, (i - low) / span));
    return (frequency / factor) * stretched + frequency * (1 - stretched);
  });
}
