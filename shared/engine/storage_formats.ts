/**
 * Chooses the storage format of each weight matrix: as stored in the file where the device multiplies that format, else the format
 * that the device prefers.
 */
import type { Program, WeightSpec } from '../../kernels/program.ts';
import { isTable } from '../../kernels/weights/code_tables.ts';
import type { IntegerFormat, WeightFormat } from '../../kernels/weights/weight_format.ts';
import type { ModelWeights } from '../model/weights.ts';

/** Storage formats of a model's matrices. */
export interface StorageFormats {
  readonly program: Program;
  /** Format of every matrix whose WeightSpec names none. */
  readonly common: WeightFormat;
  /** All formats in use, joined by `+`; part of the cache format, so that KV computed with other weight formats is not shared. */
  readonly label: string;
  /** Description for people: which stored format becomes which. */
  readonly changes: string;
}

/**
 * Chooses the storage formats of a program's matrices. With `wanted` 'auto', integers stay as they are stored and other matrices get
 * `liked`; else all get `wanted`.
 */
export function storageFormats(
  program: Program,
  weights: Pick<ModelWeights, 'integersOf' | 'storedAs'>,
  wanted: WeightFormat | 'auto',
  liked: WeightFormat,
): StorageFormats {
  const common = wanted === 'auto' ? liked : wanted;
  const kinds = new Map<string, Set<string>>();
  const held = new Set<WeightFormat>();
  const entries = Object.entries(program.weights).map(([name, spec]): [string, WeightSpec] => {
    if (spec.inner === 1 || spec.isExact) return [name, spec];
    const format = (wanted === 'auto' ? asStored(spec, weights) : undefined) ?? common;
    held.add(format);
    for (const { tensor } of spec.parts) {
      const becomes = kinds.get(weights.storedAs(tensor)) ?? new Set();
      kinds.set(weights.storedAs(tensor), becomes.add(format));
    }
    return [name, format === common ? spec : { ...spec, format }];
  });
  return {
    program: { ...program, weights: Object.fromEntries(entries) },
    common,
    label: [...held].sort().join('+') || common,
    changes: [...kinds].map(([stored, formats]) => `${stored} as ${[...formats].sort().join(' and ')}`).join(', '),
  };
}

/**
 * Returns the integer format that holds all parts; undefined when a part is not stored in integers. uint4 and int8 hold int4 exactly;
 * with int8 parts, uint4 parts are rounded.
 */
function asStored({ parts }: WeightSpec, weights: Pick<ModelWeights, 'integersOf'>): IntegerFormat | undefined {
  // Transposed rows are read as floats: the integers' groups lie along the other side.
  const formats = new Set(
    parts.map(({ tensor, transposedRows }) => (transposedRows === undefined ? weights.integersOf(tensor) : undefined)),
  );
  if (formats.size === 0 || formats.has(undefined)) return undefined;
  // Codes of a table are held by their own format alone.
  const [only] = formats;
  if (only !== undefined && isTable(only)) return formats.size === 1 ? only : undefined;
  if ([...formats].some((one) => one !== undefined && isTable(one))) return undefined;
  if (formats.has('int8')) return 'int8';
  return formats.has('uint4') ? 'uint4' : 'int4';
}
