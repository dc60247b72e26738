/** Attention of random numbers over paged KV, in a small memory of its own: what products_trial.ts compares. */
import type { Attention } from './kernel_exports.ts';
import { attentionTile, partialBytes } from './attention_spans.ts';
import { MemoryPlan } from './memory_plan.ts';
import { attentionParams, attentionScratchBytes } from './ops/attention.ts';
import { spanBlocks } from './task_split.ts';

/** Rows of one sequence from `position` on, and the heads with which they attend. */
export interface AttentionShape {
  readonly rows: number;
  readonly position: number;
  readonly kvHeads: number;
  readonly group: number;
  readonly headDim: number;
  readonly blockSize: number;
  readonly isF16: 0 | 1;
  readonly window: number;
  readonly cap: number;
  readonly hasSinks: boolean;
  /** Keys are computed from values: their norm and their rotation. */
  readonly computesKeys: boolean;
}

const plain = { kvHeads: 2, blockSize: 16, isF16: 1, window: 0, cap: 0, hasSinks: false, computesKeys: false } as const;
/** Values that a computed key rotates. */
const ROTARY_DIM = 40;

/**
 * Shapes that reach every path: many queries and few, both types of KV, ends of head_dim, spans, windows, caps, sinks, and keys
 * that are computed.
 */
const SHAPES: readonly AttentionShape[] = [
  { ...plain, rows: 5, position: 141, group: 3, headDim: 36 },
  { ...plain, rows: 16, position: 118, group: 2, headDim: 64, isF16: 0, window: 40, cap: 9, hasSinks: true },
  { ...plain, rows: 3, position: 0, group: 4, headDim: 80, blockSize: 4, hasSinks: true },
  { ...plain, rows: 1, position: 260, group: 7, headDim: 36, hasSinks: true },
  { ...plain, rows: 1, position: 150, group: 2, headDim: 68, isF16: 0, window: 60, cap: 20 },
  { ...plain, rows: 1, position: 37, group: 1, headDim: 64 },
  { ...plain, rows: 1, position: 37, group: 1, headDim: 36, isF16: 0 },
  { ...plain, rows: 1, position: 133, group: 6, headDim: 64 },
  { ...plain, rows: 2, position: 20, group: 2, headDim: 44, computesKeys: true },
  { ...plain, rows: 4, position: 20, group: 5, headDim: 84, computesKeys: true },
];

/** Largest magnitude of a query, so that scores lie far apart. */
const QUERY = 4;
/** Bytes after a shape's scratch, where the scratch of the next thread may begin, and what they are filled with. */
const [GUARD_BYTES, GUARD] = [4_096, 0xa5];

/** Returns the output bytes of every shape, computed tile by tile and, for one row, by spans too. */
export class TrialAttention {
  readonly memory: WebAssembly.Memory;
  readonly #at: Readonly<
    Record<
      'params' | 'tile' | 'table' | 'qkv' | 'kv' | 'sinks' | 'keyNorm' | 'angles' | 'out' | 'partials' | 'scratch',
      number
    >
  >;
  readonly #shapes: readonly AttentionShape[];
  readonly #view: DataView;

