/**
 * A program laid out for the wasm device: where each weight, buffer and step input lies, and the operation list that points
 * there. Row strides are padded to 8 values, so that a product's last panel may write a whole vector pair.
 */
import assert from 'node:assert/strict';
import {
  DeviceError,
  kvBlockBytes,
  MAX_CANDIDATES,
  type BufferSpec,
  type LoadOptions,
  type Operation,
  type Program,
  type WeightSpec,
} from '../device.ts';
import type { WeightFormat } from '../weight_format.ts';
import { INT4_GROUP, INT8_GROUP, Q_GROUP_BYTES, ROW_BLOCK, SLICE } from './kernel_constants.ts';
import { MemoryPlan } from './memory_plan.ts';
import { QUANTISED_AT } from './product_step.ts';
import { Control, MAX_OPS, OP_CELLS, OpCode, TILE_CELLS, TILE_ROWS } from './step_cells.ts';
import { spanBlocks } from './task_split.ts';

const LANES = 8;

/** Values from one row to the next. */
export function paddedWidth(width: number): number {
  return Math.ceil(width / LANES) * LANES;
}

/** Bytes of a panel of 8 outputs, as the kernels read it: a group of 32 inputs has 8 scales f16 before it. */
const panelBytes: Readonly<Record<WeightFormat, (inner: number) => number>> = {
  f32: (inner) => 32 * inner,
  f16: (inner) => 16 * inner,
  int8: (inner) => INT8_GROUP * Math.ceil(inner / 32),
  int4: (inner) => INT4_GROUP * Math.ceil(inner / 32),
};

/** By the numbers that the kernels use. */
const formatCodes: Readonly<Record<WeightFormat, number>> = { f32: 0, f16: 1, int8: 2, int4: 3 };

/** What a weight is held in: vectors (norms, biases) are always f32. */
function heldFormat({ inner }: WeightSpec, format: WeightFormat): WeightFormat {
  return inner === 1 ? 'f32' : format;
}

export function formatCode(spec: WeightSpec, format: WeightFormat): number {
  return formatCodes[heldFormat(spec, format)];
}

export function weightBytes(spec: WeightSpec, format: WeightFormat): number {
  return (paddedWidth(spec.outputs) / LANES) * panelBytes[heldFormat(spec, format)](spec.inner);
}

/** f32 rows on their way into panels: as many as fit, at least one. */
function stagingBytes(specs: readonly WeightSpec[]): number {
  return Math.max(1 << 20, ...specs.map(({ inner }) => inner * 4));
}

/** What attention makes of one query in one span. */
function recordBytes(headDim: number): number {
  return headDim * 4 + 16;
}

/** Queries are packed four at a time. */
function inFours(count: number): number {
  return Math.ceil(count / 4) * 4;
}

/** Room for the records of spans, while several threads attend to one row: [tiles][spans][heads]. */
const MAX_RECORD_BYTES = 32 << 20;

interface SpanRecords {
  /** Of all heads. */
  readonly spanBytes: number;
  readonly maxSpans: number;
  readonly maxTiles: number;
}

function spanRecordsOf({ attention }: Program, options: LoadOptions, numThreads: number): SpanRecords {
  if (!attention || numThreads === 1) return { spanBytes: 0, maxSpans: 0, maxTiles: 0 };
  const spanBytes = attention.heads * recordBytes(attention.headDim);
  const maxSpans = Math.ceil(options.maxBlocksPerSequence / spanBlocks(options.blockSize));
  const maxTiles = Math.min(options.maxRows, 4 * numThreads, Math.floor(MAX_RECORD_BYTES / (maxSpans * spanBytes)));
  return { spanBytes, maxSpans, maxTiles };
}

/** What one thread needs besides: for a product or for attention, whichever is more. */
function scratchBytesOf(program: Program, { blockSize, maxRows, maxSamples, weightFormat }: LoadOptions): number {
  const { attention } = program;
  const { heads, kvHeads, headDim } = attention ?? { heads: 0, kvHeads: 1, headDim: 0 };
  // One KV head of a whole tile, or all of one row's.
  const group = heads / kvHeads;
  const numQueries = Math.max(inFours(TILE_ROWS * group), kvHeads * inFours(group));
  const headBytes = headDim * 4;
  const attentionBytes =
    16 * (blockSize + 4) +
    128 +
    headBytes +
    2 * blockSize * headBytes +
    numQueries * (headBytes + recordBytes(headDim) + 8);
  const widest = Math.max(0, ...Object.values(program.weights).map(({ inner }) => inner));
  const isQuantised = weightFormat === 'int8' || weightFormat === 'int4';
  const numRows = Math.min(ROW_BLOCK, Math.max(maxRows, maxSamples));
  const productBytes = isQuantised
    ? QUANTISED_AT + numRows * Math.ceil(widest / 32) * Q_GROUP_BYTES
    : ROW_BLOCK * LANES * 4 + 64 + SLICE * LANES * 4;
  return Math.ceil(Math.max(attentionBytes, productBytes) / 64) * 64;
}

