/** Loads weights into their panels, one staging region at a time. */
import assert from 'node:assert/strict';
import type { LoadOptions, WeightSource } from '../device.ts';
import { storageFormat, type Program, type TensorRows, type WeightSpec } from '../program.ts';
import { isColumns, rowsOfColumns, type StoredMatrix, type StoredInputRange } from '../weights/stored_columns.ts';
import { fitsInto, numStored, storedBytes, type RowDecoder, type StoredRows } from '../weights/stored_rows.ts';
import { isTable } from '../weights/code_tables.ts';
import { isValidHalf } from '../weights/normal_half.ts';
import type { WeightFormat } from '../weights/weight_format.ts';
import type { PackThreads } from './packing.ts';
import { formatCode, LANES, placeOfOutput } from './panels.ts';
import type { MemoryShard } from './memory_shards.ts';
import type { ProgramLayout } from './program_layout.ts';
import { ROOM_BYTES } from './staging.ts';

/** Returns a callback that adds loaded bytes, counted as f32, and reports them with the total of all memory shards to `onProgress`. */
export function progressOf(shards: readonly MemoryShard[], { onProgress }: LoadOptions): (bytes: number) => void {
  const specs = shards.flatMap(({ program }) => Object.values(program.weights));
  const totalBytes = specs.reduce((sum, { outputs, inner }) => sum + outputs * inner * 4, 0);
  let doneBytes = 0;
  return (bytes) => {
    doneBytes += bytes;
    onProgress?.(doneBytes, totalBytes);
  };
}

/** Streams every tensor of the program into its memory. `onLoaded` receives the bytes loaded since its last call, counted as f32. */
export async function loadWeights(
  program: Program,
  source: WeightSource,
  layout: ProgramLayout,
  { shard, memory, threads, options, decoder, onLoaded }: WeightLoad,
): Promise<void> {
  const stagings = stagingsIn(layout, memory);
  const parts = Object.entries(program.weights).flatMap(([name, spec]) => {
    const panels = new Panels({ threads, shard, stagings }, layout.weights.get(name)!, spec, options.weightFormat);
    let end = 0;
    const loads = spec.parts.map((part) => {
      const firstOutput = placeOfOutput(end, spec);
      end += part.outputs;
      return () => panels.load(part, firstOutput, source, decoder);
    });
    assert(end === spec.outputs, `weight ${name}: its parts have ${end} outputs together, want ${spec.outputs}`);
    return loads;
  });
  for await (const loaded of roundRobin(parts)) onLoaded(4 * loaded);
  threads.waitForAll();
  // Bytes reported so far may still have been in the queues of helpers; now all are packed.
  onLoaded(0);
}

/**
 * Yields the values of each iterator in turn. The first value of the next iterator is requested while the current one is read, so two
 * sources are open at once.
 */
async function* roundRobin<T>(makes: readonly (() => AsyncIterator<T>)[]): AsyncGenerator<T> {
  const begin = (make: (() => AsyncIterator<T>) | undefined) => {
    if (!make) return undefined;
    const iterator = make();
    const first = iterator.next();
    // A rejection before the await below must not count as unhandled; the await throws it.
    first.catch(() => undefined);
    return { iterator, first };
  };
  let ahead = begin(makes[0]);
  let own: AsyncIterator<T> | undefined;
  try {
    for (let i = 1; ahead; i++) {
      const { iterator, first } = ahead;
      own = iterator;
      ahead = begin(makes[i]);
      for (let next = await first; !next.done; next = await iterator.next()) yield next.value;
    }
  } finally {
    // Ending the iterators closes their files, after an error too.
    await own?.return?.();
    await ahead?.iterator.return?.();
  }
}

interface WeightLoad {
  /** Index of this memory shard among the program's memory shards. */
  readonly shard: number;
  readonly threads: PackThreads;
  readonly memory: WebAssembly.Memory;
  readonly options: LoadOptions;
  readonly decoder: RowDecoder;
  readonly onLoaded: (bytes: number) => void;
}

/** Threads that pack the weights of one memory shard, and the staging regions they read rows from. */
interface Packing {
  readonly threads: PackThreads;
  readonly shard: number;
  readonly stagings: readonly Uint8Array[];
}

/** The panels of one weight. */
class Panels {
  readonly #packing: Packing;
  readonly #stagingBytes: number;
  readonly #to: number;
  readonly #inner: number;
  readonly #offset: number;
  readonly #format: WeightFormat;
  readonly #code: number;

  constructor(packing: Packing, to: number, spec: WeightSpec, format: WeightFormat) {
    this.#packing = packing;
    this.#stagingBytes = packing.stagings[0]?.length ?? 0;
    this.#to = to;
    this.#inner = spec.inner;
    this.#offset = spec.offset ?? 0;
    this.#format = storageFormat(spec, format);
    this.#code = formatCode(spec, format);
  }