  /** `shapes`: those of the trial, unless a test names others. */
  constructor(shapes = SHAPES) {
    this.#shapes = shapes;
    const plan = new MemoryPlan();
    const most = (bytesOf: (shape: AttentionShape) => number): number =>
      plan.reserve('the trial of attention', Math.max(...shapes.map(bytesOf)));
    const heads = ({ kvHeads, group }: AttentionShape): number => kvHeads * group;
    this.#at = {
      params: most(() => attentionParams.bytes),
      tile: most(() => attentionTile.bytes),
      table: most((shape) => 4 * blocksOf(shape)),
      qkv: most((shape) => shape.rows * strideOf(shape)),
      kv: most((shape) => blocksOf(shape) * blockBytesOf(shape)),
      sinks: most((shape) => 4 * heads(shape)),
      keyNorm: most(({ headDim }) => 4 * headDim),
      angles: most(anglesBytesOf),
      out: most((shape) => 4 * shape.rows * heads(shape) * shape.headDim),
      partials: most((shape) => blocksOf(shape) * heads(shape) * partialBytes(shape.headDim)),
      scratch: most((shape) => scratchBytesOf(shape) + GUARD_BYTES),
    };
    this.memory = plan.allocate();
    this.#view = new DataView(this.memory.buffer);
  }

  /**
   * Compares two implementations. Returns a clause about the first shape in which their outputs differ, or in which the second writes beyond
   * its scratch; else undefined.
   */
  difference(one: Attention, other: Attention, random: () => number): string | undefined {
    for (const shape of this.#shapes) {
      this.#fill(shape, random);
      const expected = this.#outputs(shape, one);
      const guard = new Uint8Array(this.memory.buffer, this.#at.scratch + scratchBytesOf(shape), GUARD_BYTES).fill(
        GUARD,
      );
      const isEqual = Buffer.compare(expected, this.#outputs(shape, other)) === 0;
      const what = `${shape.rows} rows of ${shape.group} heads of ${shape.headDim}`;
      if (guard.some((byte) => byte !== GUARD)) return `its attention of ${what} writes beyond its scratch`;
      if (!isEqual) return `it attends ${what} wrongly`;
    }
    return undefined;
  }

  #fill(shape: AttentionShape, random: () => number): void {
    const { params, tile, table, qkv, kv, sinks, keyNorm, angles, out } = this.#at;
    const { rows, position, kvHeads, group, headDim, isF16, window, cap, hasSinks, computesKeys } = shape;
    const numHeads = kvHeads * group;
    attentionParams.write(this.#view, params, {
      qkv,
      qkvStride: strideOf(shape),
      out,
      outStride: 4 * numHeads * headDim,
      kv,
      valueOffset: computesKeys ? 0 : blockBytesOf(shape) / 2,
      blockBytes: blockBytesOf(shape),
      keyTokenBytes: tokenBytesOf(shape),
      valueTokenBytes: tokenBytesOf(shape),
      kvHeads,
      group,
      headDim,
      blockSize: shape.blockSize,
      isF16,
      window,
      cap,
      scale: headDim ** -0.5,
      sinks: hasSinks ? sinks : 0,
      keyNorm: computesKeys ? keyNorm : 0,
      cos: computesKeys ? angles : 0,
      sin: computesKeys ? angles + anglesBytesOf(shape) / 2 : 0,
      rotaryDim: computesKeys ? ROTARY_DIM : 0,
      pairDistance: computesKeys ? ROTARY_DIM / 2 : 0,
    });
    attentionTile.write(this.#view, tile, { row: 0, rows, position, blockTable: table });
    const numBlocks = blocksOf(shape);
    // Blocks lie in another order than their tokens.
    for (let i = 0; i < numBlocks; i++) this.#view.setUint32(table + 4 * i, numBlocks - 1 - i, true);
    const floats = (at: number, count: number, scale: number): void => {
      for (let i = 0; i < count; i++) this.#view.setFloat32(at + 4 * i, scale * (random() / 2 ** 31 - 1), true);
    };
    floats(qkv, (rows * strideOf(shape)) / 4, QUERY);
    floats(sinks, numHeads, QUERY);
    floats(keyNorm, headDim, 1);
    floats(angles, anglesBytesOf(shape) / 4, 1);
    const kvBytes = numBlocks * blockBytesOf(shape);
    if (isF16 === 0) floats(kv, kvBytes / 4, 1);
    // A normal f16 of either sign, or one of the smallest, which have no leading one.
    else
      for (let at = kv; at < kv + kvBytes; at += 2) {
        const magnitude = random() % 16 === 0 ? random() % 0x400 : 0x2000 + (random() % 0x1c00);
        this.#view.setUint16(at, ((random() & 1) << 15) | magnitude, true);
      }
  }

  /** Returns the outputs of all heads at once, and of one row by its spans. */
  #outputs(shape: AttentionShape, attention: Attention): Buffer {
    const { params, tile, out, partials, scratch } = this.#at;
    const { rows, position, kvHeads, group, headDim, blockSize, window } = shape;
    const bytes = new Uint8Array(this.memory.buffer, out, 4 * rows * kvHeads * group * headDim);
    const results: Uint8Array[] = [];
    if (rows === 1) {
      attention.attention_tile(params, tile, 0, kvHeads, scratch);
      results.push(bytes.slice());
      const spanTokens = spanBlocks(blockSize) * blockSize;
      const first = Math.floor((window > 0 ? Math.max(0, position + 1 - window) : 0) / spanTokens);
      const numSpans = Math.floor(position / spanTokens) + 1 - first;
      const spanBytes = kvHeads * group * partialBytes(headDim);
      for (let span = 0; span < numSpans; span++)
        attention.attention_span(params, tile, 0, kvHeads, first + span, partials + span * spanBytes, scratch);
      for (let head = 0; head < kvHeads; head++) {
        const from = partials + head * group * partialBytes(headDim);
        attention.attention_merge(params, tile, head, from, numSpans, spanBytes, scratch);
      }
    } else for (let head = 0; head < kvHeads; head++) attention.attention_tile(params, tile, head, head + 1, scratch);
    results.push(bytes.slice());
    return Buffer.concat(results);
  }
}

function scratchBytesOf(shape: AttentionShape): number {
  return attentionScratchBytes({ ...shape, heads: shape.kvHeads * shape.group }, shape.blockSize);
}

function blocksOf({ rows, position, blockSize }: AttentionShape): number {
  return Math.ceil((position + rows) / blockSize);
}

function strideOf({ kvHeads, group, headDim }: AttentionShape): number {
  return 4 * kvHeads * (group + 2) * headDim;
}

function tokenBytesOf({ kvHeads, headDim, isF16 }: AttentionShape): number {
  return kvHeads * headDim * (isF16 === 1 ? 2 : 4);
}

function blockBytesOf(shape: AttentionShape): number {
  return 2 * shape.blockSize * tokenBytesOf(shape);
}

/** Returns the bytes of the tables of cosines and sines, [positions][ROTARY_DIM / 2] each. */
function anglesBytesOf({ rows, position }: AttentionShape): number {
  return 4 * (position + rows) * ROTARY_DIM;
}