/** Regions the engine thread writes before a step, or reads after it. Byte offsets. */
interface StepRegions {
  readonly tokens: number;
  readonly positions: number;
  readonly slots: number;
  readonly blockTables: number;
  readonly tiles: number;
  readonly sampleRows: number;
  readonly sampleCounts: number;
  readonly candidateIds: number;
  readonly candidateValues: number;
  readonly sampleStats: number;
  readonly logits: number;
}

export interface ProgramLayout {
  readonly plan: MemoryPlan;
  readonly weights: ReadonlyMap<string, number>;
  readonly buffers: ReadonlyMap<string, { readonly offset: number; readonly spec: BufferSpec }>;
  readonly regions: StepRegions;
  readonly kv: number;
  readonly blockBytes: number;
  readonly rope: { readonly cos: number; readonly sin: number };
  /** [threads][scratchBytes] */
  readonly scratch: number;
  readonly scratchBytes: number;
  readonly spanRecords: SpanRecords & { readonly offset: number };
  readonly staging: number;
  readonly stagingBytes: number;
  readonly ops: Int32Array;
  readonly numOps: number;
}

/** @throws DeviceError for shapes the kernels do not have. */
export function layOutProgram(program: Program, options: LoadOptions, numThreads: number): ProgramLayout {
  const { attention } = program;
  if (attention && attention.headDim % 4 !== 0) {
    throw new DeviceError(`the wasm device needs head_dim to be a multiple of 4, this model has ${attention.headDim}`);
  }
  if (attention && attention.heads % attention.kvHeads !== 0) {
    throw new DeviceError(`${attention.heads} heads are no multiple of ${attention.kvHeads} KV heads`);
  }
  if (options.blockSize % 4 !== 0) {
    throw new DeviceError(`block_size must be a multiple of 4, not ${options.blockSize}`);
  }
  const plan = new MemoryPlan();
  const weights = new Map(
    Object.entries(program.weights).map(([name, spec]) => [
      name,
      plan.reserve('weights', weightBytes(spec, options.weightFormat)),
    ]),
  );
  const numRowsOf = (spec: BufferSpec): number => (spec.rows === 'rows' ? options.maxRows : options.maxSamples);
  const buffers = new Map(
    Object.entries(program.buffers).map(([name, spec]) => [
      name,
      { spec, offset: plan.reserve('activations', numRowsOf(spec) * paddedWidth(spec.width) * 4) },
    ]),
  );
  const words = (what: string, count: number): number => plan.reserve(what, count * 4);
  const candidates = program.operations.find((op) => op.kind === 'candidates');
  const regions: StepRegions = {
    tokens: words('tokens', options.maxRows),
    positions: words('positions', options.maxRows),
    slots: words('slots', options.maxRows),
    blockTables: words('block tables', options.maxRows * options.maxBlocksPerSequence),
    tiles: words('tiles', options.maxRows * TILE_CELLS),
    sampleRows: words('sample rows', options.maxSamples),
    sampleCounts: words('sample counts', options.maxSamples),
    candidateIds: words('candidate ids', options.maxSamples * MAX_CANDIDATES),
    candidateValues: words('candidate values', options.maxSamples * MAX_CANDIDATES),
    sampleStats: words('sample stats', options.maxSamples * 2),
    logits: candidates ? bufferOf(buffers, candidates.logits).offset : 0,
  };
  const blockBytes = attention ? kvBlockBytes(attention, options.blockSize, options.kvDtype) : 0;
  const kv = plan.reserve('KV blocks', blockBytes * options.numBlocks.max);
  const rope = {
    cos: words('rope cos', attention?.ropeCos.length ?? 0),
    sin: words('rope sin', attention?.ropeSin.length ?? 0),
  };
  const scratchBytes = scratchBytesOf(program, options);
  const scratch = plan.reserve('scratch', scratchBytes * numThreads);
  const stagedBytes = stagingBytes(Object.values(program.weights));
  const staging = plan.reserve('staging', stagedBytes);

  const records = spanRecordsOf(program, options, numThreads);
  const recordsBytes = records.maxTiles * records.maxSpans * records.spanBytes;
  const spanRecords = { ...records, offset: plan.reserve('attention records', recordsBytes) };

  const layout = {
    ...{ plan, weights, buffers, regions, kv, blockBytes, rope, scratch, scratchBytes },
    ...{ staging, stagingBytes: stagedBytes, spanRecords },
  };
  const { operations } = program;
  assert(operations.length <= MAX_OPS, `a program has at most ${MAX_OPS} operations, not ${operations.length}`);
  const ops = new Int32Array(new SharedArrayBuffer(operations.length * OP_CELLS * 4));
  operations.forEach((op, i) => {
    encode(op, program, options, layout, ops.subarray(i * OP_CELLS, (i + 1) * OP_CELLS));
  });
  return { ...layout, ops, numOps: operations.length };
}

