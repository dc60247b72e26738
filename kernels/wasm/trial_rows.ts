/** The kernels of rows that native sets bring, on random numbers in a small memory of their own: what products_trial.ts compares. */
import type { RowKernels } from './kernel_exports.ts';
import { MemoryPlan } from './memory_plan.ts';
import { rmsNorm } from './ops/rms_norm.ts';
import { ropeStore } from './ops/rope_store.ts';
import { siluMul } from './ops/silu_mul.ts';

/** Rows of each kernel, more than are computed side by side. */
const ROWS = 7;
/** Widths: less than a vector, and several with a rest. */
const WIDTHS = [3, 75];
const [KV_HEADS, GROUP, HEAD_DIM, ROTARY_DIM, BLOCK_SIZE] = [2, 2, 44, 40, 4] as const;
const QKV_WIDTH = KV_HEADS * (GROUP + 2) * HEAD_DIM;
const NUM_BLOCKS = 3;
const REGION = 4 * ROWS * QKV_WIDTH;

/** Inputs and outputs of the kernels of rows. */
export class TrialRows {
  readonly memory: WebAssembly.Memory;
  readonly #at: Readonly<Record<'params' | 'x' | 'y' | 'weight' | 'out' | 'indices' | 'kv', number>>;
  readonly #view: DataView;

  constructor() {
    const plan = new MemoryPlan();
    const region = (): number => plan.reserve('the trial of rows', REGION);
    this.#at = {
      params: region(),
      x: region(),
      y: region(),
      weight: region(),
      out: region(),
      indices: region(),
      kv: plan.reserve('the trial of rows', 8 * NUM_BLOCKS * BLOCK_SIZE * KV_HEADS * HEAD_DIM),
    };
    this.memory = plan.allocate();
    this.#view = new DataView(this.memory.buffer);
  }

  /** Compares two implementations. Returns a clause about the first kernel in which their outputs differ, else undefined. */
  difference(one: RowKernels, other: RowKernels, random: () => number): string | undefined {
    const numbers = Float32Array.from({ length: (3 * REGION) / 4 }, () => 8 * (random() / 2 ** 31 - 1));
    const expected = this.#outputs(one, numbers);
    const found = this.#outputs(other, numbers);
    const wrong = Object.keys(expected).find((name) => Buffer.compare(expected[name]!, found[name]!) !== 0);
    return wrong === undefined ? undefined : `its ${wrong} is wrong`;
  }

  #outputs(kernels: RowKernels, numbers: Float32Array): Record<string, Buffer> {
    const [norms, gates] = [WIDTHS.map((width) => this.#norm(kernels, numbers, width)), this.#gate(kernels, numbers)];
    return {
      rms_norm: Buffer.concat(norms),
      silu_mul: gates,
      rope_store: Buffer.concat([this.#store(kernels, numbers, 1), this.#store(kernels, numbers, 0)]),
    };
  }

  /** Fills inputs and output, and returns a copy of ranges of bytes, [at, length], once `run` has written them. */
  #after(numbers: Float32Array, ranges: readonly (readonly [number, number])[], run: () => void): Buffer {
    const { x, y, weight, out, kv } = this.#at;
    for (const [i, region] of [x, y, weight].entries())
      new Float32Array(this.memory.buffer, region, REGION / 4).set(
        numbers.subarray((i * REGION) / 4, ((i + 1) * REGION) / 4),
      );
    new Uint8Array(this.memory.buffer, out, REGION).fill(0);
    new Uint8Array(this.memory.buffer, kv).fill(0);
    run();
    return Buffer.concat(ranges.map(([at, length]) => new Uint8Array(this.memory.buffer, at, length)));
  }

  #norm(kernels: RowKernels, numbers: Float32Array, width: number): Buffer {
    const { params, x, weight, out } = this.#at;
    const stride = strideOf(width);
    return this.#after(numbers, rowsOf(out, width), () => {
      const fields = { x, xStride: stride, weight, out, outStride: stride, width, epsilon: 1e-5, count: 0 };
      rmsNorm.params.write(this.#view, params, { ...fields, isAccumulating: 0, scalar: 0 });
      kernels.rms_norm(params, 0, ROWS);
      rmsNorm.params.write(this.#view, params, { ...fields, isAccumulating: 1, scalar: weight });
      kernels.rms_norm(params, 1, ROWS);
    });
  }

  #gate(kernels: RowKernels, numbers: Float32Array): Buffer {
    const { params, x, y, out } = this.#at;
    const inner = Math.max(...WIDTHS);
    const stride = strideOf(inner);
    return this.#after(numbers, rowsOf(out, inner), () => {
      const strides = { gateStride: stride, upStride: stride, outStride: stride };
      siluMul.params.write(this.#view, params, {
        gates: x,
        ups: y,
        out,
        inner,
        ...strides,
        alpha: 0,
        limit: 0,
        perRow: 1,
      });
      kernels.silu_mul(params, 0, ROWS, 3, inner);
    });
  }

  #store(kernels: RowKernels, numbers: Float32Array, isF16: 0 | 1): Buffer {
    const { params, x, y, weight, indices, kv } = this.#at;
    const tokenBytes = KV_HEADS * HEAD_DIM * (isF16 === 1 ? 2 : 4);
    const slots = indices + 4 * ROWS;
    for (let row = 0; row < ROWS; row++) {
      this.#view.setUint32(indices + 4 * row, (row * 5) % ROWS, true);
      this.#view.setUint32(slots + 4 * row, NUM_BLOCKS * BLOCK_SIZE - 1 - row, true);
    }
    const run = (): void => {
      ropeStore.params.write(this.#view, params, {
        qkv: x,
        stride: 4 * QKV_WIDTH,
        positions: indices,
        slots,
        cos: y,
        sin: weight,
        heads: KV_HEADS * GROUP,
        kvHeads: KV_HEADS,
        keyHeads: KV_HEADS,
        headDim: HEAD_DIM,
        rotaryDim: ROTARY_DIM,
        pairDistance: ROTARY_DIM / 2,
        queryFactors: y,
        kv,
        valueOffset: BLOCK_SIZE * tokenBytes,
        keyTokenBytes: tokenBytes,
        valueTokenBytes: tokenBytes,
        blockBytes: 2 * BLOCK_SIZE * tokenBytes,
        blockSize: BLOCK_SIZE,
        isF16,
      });
      kernels.rope_store(params, 0, ROWS);
    };
    const ranges = [
      [x, REGION],
      [kv, NUM_BLOCKS * BLOCK_SIZE * 2 * tokenBytes],
    ] as const;
    return this.#after(numbers, ranges, run);
  }
}

/** Returns the bytes from row to row: kernels may write the rest of a vector after a row's end. */
function strideOf(width: number): number {
  return Math.ceil((4 * width) / 32) * 32;
}

/** Returns the ranges of the rows of an output, without what lies between them. */
function rowsOf(out: number, width: number): [number, number][] {
  return Array.from({ length: ROWS }, (_, row) => [out + row * strideOf(width), 4 * width]);
}
