/** Parts of a program while it is emitted: operations over named buffers, weights, and buffers as they are needed. */
import assert from 'node:assert/strict';
import type {
  BufferSpec,
  Gate,
  Operation,
  OperationOf,
  Program,
  TensorRows,
  WeightSpec,
} from '../../../kernels/program.ts';
import type { Activation, LayerShape, ModelShape } from '../../model/model_shape.ts';

const gates: Readonly<Record<Activation, 'silu_mul' | 'gelu_mul'>> = { silu: 'silu_mul', gelu_tanh: 'gelu_mul' };

/** Returns the operation that applies a layer's gate to `inner` pairs. */
export function gateOf({ activation, clamp, inner }: LayerShape, gateUp: string, out: string): Gate {
  if (clamp) return { kind: 'clamped_swiglu', gateUp, out, inner, ...clamp };
  return { kind: gates[activation], gateUp, out, inner };
}

/** How a checkpoint names and fuses the tensors of a decoder. */
export interface DecoderTensors {
  /** Which modules lie in one tensor: q, k and v, and gate and up; or only the latter. */
  readonly fused?: 'all' | 'mlp';
  /** Names of modules where they differ from Llama's: of a layer, without `model.layers.N`, and of the model. */
  readonly renamed?: Readonly<Record<string, string>>;
  /** Tensor names of a mixture-of-experts layer: the module, its router, and gate, up and down of each `experts.N`. */
  readonly mixture?: Readonly<Record<'module' | 'router' | 'gate' | 'up' | 'down', string>> & {
    /** Names, within the module, of the correction of sigmoid scores, and of the shared experts' MLP. */
    readonly bias?: string;
    readonly shared?: string;
    /** Name, within the module, of the gate of the shared experts. */
    readonly sharedGate?: string;
  };
}

/** Rows of a module's output: `outputs` of them from `firstRow` on, 0 by default. */
export interface Module {
  readonly name: string;
  readonly outputs: number;
  readonly firstRow?: number;
}

/** A matrix product: its input, its stacked modules, and its destination. */
interface Product {
  readonly x: string;
  /** Name of the stacked weight in the program. */
  readonly name: string;
  readonly inner: number;
  readonly modules: readonly Module[];
  readonly hasBias: boolean;
  /** Whether the weight is kept in f32 whatever the format of the others. */
  readonly isExact?: boolean;
  readonly to: Destination;
}

/** Where a product is written: a buffer, replaced or added to, times a factor. */
export type Destination = Pick<OperationOf<'linear'>, 'out' | 'accumulate' | 'scale'>;

/** Collects the operations, weights and buffers of a decoder. */
export class ProgramParts {
  readonly operations: Operation[] = [];
  readonly weights: Record<string, WeightSpec> = {};
  readonly buffers: Record<string, BufferSpec> = {};
  readonly shape: ModelShape;
  readonly tensors: DecoderTensors;

  constructor(shape: ModelShape, tensors: DecoderTensors) {
    this.shape = shape;
    this.tensors = tensors;
  }

  /**
   * Declares that the program has this buffer, and returns its name. A buffer that several layers use is as wide as the widest.
   * @throws AssertionError when its rows are others than declared before.
   */
  buffer(name: string, spec: BufferSpec): string {
    const before = this.buffers[name];
    if (before)
      assert(
        before.rows === spec.rows && before.perRow === spec.perRow,
        `all layers have as many rows in their buffer ${name}`,
      );
    this.buffers[name] = { ...spec, width: Math.max(spec.width, before?.width ?? 0) };
    return name;
  }

  /** Declares that the program has the tensor as a vector of `outputs` numbers, and returns its name. */
  vector(tensor: string, outputs: number): string {
    this.weights[tensor] = matrix(1, [{ tensor, outputs }]);
    return tensor;
  }

