/** Four-bit integers as GPTQ and AWQ files have them, rows side by side. */
import { scalesPerRow } from './weight_format.ts';

/**
 *   gptq  words [inner / 8][rows]: eight inputs of a row, the first in the lowest nibble
 *   awq   words [inner][rows / 8]: eight rows of an input, in the nibbles 0, 4, 1, 5, 2, 6, 3, 7
 *
 * value = scale · (q - zero). Scales and zeros are f16 [groups][rows]; all groups have the same number of inputs, a multiple of 32.
 * Without zeros every zero point is 8. The number of rows is a multiple of 8.
 */
export type ColumnFormat = 'gptq' | 'awq';

/** Four-bit rows side by side, as a GPTQ or AWQ file stores them. Without `zeros` every zero point is 8. */
export interface StoredColumns {
  readonly format: ColumnFormat;
  readonly data: Uint8Array;
  readonly scales: Uint8Array;
  readonly zeros?: Uint8Array;
}

/** A matrix whose file stores all rows of an input together; read as a sequence of input ranges. */
export interface StoredMatrix {
  readonly format: ColumnFormat;
  /** Number of rows side by side in the file; the requested rows start at `first`. Both are multiples of 8. */
  readonly width: number;
  readonly first: number;
  /** Inputs that share a scale; a multiple of 32. */
  readonly inputsPerScale: number;
  /** f16 [groups][width] */
  readonly scales: Uint16Array;
  /** f16 [groups][width]; undefined: all are 8. */
  readonly zeros: Uint16Array | undefined;
  /**
   * Yields ranges of whole groups of 32 inputs in ascending order, each at most 1 MiB or 32 inputs and valid until the next. May be
   * called only once.
   */
  inputRanges(): AsyncIterable<StoredInputRange>;
}

/** Consecutive inputs of a {@link StoredMatrix}, for all its rows. */
export interface StoredInputRange {
  readonly inputStart: number;
  /** Words of all `width` rows, as the format has them. */
  readonly data: Uint8Array;
}

/** Whether the rows are stored side by side (GPTQ or AWQ) and come with their scales. */
export function isColumns(rows: { readonly format: string; readonly scales?: Uint8Array }): rows is StoredColumns {
  return (rows.format === 'gptq' || rows.format === 'awq') && rows.scales !== undefined;
}

/** Returns the values row by row, laid out as int4 or, when there are zeros, uint4 of weight_format.ts. */
export function rowsOfColumns(
  { format, data, scales, zeros }: StoredColumns,
  inner: number,
): { readonly format: 'int4' | 'uint4'; readonly data: Uint8Array; readonly scales: Uint8Array } {
  const rows = (2 * data.length) / inner;
  const words = new Uint32Array((rows * inner) / 8);
  columnWords(format, asWords(data), rows, inner, words);
  const kind = zeros ? 'uint4' : 'int4';
  const perRow = scalesPerRow(kind, inner);
  const halves = new Uint16Array(rows * perRow);
  const [factors, offsets] = [asHalves(scales), zeros && asHalves(zeros)];
  const inputs = inner / (factors.length / rows);
  for (let group = 0; group < inner / 32; group++) {
    const from = Math.floor((group * 32) / inputs) * rows;
    for (let row = 0; row < rows; row++) {
      const to = row * perRow + (offsets ? 2 * group : group);
      halves[to] = factors[from + row]!;
      if (offsets) halves[to + 1] = offsets[from + row]!;
    }
  }
  return { format: kind, data: new Uint8Array(words.buffer), scales: new Uint8Array(halves.buffer) };
}

