/**
 * The contract of an operation on the wasm device: where inputs and outputs lie, how a thread runs its share, and how much work
 * the operation is. Each operation has a file of its own; `operations.ts` lists all.
 */
import type { KernelProfile, LoadOptions, Segment } from '../../device.ts';
import type { KvHeads } from '../../kv_planes.ts';
import type { Operation, OperationOf, Program, WeightSpec } from '../../program.ts';
import type { PlacedOperation } from '../placed_operation.ts';
import type { StepContext } from '../step_context.ts';
import type { Struct } from '../struct.ts';

interface PlacedBuffer {
  /** In bytes. */
  readonly at: number;
  readonly stride: number;
  /** In values. */
  readonly width: number;
  /** The cell of `control` with its rows in a step, of which each has `perRow` here. */
  readonly count: number;
  readonly perRow: number;
}

/** The regions that a step fills before it runs, and reads afterwards. Byte offsets. */
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
  /** [experts + 1], then [places]; see mixture.as.ts. */
  readonly routing: number;
}

/** A loaded program's memory, as an operation asks for it. @throws AssertionError for a name that the program does not have. */
export interface Placement {
  readonly options: LoadOptions;
  readonly regions: StepRegions;
  readonly blockBytes: number;
  /** Room for what spans of attention make, while several threads attend to one row. */
  readonly spanRecords: { readonly at: number; readonly spanBytes: number; readonly maxSpans: number };
  readonly buffer: (name: string) => PlacedBuffer;
  readonly weight: (name: string) => { readonly at: number; readonly spec: WeightSpec; readonly format: number };
  /** Returns the number of experts of the mixture that makes these routes. */
  readonly experts: (routes: string) => number;
  readonly rope: (name: string) => { readonly rotaryDim: number; readonly cos: number; readonly sin: number };
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

/** Work of one operation in a step. `label` replaces the operation's kind in a profile. */
export type KernelCost = Pick<KernelProfile, 'bytes' | 'flops' | 'kind'> & { readonly label?: string };

/** Implementation of one kind of operation: struct, placement, execution and cost. */
export interface WasmOperation<Op extends Operation, Fields extends Readonly<Record<string, number>>> {
  /** Struct that the kernels read, written from the fields that `place` returns; further fields are for `run` only. */
  readonly params: Struct<Fields>;
  /**
   * Returns addresses and shapes of the operation's inputs and outputs; called once, at load. @throws DeviceError for a shape that the
   * kernels do not support.
   */
  place(op: Op, at: Placement): Fields;
  /** A thread's part. */
  run(step: StepContext, op: PlacedOperation<Fields>): void;
  /** Bytes that must be read, and arithmetic, of a step. */
  work(op: Op, load: LoadedProgram, batch: readonly Segment[]): KernelCost;
  /** A thread needs so much room for itself. */
  scratchBytes?(op: Op, load: LoadedProgram): number;
}

/** So that the fields of `place` are those of the others. */
export function operation<K extends Operation['kind'], Fields extends Readonly<Record<string, number>>>(
  _kind: K,
  made: Pick<WasmOperation<OperationOf<K>, Fields>, 'place' | 'work' | 'scratchBytes'> &
    Pick<WasmOperation<OperationOf<K>, NoInfer<Fields>>, 'params' | 'run'>,
): WasmOperation<OperationOf<K>, Fields> {
  return made;
}

/** Rows of a buffer in a step. */
export function numRows({ program }: LoadedProgram, buffer: string, batch: readonly Segment[]): number {
  const { rows, perRow = 1 } = program.buffers[buffer] ?? {};
  const isSampled = rows === 'samples';
  return (
    perRow * batch.reduce((sum, { tokens, samples = [] }) => sum + (isSampled ? samples.length : tokens.length), 0)
  );
}

/** Returns the cost of an operation that reads and writes rows of f32 and computes next to nothing: the bytes of all named buffers. */
export function rowCost(load: LoadedProgram, buffers: readonly string[], batch: readonly Segment[]): KernelCost {
  const bytes = buffers.reduce(
    (sum, name) => sum + 4 * numRows(load, name, batch) * (load.program.buffers[name]?.width ?? 0),
    0,
  );
  return { bytes, flops: 0, kind: 'f32' };
}