  /**
   * Emits one residual branch: the norm before, the operations of `emit`, and the norm after. The product is added to the residual
   * stream `x`, which is then multiplied by the tensor `scalar`, if there is one.
   */
  branch(
    { norms }: LayerShape,
    {
      before,
      after,
      scalar,
    }: { readonly before: string; readonly after: string; readonly scalar?: string | undefined },
    emit: (x: string, to: Destination) => void,
  ): void {
    const { branchScale, hidden } = this.shape;
    if (norms !== 'after') this.norm('x', before, 'normed');
    const x = norms === 'after' ? 'x' : 'normed';
    if (norms === 'before') {
      assert(scalar === undefined, 'a norm after the branch applies the scalar');
      emit(x, { out: 'x', accumulate: true, ...scaledBy(branchScale) });
      return;
    }
    assert(branchScale === 1, 'no model scales what it normalises');
    emit(x, { out: this.buffer('branch', { rows: 'rows', width: hidden }), accumulate: false });
    this.norm('branch', after, 'x', { accumulate: true, scalar });
  }

  /** Emits the norm `module` of `x`, written to `out` or added to it; `out` is then multiplied by the tensor `scalar`. */
  norm(
    x: string,
    module: string,
    out: string,
    { accumulate = false, scalar }: { readonly accumulate?: boolean; readonly scalar?: string | undefined } = {},
  ): void {
    const { hidden, epsilon } = this.shape;
    const weight = `${module}.weight`;
    this.weights[weight] = this.normWeight([{ tensor: weight, outputs: hidden }]);
    if (scalar !== undefined) this.vector(scalar, 1);
    this.operations.push({
      kind: 'rms_norm',
      x,
      weight,
      out,
      epsilon,
      ...(accumulate ? { accumulate } : {}),
      ...(scalar === undefined ? {} : { scalar }),
    });
  }

  /** Returns the weight of a norm, of which some models store all less 1. */
  normWeight(parts: readonly TensorRows[]): WeightSpec {
    return { ...matrix(1, parts), ...(this.shape.hasNormOffset ? { offset: 1 } : {}) };
  }

  /** Emits the product of `x` with the stacked weights of the modules, and their biases. */
  linear({ x, name, inner, modules, hasBias, isExact, to }: Product): void {
    const partsOf = (what: string): TensorRows[] =>
      modules.map(({ name: module, ...rows }) => ({ tensor: `${module}.${what}`, ...rows }));
    const bias = `${name}.bias`;
    this.weights[name] = { ...matrix(inner, partsOf('weight')), ...(isExact ? { isExact } : {}) };
    if (hasBias) this.weights[bias] = matrix(1, partsOf('bias'));
    this.operations.push({ kind: 'linear', x, weight: name, ...(hasBias ? { bias } : {}), ...to });
  }

  /** The program of what was emitted, with the KV of its layers and its rotary tables. */
  program(more: Pick<Program, 'kv' | 'state' | 'rope'>): Program {
    const { operations, buffers, tensors } = this;
    const { renamed } = tensors;
    if (!renamed) return { operations, weights: this.weights, buffers, ...more };
    const weights = Object.entries(this.weights).map(([name, weight]): [string, WeightSpec] => [
      name,
      { ...weight, parts: weight.parts.map((part) => ({ ...part, tensor: renamedTensor(renamed, part.tensor) })) },
    ]);
    return { operations, weights: Object.fromEntries(weights), buffers, ...more };
  }
}

/** A tensor's name: its layer, its module, and the tensor of the module. */
const TENSOR = /^(model\.layers\.\d+\.)?(.+)\.(weight|bias)$/;

function renamedTensor(renamed: Readonly<Record<string, string>>, tensor: string): string {
  const [, layer = '', module = '', what = ''] = TENSOR.exec(tensor) ?? [];
  const name = renamed[module];
  return name === undefined ? tensor : `${layer}${name}.${what}`;
}

/** Returns each module by itself, or, when `names` has only one name, consecutive row ranges of that fused module. */
export function modulesOf(names: readonly string[], outputs: readonly number[]): readonly Module[] {
  const [only] = names;
  if (names.length > 1 || only === undefined) return names.map((name, i) => ({ name, outputs: outputs[i]! }));
  let firstRow = 0;
  return outputs.map((count) => {
    firstRow += count;
    return { name: only, outputs: count, firstRow: firstRow - count };
  });
}

/** The field `scale` of an operation; absent when it is 1. */
export function scaledBy(scale: number): { readonly scale?: number } {
  return scale === 1 ? {} : { scale };
}

/** A weight of `inner` inputs whose outputs are those of all parts, stacked. */
export function matrix(inner: number, parts: readonly TensorRows[]): WeightSpec {
  return { inner, outputs: parts.reduce((sum, { outputs }) => sum + outputs, 0), parts };
}