  /** Packs a part whose first output is `firstOutput`. Yields the number of values in each slice. */
  async *load(
    part: TensorRows,
    firstOutput: number,
    source: WeightSource,
    decoder: RowDecoder,
  ): AsyncGenerator<number> {
    const matrix = this.#takesColumns(part, firstOutput) ? await source.matrix?.(part) : undefined;
    if (matrix && this.#fits(matrix, part.outputs)) {
      let end = 0;
      for await (const inputRange of matrix.inputRanges()) {
        const count = (2 * inputRange.data.length) / matrix.width;
        assert(
          inputRange.inputStart === end && count % 32 === 0,
          `${part.tensor}: input ranges must be in ascending order, without gaps, each a multiple of 32 inputs`,
        );
        end += count;
        assert(end <= this.#inner, `${part.tensor} has more than ${this.#inner} inputs`);
        this.#putInputRange(matrix, inputRange, part.outputs, firstOutput);
        yield count * part.outputs;
      }
      assert(end === this.#inner, `${part.tensor} has ${end} inputs, want ${this.#inner}`);
      return;
    }
    for await (const rows of source.slices(part)) {
      this.#put(rows, decoder, firstOutput + rows.rowStart);
      yield numStored(rows, this.#inner) * this.#inner;
    }
  }

  /**
   * Packs stored rows into the panels from output `firstOutput` on: quantised values as they are when they fit the format, otherwise
   * as floats.
   */
  #put(stored: StoredRows, decoder: RowDecoder, firstOutput: number): void {
    const { rowStart } = stored;
    const rows = isColumns(stored) ? { rowStart, ...rowsOfColumns(stored, this.#inner) } : stored;
    const integers = INTEGERS[rows.format];
    const codes = CODES[rows.format];
    if (this.#inner === 1) this.#putFloats('f32', asBytes(decoder.vector(rows, this.#offset)), firstOutput);
    else if (integers !== undefined && fitsInto(rows, this.#format)) this.#putIntegers(integers, rows, firstOutput);
    else if (codes !== undefined && fitsInto(rows, this.#format)) this.#putIntegers(codes, rows, firstOutput);
    else if (isTable(this.#format)) {
      // Floats in a table's codes are rare: a test, or a matrix of which a part is stored otherwise.
      const { data, scales } = decoder.packed(this.#format, rows, this.#inner);
      const packed = { rowStart, format: this.#format, data: asBytes(data), scales: asBytes(scales) };
      this.#putIntegers(CODES[this.#format]!, packed, firstOutput);
    } else if (rows.format === 'f16' || rows.format === 'bf16') this.#putFloats(rows.format, rows.data, firstOutput);
    else this.#putFloats('f32', asBytes(decoder.floats(rows, this.#inner)), firstOutput);
  }

  /**
   * Returns a staging region and its index, for `count` rows from output `firstOutput` on. Whole panels may go to any helper. A panel
   * that is packed in parts uses region 0: the calling thread alone writes such a panel.
   */
  #stagingFor(firstOutput: number, count: number): { readonly free: number; readonly staging: Uint8Array } {
    const { threads, stagings } = this.#packing;
    const isWhole = firstOutput % LANES === 0 && count % LANES === 0;
    const free = isWhole ? threads.next() : 0;
    return { free, staging: stagings[free]! };
  }

  #putFloats(source: 'f32' | 'f16' | 'bf16', data: Uint8Array, firstOutput: number): void {
    const inner = this.#inner;
    const rowBytes = inner * (source === 'f32' ? 4 : 2);
    const rowsAtOnce = wholePanels((this.#stagingBytes - ROOM_BYTES) / rowBytes);
    const numRows = data.length / rowBytes;
    for (let row = 0; row < numRows; row += rowsAtOnce) {
      const count = Math.min(rowsAtOnce, numRows - row);
      const { free, staging } = this.#stagingFor(firstOutput + row, count);
      const { byteOffset } = staging;
      staging.set(data.subarray(row * rowBytes, (row + count) * rowBytes), ROOM_BYTES);
      this.#packing.threads.run(free, this.#packing.shard, {
        kind: 'floats',
        args: [
          ...([FLOATS[source], byteOffset + ROOM_BYTES, this.#code] as const),
          ...([count, inner, this.#to, firstOutput + row, byteOffset] as const),
        ],
      });
    }
  }

  #takesColumns({ outputs }: TensorRows, firstOutput: number): boolean {
    const isHeld = this.#inner > 1 && (this.#format === 'int4' || this.#format === 'uint4');
    return isHeld && firstOutput % LANES === 0 && outputs % LANES === 0;
  }

  /** Whether the matrix can be stored without quantising it again, and 32 inputs of all its rows fit into a staging region. */
  #fits({ width, first, scales, zeros }: StoredMatrix, outputs: number): boolean {
    assert(first + outputs <= width, `rows [${first}, ${first + outputs}) of ${width}`);
    if ((zeros && this.#format !== 'uint4') || BYTES_OF_32 * width > this.#stagingBytes) return false;
    for (const half of scales) if (!isValidHalf(half)) return false;
    return true;
  }

  #putInputRange(
    matrix: StoredMatrix,
    { inputStart, data }: StoredInputRange,
    outputs: number,
    firstOutput: number,
  ): void {
    const { format, width, first, inputsPerScale, scales, zeros } = matrix;
    const numInputs = (2 * data.length) / width;
    const atOnce = Math.floor(this.#stagingBytes / (BYTES_OF_32 * width)) * 32;
    for (let from = 0; from < numInputs; from += atOnce) {
      const [count, input] = [Math.min(atOnce, numInputs - from), inputStart + from];
      const { free, staging } = this.#stagingFor(firstOutput, outputs);
      const { byteOffset } = staging;
      const some = data.subarray((from * width) / 2, ((from + count) * width) / 2);
      const [firstGroup, endGroup] = [Math.floor(input / inputsPerScale), Math.ceil((input + count) / inputsPerScale)];
      const groups = (halves: Uint16Array): Uint8Array =>
        asBytes(halves.subarray(firstGroup * width, endGroup * width));
      const [scalesAt, zerosAt] = [some.length, some.length + 2 * (endGroup - firstGroup) * width];
      staging.set(some);
      staging.set(groups(scales), scalesAt);
      if (zeros) staging.set(groups(zeros), zerosAt);
      const rowBytes = format === 'awq' ? 0.5 : 4;
      this.#packing.threads.run(free, this.#packing.shard, {
        kind: 'columns',
        args: [
          ...([this.#code, COLUMNS[format], byteOffset + rowBytes * first] as const),
          ...([byteOffset + scalesAt + 2 * first, zeros ? byteOffset + zerosAt + 2 * first : 0] as const),
          ...([width, outputs, count, inputsPerScale, input - firstGroup * inputsPerScale] as const),
          ...([this.#inner, this.#to, firstOutput, input] as const),
        ],
      });
    }
  }

  #putIntegers(source: number, rows: StoredRows, firstOutput: number): void {
    const inner = this.#inner;
    const { data, scales } = rows;
    const dataRow = storedBytes(rows.format, inner);
    const numRows = numStored(rows, inner);
    const scaleRow = scales ? scales.length / numRows : 0;
    const rowsAtOnce = wholePanels(this.#stagingBytes / (dataRow + scaleRow));
    for (let row = 0; row < numRows; row += rowsAtOnce) {
      const count = Math.min(rowsAtOnce, numRows - row);
      const some = data.subarray(row * dataRow, (row + count) * dataRow);
      const { free, staging } = this.#stagingFor(firstOutput + row, count);
      const { byteOffset } = staging;
      staging.set(some);
      if (scales) staging.set(scales.subarray(row * scaleRow, (row + count) * scaleRow), some.length);
      const scalesAt = scales ? byteOffset + some.length : byteOffset;
      this.#packing.threads.run(free, this.#packing.shard, {
        kind: isTable(this.#format) ? 'codes' : 'stored',
        args: [
          ...([this.#code, source, byteOffset, dataRow, scalesAt, scaleRow || dataRow] as const),
          ...([count, inner, this.#to, firstOutput + row] as const),
        ],
      });
    }
  }
}

function stagingsIn({ staging, stagingBytes, numStagings }: ProgramLayout, memory: WebAssembly.Memory): Uint8Array[] {
  return Array.from(
    { length: numStagings },
    (_, i) => new Uint8Array(memory.buffer, staging + i * stagingBytes, stagingBytes),
  );
}

/** Source codes of `pack_rows`, by the type of stored floats. */
const FLOATS = { f32: 0, f16: 1, bf16: 2 } as const;
const INTEGERS: Readonly<Partial<Record<StoredRows['format'], number>>> = {
  int8: 0,
  int4: 1,
  q8_0: 2,
  q4_0: 3,
  uint4: 4,
  q4_1: 5,
  q4_k: 6,
};

/** Source codes of `pack_codes`. */
const CODES: Readonly<Partial<Record<StoredRows['format'], number>>> = {
  mxfp4: 0,
  iq4: 0,
  mxfp4_pairs: 1,
  mxfp4_blocks: 2,
  iq4_nl: 3,
  iq4_xs: 4,
};

const COLUMNS: Readonly<Record<StoredMatrix['format'], number>> = { gptq: 0, awq: 1 };

/** Staging bytes per row for 32 inputs of a {@link StoredMatrix}: 16 of integers, 2 of scale and 2 of zero, rounded up to 24. */
const BYTES_OF_32 = 24;

/**
 * Rounds a number of rows down to whole panels; fewer rows than a panel round down to a whole number, at least 1. A staging region
 * holds at least eight rows, see `staging.ts`.
 */
function wholePanels(rows: number): number {
  return rows >= LANES ? Math.floor(rows / LANES) * LANES : Math.max(1, Math.floor(rows));
}

function asBytes(values: Float32Array | Uint16Array | Uint32Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}