function bufferOf(
  buffers: ProgramLayout['buffers'],
  name: string,
): { offset: number; spec: BufferSpec; stride: number } {
  const buffer = buffers.get(name);
  assert(buffer, `the program has no buffer ${name}`);
  return { ...buffer, stride: paddedWidth(buffer.spec.width) * 4 };
}

/** Which control cell counts a buffer's rows in a step. */
function rowCell(spec: BufferSpec): number {
  return spec.rows === 'rows' ? Control.numRows : Control.numSamples;
}

function encode(
  op: Operation,
  program: Program,
  options: LoadOptions,
  layout: Omit<ProgramLayout, 'ops' | 'numOps'>,
  cells: Int32Array,
): void {
  const { regions, rope } = layout;
  const buffer = (name: string): ReturnType<typeof bufferOf> => bufferOf(layout.buffers, name);
  const weight = (name: string): { offset: number; spec: WeightSpec } => {
    const offset = layout.weights.get(name);
    const spec = program.weights[name];
    assert(offset !== undefined && spec, `the program has no weight ${name}`);
    return { offset, spec };
  };
  const floats = new Float32Array(cells.buffer, cells.byteOffset, OP_CELLS);
  const isF16 = options.kvDtype === 'f16' ? 1 : 0;
  const planeOf = (layer: number): { shape: NonNullable<Program['attention']>; planeBytes: number; plane: number } => {
    const shape = program.attention;
    assert(shape, `${op.kind} needs the program's attention shape`);
    const planeBytes = options.blockSize * shape.kvHeads * shape.headDim * (isF16 ? 2 : 4);
    return { shape, planeBytes, plane: layout.kv + layer * 2 * planeBytes };
  };
  switch (op.kind) {
    case 'embed': {
      const { offset, spec } = weight(op.table);
      const out = buffer(op.out);
      const format = formatCode(spec, options.weightFormat);
      cells.set([OpCode.embed, regions.tokens, format, offset, spec.inner, out.offset, out.stride]);
      return;
    }
    case 'rms_norm': {
      const [x, out] = [buffer(op.x), buffer(op.out)];
      const width = x.spec.width;
      cells.set([OpCode.rmsNorm, x.offset, x.stride, weight(op.weight).offset, out.offset, out.stride, width]);
      floats[7] = op.epsilon;
      cells[8] = rowCell(x.spec);
      return;
    }
    case 'linear': {
      const [x, out, w] = [buffer(op.x), buffer(op.out), weight(op.weight)];
      assert(w.spec.inner <= x.spec.width && w.spec.outputs <= out.spec.width, `linear ${op.weight}: shapes differ`);
      const bias = op.bias === undefined ? 0 : weight(op.bias).offset;
      const format = formatCode(w.spec, options.weightFormat);
      cells.set([OpCode.linear, x.offset, x.stride, w.offset, format, bias, out.offset, out.stride]);
      cells.set([w.spec.inner, op.accumulate ? 1 : 0, rowCell(x.spec), paddedWidth(w.spec.outputs) / LANES], 8);
      return;
    }
    case 'rope_store': {
      const qkv = buffer(op.qkv);
      const { shape, planeBytes, plane } = planeOf(op.layer);
      cells.set([OpCode.ropeStore, qkv.offset, qkv.stride, regions.positions, regions.slots, rope.cos, rope.sin]);
      cells.set([shape.heads, shape.kvHeads, shape.headDim, plane, planeBytes, layout.blockBytes], 7);
      cells.set([options.blockSize, isF16], 13);
      return;
    }
    case 'attention': {
      const [qkv, out] = [buffer(op.qkv), buffer(op.out)];
      const { shape, planeBytes, plane } = planeOf(op.layer);
      cells.set([
        OpCode.attention,
        qkv.offset,
        qkv.stride,
        out.offset,
        out.stride,
        plane,
        planeBytes,
        layout.blockBytes,
      ]);
      cells.set([shape.kvHeads, shape.heads / shape.kvHeads, shape.headDim, options.blockSize], 8);
      floats[12] = op.scale;
      const { offset: records, spanBytes, maxSpans } = layout.spanRecords;
      cells.set([isF16, regions.tiles, op.window ?? 0, records, spanBytes, maxSpans], 13);
      return;
    }
    case 'silu_mul': {
      const [gateUp, out] = [buffer(op.gateUp), buffer(op.out)];
      cells.set([OpCode.siluMul, gateUp.offset, gateUp.stride, out.offset, out.stride, op.inner]);
      return;
    }
    case 'gather_samples': {
      const [x, out] = [buffer(op.x), buffer(op.out)];
      assert(x.stride === out.stride, `gather ${op.x}: widths differ`);
      cells.set([OpCode.gather, x.offset, regions.sampleRows, out.offset, x.stride]);
      return;
    }
    case 'candidates': {
      const logits = buffer(op.logits);
      cells.set([OpCode.candidates, logits.offset, logits.stride, op.vocab, regions.sampleCounts]);
      cells.set([regions.candidateIds, regions.candidateValues, regions.sampleStats, MAX_CANDIDATES], 5);
      return;
    }
  }
}
