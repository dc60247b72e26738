/**
 * The contract of an operation on the wasm device: where inputs and outputs lie, how a thread runs its share, and how much work
 * the operation is. Each operation has a file of its own; `operations.ts` lists all.
 */
import type { KernelProfile, LoadOptions, Segment } from '../../device.ts';
import type { KvHeads } from '../../kv_planes.ts';
import type { Operation, OperationOf, Program, WeightSpec } from '../../program.ts';
import type { BoundOperation } from '../bound_operation.ts';
import type { StepContext } from '../step_context.ts';
import type { Struct } from '../struct.ts';

interface BufferAddress {
  /** Byte offset of the first row; `stride` is the bytes from one row to the next. */
  readonly at: number;
  readonly stride: number;
  /** Values per row, without padding. */
  readonly width: number;
  /** Cell of `control` that counts the buffer's rows in a step, by its kind; the buffer has `perRow` rows for each of them. */
  readonly count: number;
  readonly perRow: number;
}

/** Byte offsets of the regions that are written before a step or read after it. */
export interface StepRegions {
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
  readonly samplerSlots: number;
  /** Tokens that were sampled, u32: by sample of the step in `sampledTokens`, by slot in `slotTokens`. */
  readonly sampledTokens: number;
  readonly slotTokens: number;
  /** [samplerPages][vocab] */
  readonly samplerPages: number;
  readonly sampleMasks: number;
  readonly exp2Table: number;
  /** [experts + 1], then [expert slots]; see mixture.as.ts. */
  readonly routing: number;
  /** Segments of the step, [segments] of state_segments.ts, and the saves of their states, [saves][rows, slot] u32. */
  readonly stateSegments: number;
  readonly stateSaves: number;
}

/**
 * Options of a program, and where its regions, buffers, weights and tables lie. @throws AssertionError for a name that the program
 * does not have.
 */
export interface Operands {
  readonly options: LoadOptions;
  readonly regions: StepRegions;
  readonly blockBytes: number;
  /** Region for the partial results of attention spans, used when several threads attend for one row. */
  readonly spanPartials: { readonly at: number; readonly spanBytes: number; readonly maxSpans: number };
  readonly buffer: (name: string) => BufferAddress;
  readonly weight: (name: string) => { readonly at: number; readonly spec: WeightSpec; readonly format: number };
  /** Returns the number of experts of the mixture that makes these routes. */
  readonly experts: (routes: string) => number;
  /** A rope table; `queryFactors` is 0 where it has none. */
  readonly rope: (name: string) => {
    readonly rotaryDim: number;
    readonly pairDistance: number;
    readonly cos: number;
    readonly sin: number;
    readonly queryFactors: number;
  };
  /** Byte offset of a layer's planes in block 0. */
  readonly planesAt: (layer: number) => number;
  /**
   * A plane of a layer's recurrent state in slot 0, and the bytes from one slot to the next. `values`: those that the operation needs.
   * @throws DeviceError when the plane has others.
   */
  readonly state: (
    layer: number,
    plane: number,
    values: number,
  ) => { readonly state: number; readonly slotBytes: number };
  /** A layer's K plane in block 0, bytes from there to its V plane (0: one plane for both), and from one token to the next in each. */
  readonly planes: (op: KvHeads) => {
    readonly kv: number;
    readonly valueOffset: number;
    readonly keyTokenBytes: number;
    readonly valueTokenBytes: number;
  };
}

/** A program and the options it was loaded with. */
export interface LoadedProgram {
  readonly program: Program;
  readonly options: LoadOptions;
}

/** Where a product writes, and its number of outputs. */
export interface ProductOutput {
  readonly out: string;
  readonly outputs: number;
}

/** Columns that an operation needs together: `unit` of them, and as many `apart` further on, or 0 for no others. */
export interface Columns {
  readonly unit: number;
  readonly apart: number;
}

/** Work of one operation in a step. `label` replaces the operation's kind in a profile. */
export type KernelCost = Pick<KernelProfile, 'bytes' | 'flops' | 'kind'> & { readonly label?: string };

/** Implementation of one kind of operation: struct, binding, execution and cost. */
export interface WasmOperation<Op extends Operation, Fields extends Readonly<Record<string, number>>> {
  /** Struct that the kernels read, written from the fields that `bind` returns; further fields are for `run` only. */
  readonly params: Struct<Fields>;
  /**
   * Returns addresses and shapes of the operation's inputs and outputs; called once, at load. @throws DeviceError for a shape that the
   * kernels do not support.
   */
  bind(op: Op, at: Operands): Fields;
  /** Runs one thread's share of the operation. */
  run(step: StepContext, op: BoundOperation<Fields>): void;
  /** Returns how the operation divides the columns of the product's output; undefined where it cannot run within the product's tasks. */
  follows?(op: Op, product: ProductOutput): Columns | undefined;
  /** Runs rows [start, end) and columns [first, last) of the product's output, which divide none of {@link Columns}. */
  runColumns?(
    step: StepContext,
    op: BoundOperation<Fields>,
    start: number,
    end: number,
    first: number,
    last: number,
  ): void;
  /** Returns the fields of further structs, which lie after the operation's own: those that `runColumns` needs. */
  parts?(fields: Fields): readonly Fields[];
  /** Returns the bytes that a step must read, and the arithmetic it does. */
  cost(op: Op, loaded: LoadedProgram, batch: readonly Segment[]): KernelCost;
  /** Returns the bytes of scratch that each thread needs; absent when it needs none. */
  scratchBytes?(op: Op, loaded: LoadedProgram): number;
}

/** Returns `made` unchanged. The types make `params` and `run` use the fields that `bind` returns. */
export function operation<K extends Operation['kind'], Fields extends Readonly<Record<string, number>>>(
  _kind: K,
  made: Pick<WasmOperation<OperationOf<K>, Fields>, 'bind' | 'cost' | 'scratchBytes' | 'follows'> &
    Pick<WasmOperation<OperationOf<K>, NoInfer<Fields>>, 'params' | 'run' | 'runColumns' | 'parts'>,
): WasmOperation<OperationOf<K>, Fields> {
  return made;
}

/** Rows of a buffer in a step. */
export function numRows({ program }: LoadedProgram, buffer: string, batch: readonly Segment[]): number {
  const { rows, perRow = 1 } = program.buffers[buffer] ?? {};
  const isSampled = rows === 'samples';
  if (rows === 'hidden' && batch.every(({ hidden }) => hidden === undefined)) return 0;
  return (
    perRow * batch.reduce((sum, { tokens, samples = [] }) => sum + (isSampled ? samples.length : tokens.length), 0)
  );
}

/** Returns the cost of an operation that reads and writes rows of f32 and computes next to nothing: the bytes of all named buffers. */
export function rowCost(loaded: LoadedProgram, buffers: readonly string[], batch: readonly Segment[]): KernelCost {
  const bytes = buffers.reduce(
    (sum, name) => sum + 4 * numRows(loaded, name, batch) * (loaded.program.buffers[name]?.width ?? 0),
    0,
  );
  return { bytes, flops: 0, kind: 'f32' };
}