/** Writes the integers to `out`, [rows][inner / 8] words laid out as int4 of weight_format.ts. */
function columnWords(format: ColumnFormat, columns: Uint32Array, rows: number, inner: number, out: Uint32Array): void {
  const octets = inner / 8;
  const eight = new Uint32Array(8);
  for (let octet = 0; octet < octets; octet++) {
    if (format === 'gptq') {
      for (let row = 0, to = octet; row < rows; row++, to += octets) {
        const word = columns[octet * rows + row]!;
        out[to] = spread(word & 0xffff) | (spread(word >>> 16) << 4);
      }
      continue;
    }
    for (let row = 0; row < rows; row += 8) {
      transposed(columns, octet * rows + row / 8, rows / 8, eight);
      for (let i = 0, to = row * octets + octet; i < 8; i++, to += octets) out[to] = eight[i]!;
    }
  }
}

/**
 * Spreads four nibbles over the low nibbles of four bytes. In a device's word the low nibbles are inputs [8j, 8j + 4), the high ones
 * [8j + 4, 8j + 8).
 */
function spread(nibbles: number): number {
  const pairs = (nibbles | (nibbles << 8)) & 0x00ff00ff;
  return (pairs | (pairs << 4)) & 0x0f0f0f0f;
}

/**
 * Transposes eight words, one per input with eight outputs in AWQ's order, into eight words, one per output with eight inputs in the
 * devices' order: swaps nibbles between neighbouring words, then pairs of nibbles between words two apart, then halves between words
 * four apart.
 */
function transposed(from: Uint32Array, at: number, width: number, to: Uint32Array): void {
  // Inputs in the devices' order, which is 0, 4, 1, 5, 2, 6, 3, 7 in the nibbles of a word.
  let [a, b, c, d] = [from[at]!, from[at + 4 * width]!, from[at + width]!, from[at + 5 * width]!];
  let [e, f, g, h] = [from[at + 2 * width]!, from[at + 6 * width]!, from[at + 3 * width]!, from[at + 7 * width]!];
  let t = ((a >>> 4) ^ b) & 0x0f0f0f0f;
  [a, b] = [a ^ (t << 4), b ^ t];
  t = ((c >>> 4) ^ d) & 0x0f0f0f0f;
  [c, d] = [c ^ (t << 4), d ^ t];
  t = ((e >>> 4) ^ f) & 0x0f0f0f0f;
  [e, f] = [e ^ (t << 4), f ^ t];
  t = ((g >>> 4) ^ h) & 0x0f0f0f0f;
  [g, h] = [g ^ (t << 4), h ^ t];
  t = ((a >>> 8) ^ c) & 0x00ff00ff;
  [a, c] = [a ^ (t << 8), c ^ t];
  t = ((b >>> 8) ^ d) & 0x00ff00ff;
  [b, d] = [b ^ (t << 8), d ^ t];
  t = ((e >>> 8) ^ g) & 0x00ff00ff;
  [e, g] = [e ^ (t << 8), g ^ t];
  t = ((f >>> 8) ^ h) & 0x00ff00ff;
  [f, h] = [f ^ (t << 8), h ^ t];
  // Outputs in AWQ's order: word 0 of the result is output 0, word 1 is output 2, and so on.
  t = ((a >>> 16) ^ e) & 0xffff;
  [to[0], to[1]] = [a ^ (t << 16), e ^ t];
  t = ((b >>> 16) ^ f) & 0xffff;
  [to[2], to[3]] = [b ^ (t << 16), f ^ t];
  t = ((c >>> 16) ^ g) & 0xffff;
  [to[4], to[5]] = [c ^ (t << 16), g ^ t];
  t = ((d >>> 16) ^ h) & 0xffff;
  [to[6], to[7]] = [d ^ (t << 16), h ^ t];
}

function asWords(bytes: Uint8Array): Uint32Array {
  if (bytes.byteOffset % 4 === 0) return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  return new Uint32Array(Uint8Array.from(bytes).buffer);
}

function asHalves(bytes: Uint8Array): Uint16Array {
  if (bytes.byteOffset % 2 === 0) return new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2);
  return new Uint16Array(Uint8Array.from(bytes).buffer);
}
