/**
 * Stores rows of latent attention: the latent after its norm, and the rotated key that all heads share; rotates the rotary part of the
 * queries. Threads split rows.
 */
import { normalise, round_store } from './rows.as';

/**
 *   latent  [rows][rank + rotary] f32; q [rows][heads][qHead] f32, the last `rotary` values of a head are rotated
 *   out     [rows][heads][rank + rotary] f32, of which the last `rotary` values of each head are written
 *   weight  [rank] f32; cos, sin [positions][rotary / 2] f32; positions, slots [rows] u32; slot = block · block_size + offset
 *   kv      the layer's plane in block 0; blocks are blockBytes apart, tokens tokenBytes
 */
// @ts-ignore: decorator
@unmanaged
export class LatentStoreParams {
  latent: usize;
  latentStride: usize;
  q: usize;
  qStride: usize;
  out: usize;
  outStride: usize;
  weight: usize;
  positions: usize;
  slots: usize;
  cos: usize;
  sin: usize;
  heads: u32;
  qHead: u32;
  rank: u32;
  rotary: u32;
  isInterleaved: u32;
  kv: usize;
  tokenBytes: usize;
  blockBytes: usize;
  blockSize: u32;
  isF16: u32;
  epsilon: f32;
}

/** Stores rows [start, end) and rotates their queries. `scratch`: room for [rotary] f32. The latents are normalised in place. */
export function latent_store(params: LatentStoreParams, start: u32, end: u32, scratch: usize): void {
  const rank = params.rank;
  const rotary = params.rotary;
  const half = rotary >> 1;
  const isInterleaved = params.isInterleaved;
  const rankBytes = (rank as usize) << 2;
  const outHeadBytes = rankBytes + ((rotary as usize) << 2);
  const qHeadBytes = (params.qHead as usize) << 2;
  for (let row = start; row < end; row++) {
    const position = load<u32>(params.positions + ((row as usize) << 2));
    const angle: usize = ((position * half) as usize) << 2;
    const latent = params.latent + (row as usize) * params.latentStride;
    normalise(1, latent, latent, params.weight, rank, params.epsilon, 0);
    rotate_to(latent + rankBytes, scratch, params.cos + angle, params.sin + angle, half, isInterleaved);
    const slot = load<u32>(params.slots + ((row as usize) << 2));
    const block = slot / params.blockSize;
    const offset = slot - block * params.blockSize;
    const to = params.kv + (block as usize) * params.blockBytes + (offset as usize) * params.tokenBytes;
    round_store(latent, to, rank, params.isF16);
    round_store(scratch, to + (params.isF16 ? rankBytes >> 1 : rankBytes), rotary, params.isF16);
    let q = params.q + (row as usize) * params.qStride + qHeadBytes - ((rotary as usize) << 2);
    let out = params.out + (row as usize) * params.outStride + rankBytes;
    for (let head: u32 = 0; head < params.heads; head++) {
      rotate_to(q, out, params.cos + angle, params.sin + angle, half, isInterleaved);
      q += qHeadBytes;
      out += outHeadBytes;
    }
  }
}

/**
 * to[i] = a · cos[i] - b · sin[i], to[half + i] = b · cos[i] + a · sin[i], where a and b are neighbours when `isInterleaved`, else the
 * i-th values of both halves. `half` is even.
 */
// @ts-ignore: decorator
@inline
function rotate_to(from: usize, to: usize, cos: usize, sin: usize, half: u32, isInterleaved: u32): void {
  const halfBytes = (half as usize) << 2;
  let i: usize = 0;
  for (; i + 16 <= halfBytes; i += 16) {
    let a: v128, b: v128;
    if (isInterleaved) {
      const first = v128.load(from + 2 * i);
      const second = v128.load(from + 2 * i, 16);
      a = i8x16.shuffle(first, second, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
      b = i8x16.shuffle(first, second, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    } else {
      a = v128.load(from + i);
      b = v128.load(from + halfBytes + i);
    }
    const c = v128.load(cos + i);
    const s = v128.load(sin + i);
    v128.store(to + i, f32x4.sub(f32x4.mul(a, c), f32x4.mul(b, s)));
    v128.store(to + halfBytes + i, f32x4.add(f32x4.mul(b, c), f32x4.mul(a, s)));
  }
  for (; i < halfBytes; i += 4) {
    const a = load<f32>(isInterleaved ? from + 2 * i : from + i);
    const b = load<f32>(isInterleaved ? from + 2 * i + 4 : from + halfBytes + i);
    const c = load<f32>(cos + i);
    const s = load<f32>(sin + i);
    store<f32>(to + i, a * c - b * s);
    store<f32>(to + halfBytes + i, b * c + a * s);
  }
}
