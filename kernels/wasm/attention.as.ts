/**
 * Paged causal attention of one tile: consecutive rows of one sequence, one KV head with all its query heads.
 *
 *   Online softmax, blocks ascending, rescaled once per block, tokens ascending inside it: what a row computes depends on its
 *   absolute position only, never on the tile, the chunk or the thread (E2). K and V are read after rounding to the KV
 *   dtype. f16 blocks are unpacked once per tile into `scratch`, so the cost is shared by the tile's rows and heads.
 *
 *   scratch  f32 [2][block_size][head_dim] (f16 only), then [block_size] scores, then [rows][group][2] running max and sum
 *   window   tokens that a row sees, its own included; 0: all
 *   head_dim is a multiple of 4, block_size of 4.
 */
import { exp1, exp4, load4_f16, madd, sum4 } from './simd.as';

const LOWEST: f32 = -1e30;

export function attention_tile(
  q: usize,
  qStride: usize,
  out: usize,
  outStride: usize,
  kv: usize,
  planeBytes: usize,
  blockBytes: usize,
  blockTable: usize,
  rows: u32,
  position: u32,
  kvHead: u32,
  kvHeads: u32,
  group: u32,
  headDim: u32,
  blockSize: u32,
  scale: f32,
  isF16: u32,
  window: u32,
  scratch: usize,
): void {
  const headBytes: usize = (headDim as usize) << 2;
  const unpackedBytes: usize = (blockSize as usize) * headBytes;
  const scores: usize = isF16 ? scratch + 2 * unpackedBytes : scratch;
  const state: usize = scores + ((blockSize as usize) << 2);
  const firstHead: usize = ((kvHead * group) as usize) * headBytes;

  for (let i: u32 = 0; i < rows; i++) {
    memory.fill(out + (i as usize) * outStride + firstHead, 0, (group as usize) * headBytes);
    for (let g: u32 = 0; g < group; g++) {
      const at: usize = state + (((i * group + g) as usize) << 3);
      store<f32>(at, LOWEST);
      store<f32>(at + 4, 0);
    }
  }

  const lastPosition = position + rows - 1;
  for (let block: u32 = firstVisible(position, window) / blockSize; block * blockSize <= lastPosition; block++) {
    const first = block * blockSize;
    const numTokens = min<u32>(blockSize, lastPosition - first + 1);
    const blockId = load<u32>(blockTable + ((block as usize) << 2));
    let k: usize = kv + (blockId as usize) * blockBytes;
    let v: usize = k + planeBytes;
    let tokenBytes: usize = (kvHeads as usize) * headBytes;
    if (isF16) {
      const from: usize = ((kvHead * headDim) as usize) << 1;
      unpack(k + from, tokenBytes >> 1, scratch, numTokens, headDim);
      unpack(v + from, tokenBytes >> 1, scratch + unpackedBytes, numTokens, headDim);
      k = scratch;
      v = scratch + unpackedBytes;
      tokenBytes = headBytes;
    } else {
      k += (kvHead as usize) * headBytes;
      v += (kvHead as usize) * headBytes;
    }
    for (let i: u32 = 0; i < rows; i++) {
      if (position + i < first) continue;
      const visible = min<u32>(numTokens, position + i - first + 1);
      const from = firstVisible(position + i, window);
      const skipped: u32 = from > first ? from - first : 0;
      if (skipped >= visible) continue;
      const skippedBytes = (skipped as usize) * tokenBytes;
      for (let g: u32 = 0; g < group; g++) {
        const head: usize = firstHead + (g as usize) * headBytes;
        attend(
          q + (i as usize) * qStride + head,
          out + (i as usize) * outStride + head,
          k + skippedBytes,
          v + skippedBytes,
          tokenBytes,
          visible - skipped,
          headDim,
          scale,
          scores,
          state + (((i * group + g) as usize) << 3),
        );
      }
    }
  }

  for (let i: u32 = 0; i < rows; i++) {
    for (let g: u32 = 0; g < group; g++) {
      const sum = load<f32>(state + (((i * group + g) as usize) << 3) + 4);
      const at: usize = out + (i as usize) * outStride + firstHead + (g as usize) * headBytes;
      const inverse = f32x4.splat((1.0 as f32) / sum);
      for (let d: usize = 0; d < headBytes; d += 16) v128.store(at + d, f32x4.mul(v128.load(at + d), inverse));
    }
  }
}

/** The first position that a row sees; a window of 0 is none. */
// @ts-ignore: decorator
@inline
function firstVisible(position: u32, window: u32): u32 {
  return window > 0 && position >= window ? position + 1 - window : 0;
}

/** One query head over the visible tokens of one block; `acc` is rescaled and added to, `state` is [max, sum]. */
// @ts-ignore: decorator
@inline
function attend(
  q: usize,
  acc: usize,
  k: usize,
  v: usize,
  tokenBytes: usize,
  visible: u32,
  headDim: u32,
  scale: f32,
  scores: usize,
  state: usize,
): void {
  const headBytes: usize = (headDim as usize) << 2;
  let highest = LOWEST;
  let kToken = k;
  for (let t: u32 = 0; t < visible; t++) {
    let dot = f32x4.splat(0);
    for (let d: usize = 0; d < headBytes; d += 16) dot = madd(v128.load(q + d), v128.load(kToken + d), dot);
    const score = sum4(dot) * scale;
    store<f32>(scores + ((t as usize) << 2), score);
    highest = max<f32>(highest, score);
    kToken += tokenBytes;
  }
  for (let t = visible; t & 3; t++) store<f32>(scores + ((t as usize) << 2), LOWEST);

  const before = load<f32>(state);
  const highestNow = max<f32>(before, highest);
  const rescale = exp1(before - highestNow);
  let sum = load<f32>(state + 4) * rescale;
  const shift = f32x4.splat(highestNow);
  for (let t: usize = 0; t < (visible as usize) << 2; t += 16) {
    v128.store(scores + t, exp4(f32x4.sub(v128.load(scores + t), shift)));
  }
  for (let t: usize = 0; t < (visible as usize) << 2; t += 4) sum += load<f32>(scores + t);
  store<f32>(state, highestNow);
  store<f32>(state + 4, sum);

  const rescale4 = f32x4.splat(rescale);
  for (let d: usize = 0; d < headBytes; d += 16) {
    let value = f32x4.mul(v128.load(acc + d), rescale4);
    let vToken = v + d;
    for (let t: usize = 0; t < (visible as usize) << 2; t += 4) {
      value = madd(v128.load32_splat(scores + t), v128.load(vToken), value);
      vToken += tokenBytes;
    }
    v128.store(acc + d, value);
  }
}

// @ts-ignore: decorator
@inline
function unpack(from: usize, fromBytes: usize, to: usize, numTokens: u32, headDim: u32): void {
  for (let t: u32 = 0; t < numTokens; t++) {
    for (let d: usize = 0; d < (headDim as usize); d += 4) v128.store(to + (d << 2), load4_f16(from + (d << 1)));
    from += fromBytes;
    to += (headDim as usize) << 2;
  }
}
