/**
 * Repacks the four-bit values of files as uint4, with a scale and a zero point per group of 32; the integers stay as they were stored.
 * Scales and zero points are f16, so the minima of GGUF's blocks become the nearest zero points: within 2^-11 of a minimum and of a
 * scale. Reference for kernels/wasm/as/pack_uint4.as.ts.
 */
import { nibblesOfBlock, nibblesOfSuper, sixBits, viewOf } from './stored_blocks.ts';
import { fromAnyHalf, fromHalf, MIN_NORMAL, toNormalHalf } from './normal_half.ts';
import { scalesPerRow, type PackedRows } from './weight_format.ts';

/** Stored formats whose four-bit values can be repacked as uint4 without being rounded again. */
export type NibbleFormat = 'int4' | 'uint4' | 'q4_0' | 'q4_1' | 'q4_k';

const EIGHT = 0x4800;

/**
 * Returns rows packed as uint4. `data` holds whole rows of `inner` values, a multiple of 32 and of the format's block; `scales` of
 * int4 and uint4 are laid out as in weight_format.ts.
 */
export function uint4Rows(
  format: NibbleFormat,
  data: Uint8Array,
  scales: Uint8Array | undefined,
  numRows: number,
  inner: number,
): PackedRows {
  const groups = Math.ceil(inner / 32);
  const out = new Groups(numRows * groups);
  const view = viewOf(data);
  const halves = scales ? viewOf(scales) : undefined;
  const perRow = halves ? scalesPerRow(format === 'int4' ? 'int4' : 'uint4', inner) : 0;
  for (let at = 0; at < numRows * groups; at++) {
    const [row, group] = [Math.floor(at / groups), at % groups];
    if (format === 'q4_k') out.putSuper(at, view, 144 * (at >> 3), at & 7);
    else if (format === 'q4_1') out.putMinimum(at, view, 20 * at);
    else if (format === 'q4_0') {
      nibblesOfBlock(view, 18 * at + 2, out.data, 4 * at);
      out.setHalves(at, view.getUint16(18 * at, true), EIGHT);
    } else {
      for (let word = 0; word < 4; word++) out.data[4 * at + word] = view.getUint32(16 * at + 4 * word, true);
      const half = (i: number): number => halves?.getUint16(2 * (row * perRow + i), true) ?? 0;
      if (format === 'int4') out.setHalves(at, half(group), EIGHT);
      else out.setHalves(at, half(2 * group), half(2 * group + 1));
    }
  }
  return out;
}

class Groups implements PackedRows {
  readonly data: Uint32Array<ArrayBuffer>;
  readonly scales: Uint16Array<ArrayBuffer>;

  constructor(count: number) {
    this.data = new Uint32Array(4 * count);
    this.scales = new Uint16Array(2 * count);
  }

  putSuper(at: number, view: DataView, block: number, j: number): void {
    nibblesOfSuper(view, block, j, this.data, 4 * at);
    const { scale, min } = sixBits(view, block, j);
    const [d, dmin] = [view.getUint16(block, true), view.getUint16(block + 2, true)];
    if (isInfOrNaN(d) || isInfOrNaN(dmin)) this.#put(at, 0, 0, 0);
    else this.#putNormal(at, Math.fround(fromAnyHalf(d) * scale), -Math.fround(fromAnyHalf(dmin) * min));
  }

  putMinimum(at: number, view: DataView, block: number): void {
    nibblesOfBlock(view, block + 4, this.data, 4 * at);
    const [d, m] = [view.getUint16(block, true), view.getUint16(block + 2, true)];
    if (isInfOrNaN(d) || isInfOrNaN(m)) this.#put(at, 0, 0, 0);
    else this.#putNormal(at, fromAnyHalf(d), fromAnyHalf(m));
  }

  setHalves(at: number, half: number, zero: number): void {
    if (isInfOrNaN(half) || isInfOrNaN(zero)) this.#put(at, 0, 0, 0);
    else if (isNormal(half) && isNormal(zero)) this.#put(at, half, zero, 1);
    else this.#putNormal(at, fromAnyHalf(half), -Math.fround(fromAnyHalf(half) * fromAnyHalf(zero)));
  }

  /**
   * Stores `given` · q + `low` as scale · (q - zero). A scale below the normal f16 range becomes the smallest normal one, and the
   * integers are scaled down.
   */
  #putNormal(at: number, given: number, low: number): void {
    // With a scale of 0 all values are `low`: integers 0, scale `low` and zero point -1.
    const scale = given === 0 ? low : given;
    const isTiny = Math.abs(scale) < MIN_NORMAL;
    const factor = (given === 0 ? 0 : 1) * (isTiny ? Math.abs(scale) / MIN_NORMAL : 1);
    const half = isTiny ? (scale < 0 ? 0x8400 : 0x0400) : toNormalHalf(scale);
    this.#put(at, half, toNormalHalf((0 - low) / fromHalf(half)), factor);
  }

  /** Stores a group's scale and zero point, and multiplies its integers by `factor`. */
  #put(at: number, half: number, zero: number, factor: number): void {
    this.scales[2 * at] = half;
    this.scales[2 * at + 1] = zero;
    if (factor === 1) return;
    for (let word = 4 * at; word < 4 * (at + 1); word++) {
      const nibbles = this.data[word]!;
      let scaled = 0;
      for (let shift = 0; shift < 32; shift += 4)
        scaled |= Math.floor(((nibbles >>> shift) & 15) * factor + 0.5) << shift;
      this.data[word] = scaled;
    }
  }
}

/** Whether an f16 is an infinity or NaN. */
function isInfOrNaN(half: number): boolean {
  return (half & 0x7c00) === 0x7c00;
}

function isNormal(half: number): boolean {
  return (half & 0x7c00) !== 0 || (half & 0x3ff) === 0;
}
