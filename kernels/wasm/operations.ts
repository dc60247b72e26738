/** All operations of the wasm device: a kind that is missing here does not compile. */
import type { KernelProfile, Segment, LoadOptions } from '../device.ts';
import type { Operation, OperationOf, Program } from '../program.ts';
import { attention } from './ops/attention.ts';
import { clampedSwiglu } from './ops/clamped_swiglu.ts';
import { candidates } from './ops/candidates.ts';
import { causalConv } from './ops/causal_conv.ts';
import { combine } from './ops/combine.ts';
import { sample } from './ops/sample.ts';
import { deltaRule } from './ops/delta_rule.ts';
import { embed } from './ops/embed.ts';
import { expertLinear } from './ops/expert_linear.ts';
import { gatedNorm } from './ops/gated_norm.ts';
import { gatherSamples } from './ops/gather_samples.ts';
import { geluMul } from './ops/gelu_mul.ts';
import { headLinear } from './ops/head_linear.ts';
import { latentAttention } from './ops/latent_attention.ts';
import { latentStore } from './ops/latent_store.ts';
import { linear } from './ops/linear.ts';
import { mul } from './ops/mul.ts';
import type { Columns, LoadedProgram, Operands, WasmOperation, KernelCost } from './ops/operation.ts';
import type { BoundOperation } from './bound_operation.ts';
import { rmsNorm } from './ops/rms_norm.ts';
import { permute } from './ops/permute.ts';
import { qkNorm } from './ops/qk_norm.ts';
import { ropeStore } from './ops/rope_store.ts';
import { route } from './ops/route.ts';
import { sigmoidMul } from './ops/sigmoid_mul.ts';
import { siluMul } from './ops/silu_mul.ts';
import { softCap } from './ops/soft_cap.ts';
import { stateSpace } from './ops/state_space.ts';
import { peakLoops } from './peak_loops.ts';
import type { StepContext } from './step_context.ts';

type Fields = Readonly<Record<string, number>>;

/** The wasm device's implementation of each kind of operation. */
export const wasmOperations = {
  embed,
  rms_norm: rmsNorm,
  qk_norm: qkNorm,
  linear,
  rope_store: ropeStore,
  attention,
  head_linear: headLinear,
  latent_store: latentStore,
  latent_attention: latentAttention,
  silu_mul: siluMul,
  gelu_mul: geluMul,
  clamped_swiglu: clampedSwiglu,
  mul,
  sigmoid_mul: sigmoidMul,
  causal_conv: causalConv,
  delta_rule: deltaRule,
  state_space: stateSpace,
  gated_norm: gatedNorm,
  route,
  permute,
  expert_linear: expertLinear,
  combine,
  gather_samples: gatherSamples,
  soft_cap: softCap,
  candidates,
  sample,
} satisfies { readonly [K in Operation['kind']]: WasmOperation<OperationOf<K>, Fields> };

/**
 * Returns the implementation for the kind of `op`. The table pairs each kind with its own type, which the compiler cannot follow
 * through an index.
 */
function entryOf(op: Operation): WasmOperation<Operation, Fields> {
  return wasmOperations[op.kind];
}

/**
 * Binds an operation to its operands. `reserve` returns the byte offset of room for its structs. @throws DeviceError for a shape that the
 * kernels do not support, AssertionError for an unknown name.
 */
export function bind(
  op: Operation,
  index: number,
  reserve: (bytes: number) => number,
  operands: Operands,
): BoundOperation {
  const entry = entryOf(op);
  const fields = entry.bind(op, operands);
  const numStructs = 1 + (entry.parts?.(fields).length ?? 0);
  return { kind: op.kind, index, params: reserve(numStructs * entry.params.bytes), fields };
}

/** Writes the structs of a bound operation. */
export function writeStructs(memory: DataView, op: Operation, { params: at, fields }: BoundOperation): void {
  const entry = entryOf(op);
  [fields, ...(entry.parts?.(fields) ?? [])].forEach((values, i) => {
    entry.params.write(memory, at + i * entry.params.bytes, values);
  });
}

/** Returns the columns that `op` needs together to run within the tasks of `product`; undefined where it cannot, or that is no product. */
export function followsProduct(program: Program, op: Operation, product: Operation): Columns | undefined {
  if (product.kind !== 'linear' && product.kind !== 'expert_linear') return undefined;
  const { outputs } = program.weights[product.weight]!;
  const own = product.kind === 'linear' ? outputs : outputs / product.experts;
  return entryOf(op).follows?.(op, { out: product.out, outputs: own });
}

/** Returns the bytes of scratch per thread: the most that any operation needs, at least 64, in whole cache lines. */
export function scratchBytesOf(loaded: LoadedProgram): number {
  const bytes = loaded.program.operations.map((op) => entryOf(op).scratchBytes?.(op, loaded) ?? 0);
  return Math.ceil(Math.max(64, ...bytes) / 64) * 64;
}

function costOf(op: Operation, loaded: LoadedProgram, batch: readonly Segment[]): KernelCost & { label: string } {
  return { label: op.kind, ...entryOf(op).cost(op, loaded, batch) };
}

type RunColumns = NonNullable<WasmOperation<never, Fields>['runColumns']>;
type RunOperation = (step: StepContext, op: BoundOperation) => void;

const runs = new Map<string, RunOperation>([
  ...Object.entries<WasmOperation<never, Fields>>(wasmOperations).map(([kind, operation]): [string, RunOperation] => [
    kind,
    (step, op) => {
      operation.run(step, op);
    },
  ]),
  ...Object.entries(peakLoops),
]);

/** Returns the function with which a thread runs its share of an operation. @throws Error for an unknown kind. */
export function runOf({ kind }: BoundOperation): RunOperation {
  const run = runs.get(kind);
  if (!run) throw new Error(`the wasm device has no operation ${kind}`);
  return run;
}

/** Returns the function that runs columns of a bound operation. @throws Error for an operation that follows no product. */
export function columnsOf({ kind }: BoundOperation): RunColumns {
  const entry = (wasmOperations as Readonly<Record<string, WasmOperation<never, Fields>>>)[kind];
  if (!entry?.runColumns) throw new Error(`the wasm device has no columns of ${kind}`);
  return (...args) => entry.runColumns?.(...args);
}

/** Returns time and work of a step, summed over operations with the same label. `ms`: the time of each operation, in program order. */
export function profileOf(
  program: Program,
  options: LoadOptions,
  batch: readonly Segment[],
  ms: readonly number[],
): KernelProfile[] {
  const byLabel = new Map<string, KernelProfile>();
  program.operations.forEach((op, i) => {
    const { label, bytes, flops, kind } = costOf(op, { program, options }, batch);
    const before = byLabel.get(label);
    byLabel.set(label, {
      label,
      numLaunches: (before?.numLaunches ?? 0) + 1,
      ms: (before?.ms ?? 0) + (ms[i] ?? 0),
      bytes: (before?.bytes ?? 0) + bytes,
      flops: (before?.flops ?? 0) + flops,
      ...(kind ? { kind } : {}),
    });
  });
  return [...byLabel.values()];
}
