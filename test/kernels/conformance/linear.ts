import {
  isInteger,
  packRows,
  roundRows,
  scalesPerRow,
  unpackRows,
  weightFormats,
  type IntegerFormat,
  type PackedRows,
} from '../../../kernels/weights/weight_format.ts';
import type { ColumnFormat } from '../../../kernels/weights/stored_columns.ts';
import { floatRows, RowDecoder, storedBytes, type StoredRows } from '../../../kernels/weights/stored_rows.ts';
import { isTable } from '../../../kernels/weights/code_tables.ts';
import { isCodes, tableOf, type CodeFormat } from '../../../kernels/weights/stored_codes.ts';
import { gateOf, gates } from './gates.ts';
import { casesOf, close, loaded, noise, segments, type Conformance } from './suite.ts';

/** x · weightᵀ in f64, of the values that the format keeps. */
export function product(x: Float32Array, weight: Float32Array, inner: number): number[] {
  const [rows, outputs] = [x.length / inner, weight.length / inner];
  return Array.from({ length: rows * outputs }, (_, i) => {
    const [row, output] = [Math.floor(i / outputs), i % outputs];
    let sum = 0;
    for (let k = 0; k < inner; k++) sum += x[row * inner + k]! * weight[output * inner + k]!;
    return sum;
  });
}

/**
 * Returns the activations that a device with quantised activations multiplies: each value rounded to a multiple of max |x| / 127 per
 * row and group of 32, in f32.
 */
export function quantised(x: Float32Array, inner: number): Float32Array {
  const { fround } = Math;
  const values = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += inner) {
    for (let k = 0; k < inner; k += 32) {
      const group = x.subarray(start + k, start + Math.min(inner, k + 32));
      const largest = group.reduce((highest, value) => Math.max(highest, Math.abs(value)), 0);
      const [scale, inverse] = [fround(largest / 127), largest > 0 ? fround(127 / largest) : 0];
      for (let i = 0; i < group.length; i++) values[start + k + i] = toNearestEven(fround(group[i]! * inverse)) * scale;
    }
  }
  return values;
}

function toNearestEven(value: number): number {
  const floor = Math.floor(value);
  if (value - floor !== 0.5) return Math.round(value);
  return floor % 2 === 0 ? floor : floor + 1;
}

/** Rows whose largest integers are not the format's largest, as another writer of files leaves them: rounded again, they would change. */
function storedIntegers(format: IntegerFormat, outputs: number, inner: number): PackedRows {
  const packed = packRows(format, noise(outputs * inner), inner);
  // Two thirds of each, towards zero.
  const bytes = new Uint8Array(packed.data.buffer);
  if (isTable(format)) return packed;
  const less = (nibble: number): number => Math.trunc(((nibble - 8) * 2) / 3) + 8;
  bytes.forEach((byte, i) => {
    bytes[i] =
      format === 'int8' ? Math.trunc((((byte << 24) >> 24) * 2) / 3) : less(byte & 15) | (less(byte >> 4) << 4);
  });
  return packed;
}

type StrangeFormat = 'int4' | 'uint4' | 'q4_0' | 'q4_1' | 'q4_k' | CodeFormat;

