/** Products of random numbers at the edges, in a small memory of their own: what products_trial.ts compares and times. */
import { isInteger, type WeightFormat } from '../weights/weight_format.ts';
import { ROW_BLOCK } from './kernel_constants.ts';
import { MemoryPlan } from './memory_plan.ts';
import { formatCodes, LANES, weightBytes } from './panels.ts';
import { productParams, productScratchBytes, QUANTISED_AT } from './product.ts';
import type { Products } from './kernel_exports.ts';

/** Weight formats of integers. */
export const integerFormats = ['int8', 'int4', 'uint4', 'mxfp4', 'iq4'] as const satisfies readonly WeightFormat[];
/** The others. */
export const floatFormats = ['f16', 'f32'] as const satisfies readonly WeightFormat[];
type TrialFormat = (typeof integerFormats | typeof floatFormats)[number];

/** Shape of a product: `panels` panels of eight outputs. */
export interface TrialShape {
  readonly rows: number;
  readonly inner: number;
  readonly panels: number;
}

/** Chances in 8 that a group of inputs is all zeros, and that all its integers are ±127. */
const [ZEROS_IN_8, LARGEST_IN_8] = [1, 2];

/** A product whose input, weights and shape can be replaced, in a memory that holds the largest of its shapes. */
export class TrialProduct {
  readonly memory: WebAssembly.Memory;
  readonly #at: Readonly<Record<'params' | 'x' | 'weight' | 'bias' | 'out' | 'scratch', number>>;
  readonly #view: DataView;
  #shape: TrialShape = { rows: 0, inner: 0, panels: 0 };
  #isInteger = false;

  constructor(shapes: readonly TrialShape[]) {
    const plan = new MemoryPlan();
    const most = (bytesOf: (shape: TrialShape) => number): number =>
      plan.reserve('the trial of products', Math.max(...shapes.map(bytesOf)));
    this.#at = {
      params: most(() => productParams.bytes),
      x: most(({ rows, inner }) => 4 * rows * inner),
      weight: most((shape) =>
        Math.max(...[...integerFormats, ...floatFormats].map((format) => panelsBytes(shape, format))),
      ),
      bias: most(({ panels }) => 4 * LANES * panels),
      out: most(({ rows, panels }) => 4 * rows * LANES * panels),
      scratch: most(({ inner }) =>
        productScratchBytes(formatCodes.int8, inner, { maxRows: ROW_BLOCK, maxSamples: ROW_BLOCK }),
      ),
    };
    this.memory = plan.allocate();
    this.#view = new DataView(this.memory.buffer);
  }

  /** Replaces shape, format and numbers. The product adds a bias, scales and accumulates. */
  fill(shape: TrialShape, format: TrialFormat, random: () => number): void {
    const { rows, inner, panels } = (this.#shape = shape);
    this.#isInteger = isInteger(format);
    const { params, x, weight, bias, out } = this.#at;
    const outStride = 4 * LANES * panels;
    productParams.write(this.#view, params, {
      x,
      xStride: 4 * inner,
      weight,
      format: formatCodes[format],
      bias,
      out,
      outStride,
      inner,
      isAccumulating: 1,
      scale: 0.75,
    });
    this.#fillRows(rows, inner, random);
    if (isInteger(format)) this.#fillGroups(format, panelsBytes(shape, format) / groupsOf(inner) / panels, random);
    else this.#fillFloats(format, panelsBytes(shape, format), random);
    for (let i = 0; i < LANES * panels; i++) this.#view.setFloat32(bias + 4 * i, signed(random), true);
  }

  #fillRows(rows: number, inner: number, random: () => number): void {
    for (let row = 0; row < rows; row++) {
      let kind = 0;
      for (let k = 0; k < inner; k++) {
        if (k % 32 === 0) kind = random() % 8;
        const value = signed(random);
        const isLargest = kind >= ZEROS_IN_8 && kind < ZEROS_IN_8 + LARGEST_IN_8;
        const put = kind < ZEROS_IN_8 ? 0 : isLargest ? 3 * Math.sign(value) : value;
        this.#view.setFloat32(this.#at.x + 4 * (row * inner + k), put, true);
      }
    }
  }

  #fillGroups(format: TrialFormat, groupBytes: number, random: () => number): void {
    const { weight } = this.#at;
    const { inner, panels } = this.#shape;
    const end = weight + groupBytes * groupsOf(inner) * panels;
    for (let group = weight; group < end; group += groupBytes) {
      const isLargest = random() % 8 < LARGEST_IN_8;
      for (let at = 0; at < groupBytes; at++) {
        const byte = random() >>> 24;
        this.#view.setUint8(group + at, isLargest && format === 'int8' ? (byte < 128 ? 0x01 : 0xff) : byte);
      }
      for (let lane = 0; lane < LANES; lane++) {
        if (format === 'mxfp4') this.#view.setUint8(group + lane, random() % 8 === 0 ? 0 : 110 + (random() % 20));
        else this.#view.setUint16(group + 2 * lane, random() % 8 === 0 ? 0 : half(random), true);
        if (format === 'uint4') this.#view.setUint16(group + 16 + 2 * lane, half(random), true);
      }
    }
  }

  #fillFloats(format: TrialFormat, numBytes: number, random: () => number): void {
    const { weight } = this.#at;
    const bytes = format === 'f16' ? 2 : 4;
    for (let at = weight; at < weight + numBytes; at += bytes) {
      if (format === 'f16') this.#view.setUint16(at, half(random), true);
      else this.#view.setFloat32(at, signed(random), true);
    }
  }

  /** Multiplies and returns the bytes of the outputs. */
  multiply(products: Products): Uint8Array {
    const { rows, panels } = this.#shape;
    const bytes = new Uint8Array(this.memory.buffer, this.#at.out, 4 * rows * LANES * panels);
    bytes.fill(0);
    this.run(products);
    return bytes.slice();
  }

  /** Multiplies without looking at the outputs. */
  run(products: Products): void {
    const { params, scratch } = this.#at;
    const { rows, panels } = this.#shape;
    if (!this.#isInteger) {
      products.multiplyFloats(params, 0, rows, 0, panels, scratch);
      return;
    }
    const quantised = scratch + QUANTISED_AT;
    products.quantise(params, 0, rows, quantised, scratch);
    products.multiply(params, quantised, 0, rows, 0, panels, scratch);
  }
}

function groupsOf(inner: number): number {
  return Math.ceil(inner / 32);
}

function panelsBytes({ inner, panels }: TrialShape, format: TrialFormat): number {
  return weightBytes({ outputs: LANES * panels, inner, parts: [] }, format);
}

/** Returns a random number in [-1, 1). */
function signed(random: () => number): number {
  return random() / 2 ** 31 - 1;
}

/** Returns a normal f16 of either sign, between 2^-7 and 1. */
function half(random: () => number): number {
  return ((random() & 1) << 15) | (0x2000 + (random() % 0x1c00));
}
