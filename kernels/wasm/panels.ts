/** How weights and rows lie in the wasm device's memory: panels of eight outputs, rows of whole panels. */
import { storageFormat, type WeightSpec } from '../program.ts';
import { isInteger, type WeightFormat } from '../weights/weight_format.ts';
import { INT4_GROUP, INT8_GROUP, IQ4_GROUP, MXFP4_GROUP, UINT4_GROUP } from './kernel_constants.ts';

/** Outputs of a panel, one lane each. */
export const LANES = 8;

/** Returns the values from one row to the next: `width` in whole panels, because a product's last panel writes all eight outputs. */
export function paddedWidth(width: number): number {
  return Math.ceil(width / LANES) * LANES;
}

/**
 * Bytes of one panel, by format. Integer formats store groups of 32 inputs, each after its 8 scales, f16 but in mxfp4, and, for uint4, 8
 * zeros f16.
 */
const panelBytes: Readonly<Record<WeightFormat, (inner: number) => number>> = {
  f32: (inner) => 32 * inner,
  f16: (inner) => 16 * inner,
  int8: (inner) => INT8_GROUP * Math.ceil(inner / 32),
  int4: (inner) => INT4_GROUP * Math.ceil(inner / 32),
  uint4: (inner) => UINT4_GROUP * Math.ceil(inner / 32),
  mxfp4: (inner) => MXFP4_GROUP * Math.ceil(inner / 32),
  iq4: (inner) => IQ4_GROUP * Math.ceil(inner / 32),
};

/** Codes of the storage formats, as the kernels use them. */
export const formatCodes: Readonly<Record<WeightFormat, number>> = {
  f32: 0,
  f16: 1,
  int8: 2,
  int4: 3,
  uint4: 4,
  mxfp4: 5,
  iq4: 6,
};

/** Returns the code of the format that a weight is stored in when the model's common format is `format`. */
export function formatCode(spec: WeightSpec, format: WeightFormat): number {
  return formatCodes[storageFormat(spec, format)];
}

/** Whether a code of {@link formatCode} is that of an integer format. */
export function isIntegerCode(code: number): boolean {
  return code >= formatCodes.int8;
}

/** Returns the outputs of a weight in whole panels: those of each expert, or of each head, begin a panel of their own. */
function paddedOutputs({ outputs, expertOutputs = outputs }: WeightSpec): number {
  return (outputs / expertOutputs) * paddedWidth(expertOutputs);
}

/** Returns the place of an output among those of whole panels, see {@link paddedOutputs}. */
export function placeOfOutput(output: number, { outputs, expertOutputs = outputs }: WeightSpec): number {
  return Math.floor(output / expertOutputs) * paddedWidth(expertOutputs) + (output % expertOutputs);
}

/** Returns the bytes of a weight's panels when the model's common format is `format`. */
export function weightBytes(spec: WeightSpec, format: WeightFormat): number {
  return (paddedOutputs(spec) / LANES) * panelBytes[storageFormat(spec, format)](spec.inner);
}

/** Returns the arithmetic of products with weights of this format; all of four bits count as int4. */
export function productKind(format: WeightFormat): 'f32' | 'int8' | 'int4' {
  if (!isInteger(format)) return 'f32';
  return format === 'int8' ? 'int8' : 'int4';
}