/** Blocks of random integers or codes; of some the scale is 0, negative, subnormal or no number, and the minimum as well. */
function strangeRows(format: StrangeFormat, outputs: number, inner: number): StoredRows {
  const random = (below: number): number => Math.floor(((noise(1)[0]! + 1) / 2) * below) % below;
  const data = Uint8Array.from({ length: outputs * storedBytes(format, inner) }, () => random(256));
  const half = (): number => {
    const odd = [0, 0x8000, 0x0001, 0x83ff, 0x0200, 0x7c00, 0xfe00];
    return random(6) === 0 ? odd[random(odd.length)]! : (random(2) << 15) | (0x2400 + random(0x0c00));
  };
  const scales = Uint16Array.from(
    { length: outputs * scalesPerRow(format === 'int4' ? 'int4' : 'uint4', inner) },
    half,
  );
  if (format === 'int4' || format === 'uint4')
    return { rowStart: 0, format, data, scales: new Uint8Array(scales.buffer) };
  if (isCodes(format) && tableOf(format) === 'mxfp4') {
    const exponent = (): number => {
      const odd = format === 'mxfp4' ? [0, 1, 60] : [0, 1, 60, 255];
      return random(6) === 0 ? odd[random(odd.length)]! : 110 + random(12);
    };
    const exponents = Uint8Array.from({ length: outputs * 2 * scalesPerRow('mxfp4', inner) }, exponent);
    for (let at = 0; format === 'mxfp4_blocks' && at < data.length; at += 17) data[at] = exponent();
    if (format === 'mxfp4_blocks') return { rowStart: 0, format, data };
    const numScales = format === 'mxfp4' ? exponents.length : outputs * (inner / 32);
    return { rowStart: 0, format, data, scales: exponents.subarray(0, numScales) };
  }
  const [step, numHalves] = { q4_0: [18, 1], q4_1: [20, 2], q4_k: [144, 2], iq4_nl: [18, 1], iq4_xs: [136, 1] }[
    format as 'q4_0'
  ] as [number, number];
  const view = new DataView(data.buffer);
  for (let at = 0; at < data.length; at += step)
    for (let i = 0; i < numHalves; i++) view.setUint16(at + 2 * i, half(), true);
  return { rowStart: 0, format, data };
}

/** Rows side by side, of groups of 64 inputs; `strange`: with scales that devices do not take as they are. */
function columns(
  format: ColumnFormat,
  hasZeros: boolean,
  outputs: number,
  inner: number,
  strange: boolean,
): StoredRows {
  const random = (below: number): number => Math.floor(((noise(1)[0]! + 1) / 2) * below) % below;
  const halves = (next: (at: number) => number): Uint8Array =>
    new Uint8Array(Uint16Array.from({ length: (inner / 64) * outputs }, (_, at) => next(at)).buffer);
  const odd = [0x0001, 0x83ff, 0x7c00, 0];
  const scales = halves((at) => (strange && at % 5 === 0 ? odd[at % 4]! : 0x2400 + random(0x0c00)));
  const whole = [0x3c00, 0x4000, 0x4200, 0x4400, 0x4700, 0x4800, 0x4b80, 0];
  return {
    rowStart: 0,
    format,
    scales,
    data: Uint8Array.from({ length: (outputs * inner) / 2 }, () => random(256)),
    ...(hasZeros ? { zeros: halves(() => whole[random(whole.length)]!) } : {}),
  };
}

