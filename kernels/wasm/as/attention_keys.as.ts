/**
 * Keys that a layer does not store, because they follow from its values: k = rotated(weight · v), the weight of the norm of keys times
 * values that were normalised before they were stored. They are computed from the rounded values, a block at a time, for few and for
 * many queries alike.
 */
import { AttentionParams } from './attention_params.as';
import { load4_f16 } from './simd.as';

/**
 * Computes the keys of `numTokens` tokens of one KV head, the first of them at `position`, from `values` [tokens][head_dim] f32.
 * `together`: tokens whose vectors alternate in `to`, [tokens / together][head_dim / 4][together][4] f32; 1 or 2.
 */
export function compute_keys(
  params: AttentionParams,
  values: usize,
  position: u32,
  numTokens: u32,
  to: usize,
  together: u32,
): void {
  const headBytes: usize = (params.headDim as usize) << 2;
  const weight = params.keyNorm;
  const angleBytes: usize = (params.rotaryDim as usize) << 1;
  const apart: usize = (params.pairDistance as usize) << 2;
  let cos = params.cos + (position as usize) * angleBytes;
  let sin = params.sin + (position as usize) * angleBytes;
  // A vector of a token begins (d << shift) bytes after its first one, d bytes into the head.
  const shift: usize = together == 2 ? 1 : 0;
  for (let t: u32 = 0; t < numTokens; t++) {
    const within = t & (together - 1);
    const at = to + ((t - within) as usize) * headBytes + ((within as usize) << 4);
    for (let d: usize = 0; d < headBytes; d += 16) {
      v128.store(at + (d << shift), f32x4.mul(v128.load(weight + d), v128.load(values + d)));
    }
    for (let d: usize = 0; d < angleBytes; d += 16) {
      const lowAt = at + (d << shift);
      const highAt = at + ((d + apart) << shift);
      const low = v128.load(lowAt);
      const high = v128.load(highAt);
      const c = v128.load(cos + d);
      const s = v128.load(sin + d);
      v128.store(lowAt, f32x4.sub(f32x4.mul(low, c), f32x4.mul(high, s)));
      v128.store(highAt, f32x4.add(f32x4.mul(high, c), f32x4.mul(low, s)));
    }
    cos += angleBytes;
    sin += angleBytes;
    values += headBytes;
  }
}

/** Unpacks the V of a block's tokens, `fromBytes` apart, to [tokens][head_dim] f32. */
export function unpack_v(
  from: usize,
  fromBytes: usize,
  to: usize,
  numTokens: u32,
  headBytes: usize,
  isF16: u32,
): void {
  for (let t: u32 = 0; t < numTokens; t++) {
    if (isF16) for (let d: usize = 0; d < headBytes; d += 16) v128.store(to + d, load4_f16(from + (d >> 1)));
    else memory.copy(to, from, headBytes);
    from += fromBytes;
    to += headBytes;
  }
}