export function linearConformance(device: Conformance): void {
  const { describe, test } = casesOf(device);
  const {
    name,
    tolerance,
    linearTolerance = tolerance,
    quantisesActivations = false,
    formats = weightFormats,
  } = device;
  describe(`${name}: linear`, () => {
    const shapes = [
      [1, 4, 8],
      [1, 100, 333],
      [2, 257, 31],
      [5, 63, 9],
      [4, 64, 64],
      [7, 129, 17],
      [9, 64, 66],
      [16, 96, 5],
      [17, 33, 70],
      [64, 32, 64],
      [65, 160, 65],
      [130, 31, 63],
      [11, 1_100, 24],
      // More outputs than a tile of matrices has.
      [70, 40, 140],
    ] as const;
    for (const format of formats) {
      for (const [i, [rows, inner, outputs]] of shapes.entries()) {
        const accumulate = i % 2 === 1;
        const scale = i % 3 === 2 ? 0.3 : undefined;
        test(`${format} [${rows}, ${inner}] · [${outputs}, ${inner}]ᵀ + bias${scale ? `, times ${scale}` : ''}${accumulate ? ', added to what is there' : ''}`, async () => {
          const [x, weight, bias, before] = [
            noise(rows * inner),
            noise(outputs * inner),
            noise(outputs),
            noise(rows * outputs),
          ];
          const executable = await loaded(
            device,
            {
              operations: [
                { kind: 'linear', x: 'x', weight: 'w', bias: 'b', out: 'out', accumulate, ...(scale ? { scale } : {}) },
              ],
              buffers: { x: { rows: 'rows', width: inner }, out: { rows: 'rows', width: outputs } },
              weights: {
                w: { outputs, inner, parts: [{ tensor: 'w', outputs }] },
                b: { outputs, inner: 1, parts: [{ tensor: 'b', outputs }] },
              },
            },
            { w: weight, b: bias },
            { weightFormat: format },
          );
          await executable.write('x', x);
          await executable.write('out', before);
          await executable.run(segments(rows));
          const kept = weight.slice();
          roundRows(format, kept, inner);
          const multiplied = quantisesActivations && isInteger(format) ? quantised(x, inner) : x;
          const expected = product(multiplied, kept, inner).map(
            (sum, at) => (scale ?? 1) * (sum + bias[at % outputs]!) + (accumulate ? before[at]! : 0),
          );
          close(await executable.read('out', rows), expected, linearTolerance);
          await executable.close();
        });
      }
    }

    for (const format of formats.filter(isInteger)) {
      test(`${format} that was stored so is not rounded again`, async () => {
        const [rows, inner, outputs] = [3, 100, 13];
        const packed = storedIntegers(format, outputs, inner);
        const executable = await loaded(
          device,
          {
            operations: [{ kind: 'linear', x: 'x', weight: 'w', out: 'out', accumulate: false }],
            buffers: { x: { rows: 'rows', width: inner }, out: { rows: 'rows', width: outputs } },
            weights: { w: { outputs, inner, parts: [{ tensor: 'w', outputs }] } },
          },
          {
            w: {
              rowStart: 0,
              format,
              data: new Uint8Array(packed.data.buffer),
              scales: new Uint8Array(packed.scales.buffer),
            },
          },
          { weightFormat: format },
        );
        const x = noise(rows * inner);
        await executable.write('x', x);
        await executable.run(segments(rows));
        const multiplied = quantisesActivations ? quantised(x, inner) : x;
        const expected = product(multiplied, unpackRows(format, packed, inner), inner);
        close(await executable.read('out', rows), expected, linearTolerance);
        await executable.close();
      });
    }

    for (const [stored, inner, held] of [
      ['int4', 96, 'uint4'],
      ['uint4', 96, 'uint4'],
      ['q4_0', 96, 'uint4'],
      ['q4_1', 96, 'uint4'],
      ['q4_k', 512, 'uint4'],
      ['mxfp4', 160, 'mxfp4'],
      ['mxfp4_pairs', 160, 'mxfp4'],
      ['mxfp4_blocks', 160, 'mxfp4'],
      ['iq4_nl', 160, 'iq4'],
      ['iq4_xs', 512, 'iq4'],
    ] as const) {
      test(`${stored} is ${held} as it is, whatever its scales and minima are`, async () => {
        const [rows, outputs] = [2, 29];
        const weight = strangeRows(stored, outputs, inner);
        const executable = await loaded(
          device,
          {
            operations: [{ kind: 'linear', x: 'x', weight: 'w', out: 'out', accumulate: false }],
            buffers: { x: { rows: 'rows', width: inner }, out: { rows: 'rows', width: outputs } },
            weights: { w: { outputs, inner, parts: [{ tensor: 'w', outputs }] } },
          },
          { w: weight },
          { weightFormat: held },
        );
        const x = noise(rows * inner);
        await executable.write('x', x);
        await executable.run(segments(rows));
        const multiplied = quantisesActivations ? quantised(x, inner) : x;
        const kept = unpackRows(held, new RowDecoder().packed(held, weight, inner), inner);
        close(await executable.read('out', rows), product(multiplied, kept, inner), linearTolerance);
        await executable.close();
      });
    }

    for (const [stored, held, hasZeros, strange] of [
      ['gptq', 'int4', false, false],
      ['gptq', 'int4', false, true],
      ['gptq', 'uint4', false, false],
      ['gptq', 'uint4', true, false],
      ['gptq', 'int8', false, false],
      ['awq', 'uint4', true, false],
      ['awq', 'uint4', true, true],
      ['awq', 'int4', false, false],
    ] as const) {
      test(`${stored}${hasZeros ? ' with zeros' : ''} is ${held} as it is${strange ? ', whatever its scales are' : ''}, in parts`, async () => {
        // The second part begins in the middle of a panel.
        const [rows, inner, parts] = [2, 128, { a: 40, b: 5, c: 24 }];
        const outputs = Object.values(parts).reduce((a, b) => a + b);
        const stores = {
          a: columns(stored, hasZeros, parts.a, inner, strange),
          b: floatRows(noise(parts.b * inner)),
          c: columns(stored, hasZeros, parts.c, inner, strange),
        };
        const executable = await loaded(
          device,
          {
            operations: [{ kind: 'linear', x: 'x', weight: 'w', out: 'out', accumulate: false }],
            buffers: { x: { rows: 'rows', width: inner }, out: { rows: 'rows', width: outputs } },
            weights: {
              w: {
                outputs,
                inner,
                parts: Object.entries(parts).map(([tensor, count]) => ({ tensor, outputs: count })),
              },
            },
          },
          stores,
          { weightFormat: held },
        );
        const x = noise(rows * inner);
        await executable.write('x', x);
        await executable.run(segments(rows));
        const multiplied = quantisesActivations ? quantised(x, inner) : x;
        const kept = Object.values(stores).flatMap((part) => [
          ...unpackRows(held, new RowDecoder().packed(held, part, inner), inner),
        ]);
        close(await executable.read('out', rows), product(multiplied, Float32Array.from(kept), inner), linearTolerance);
        await executable.close();
      });
    }

    for (const [format, rows, hidden, inner, gate = 'silu_mul'] of [
      ['f32', 1, 65, 34],
      ['f16', 1, 64, 33],
      ['int8', 3, 96, 40],
      ['int4', 1, 100, 17],
      ['int4', 33, 64, 70],
      ['uint4', 1, 100, 17],
      ['uint4', 33, 64, 70],
      ['f16', 70, 40, 130],
      ['f16', 2, 40, 26, 'gelu_mul'],
      ['int8', 40, 64, 34, 'gelu_mul'],
      ['f16', 1, 64, 34, 'clamped_swiglu'],
    ] as const) {
      test(`${format} norm, gate and up, ${gate}, product of ${rows} rows: [${hidden}] to [${inner}]`, async () => {
        const tensors = {
          norm: noise(hidden),
          gate: noise(inner * hidden),
          up: noise(inner * hidden),
          bias: noise(2 * inner),
        };
        const executable = await loaded(
          device,
          {
            operations: [
              { kind: 'rms_norm', x: 'x', weight: 'norm', out: 'normed', epsilon: 1e-5 },
              { kind: 'linear', x: 'normed', weight: 'w', bias: 'b', out: 'gate_up', accumulate: false },
              gateOf(gate, 'gate_up', 'out', inner),
            ],
            buffers: {
              x: { rows: 'rows', width: hidden },
              normed: { rows: 'rows', width: hidden },
              gate_up: { rows: 'rows', width: 2 * inner },
              out: { rows: 'rows', width: inner },
            },
            weights: {
              norm: { outputs: hidden, inner: 1, parts: [{ tensor: 'norm', outputs: hidden }] },
              w: {
                outputs: 2 * inner,
                inner: hidden,
                parts: [
                  { tensor: 'gate', outputs: inner },
                  { tensor: 'up', outputs: inner },
                ],
              },
              b: { outputs: 2 * inner, inner: 1, parts: [{ tensor: 'bias', outputs: 2 * inner }] },
            },
          },
          tensors,
          { weightFormat: format },
        );
        const x = noise(rows * hidden);
        await executable.write('x', x);
        await executable.run(segments(rows));
        const normed = x.map((value, i) => {
          const row = x.subarray(i - (i % hidden), i - (i % hidden) + hidden);
          const meanSquare = row.reduce((sum, v) => sum + v * v, 0) / hidden;
          return (tensors.norm[i % hidden]! * value) / Math.sqrt(meanSquare + 1e-5);
        });
        for (const weight of [tensors.gate, tensors.up]) roundRows(format, weight, hidden);
        const areQuantised = quantisesActivations && isInteger(format);
        const multiplied = areQuantised ? quantised(normed, hidden) : normed;
        const [gated, ups] = [product(multiplied, tensors.gate, hidden), product(multiplied, tensors.up, hidden)];
        const expected = gated.map((value, i) =>
          gates[gate](value + tensors.bias[i % inner]!, ups[i]! + tensors.bias[inner + (i % inner)]!),
        );
        // A last-bit difference in the norm can move an activation to the neighbouring integer.
        close(await executable.read('out', rows), expected, areQuantised ? 1e-2 : 4 * linearTolerance);
        await executable.close();
      });
    }
  });
}
