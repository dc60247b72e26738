/** How threads split an operation, and the buffers and regions that it reads and writes meanwhile: what decides where threads must wait. */
import { inputsOf, type Operation, type OperationOf } from '../program.ts';

/** Names of buffers of the program, and of regions that operations share, which begin with `#`. Weights and inputs of the step are left out. */
export interface Accesses {
  readonly read: ReadonlySet<string>;
  readonly written: ReadonlySet<string>;
}

const outOf = ({ out }: { readonly out: string }): readonly string[] => [out];

/** Buffers and regions that each operation writes. */
const outputs: { readonly [K in Operation['kind']]: (op: OperationOf<K>) => readonly string[] } = {
  embed: outOf,
  rms_norm: outOf,
  qk_norm: ({ qkv }) => [qkv],
  linear: outOf,
  rope_store: ({ qkv }) => [qkv, '#kv'],
  attention: ({ out }) => [out, '#partials'],
  head_linear: outOf,
  latent_store: ({ out, latent }) => [out, latent, '#kv'],
  latent_attention: ({ out }) => [out, '#partials'],
  silu_mul: outOf,
  gelu_mul: outOf,
  clamped_swiglu: outOf,
  mul: outOf,
  sigmoid_mul: ({ x }) => [x],
  causal_conv: ({ out }) => [out, '#state'],
  delta_rule: ({ out, qkv, gates }) => [out, qkv, gates, '#state'],
  state_space: ({ out, cbx, steps }) => [out, cbx, steps, '#state'],
  gated_norm: ({ x }) => [x],
  route: ({ routes }) => [routes, '#routing'],
  permute: outOf,
  expert_linear: outOf,
  combine: outOf,
  gather_samples: outOf,
  soft_cap: ({ x }) => [x],
  candidates: () => ['#candidates'],
  sample: () => ['#sampled'],
};

/**
 * How threads split an operation.
 *
 *   itself  it claims its tasks, or waits for all threads, itself
 *   rows    by `StepContext.share`, in rows, and it touches nothing of a buffer but its own rows
 *   parts   by `StepContext.share` otherwise
 */
const splits: { readonly [K in Operation['kind']]: 'itself' | 'rows' | 'parts' } = {
  embed: 'rows',
  rms_norm: 'rows',
  qk_norm: 'rows',
  linear: 'itself',
  rope_store: 'rows',
  attention: 'itself',
  head_linear: 'itself',
  latent_store: 'rows',
  latent_attention: 'itself',
  silu_mul: 'parts',
  gelu_mul: 'parts',
  clamped_swiglu: 'parts',
  mul: 'parts',
  sigmoid_mul: 'parts',
  causal_conv: 'itself',
  delta_rule: 'itself',
  state_space: 'itself',
  gated_norm: 'parts',
  route: 'itself',
  permute: 'parts',
  expert_linear: 'itself',
  combine: 'parts',
  gather_samples: 'parts',
  soft_cap: 'parts',
  candidates: 'parts',
  sample: 'itself',
};

/** Whether threads split the operation in rows alone. */
export function splitsRows({ kind }: Operation): boolean {
  return splits[kind] === 'rows';
}

/** Whether a bound operation of this kind claims its tasks, or waits for all threads, itself. */
export function dividesItself(kind: string): boolean {
  return splits[kind as Operation['kind']] === 'itself';
}

/** Regions that operations read; those that they write are in {@link outputs}. */
const regions: Partial<Record<Operation['kind'], readonly string[]>> = {
  embed: ['#sampled'],
  attention: ['#kv'],
  latent_attention: ['#kv'],
  permute: ['#routing'],
  expert_linear: ['#routing'],
};

/** Returns the buffers and regions that the operation writes. */
export function outputsOf(op: Operation): readonly string[] {
  return (outputs[op.kind] as (op: Operation) => readonly string[])(op);
}

/** Returns everything that the operations read and write, buffers that a thread has to itself left out. */
export function accessesOf(
  operations: readonly Operation[],
  isShared: (op: Operation, name: string) => boolean,
): Accesses {
  const all = (namesOf: (op: Operation) => readonly string[]): Set<string> =>
    new Set(operations.flatMap((op) => namesOf(op).filter((name) => isShared(op, name))));
  return { read: all((op) => [...inputsOf(op), ...(regions[op.kind] ?? [])]), written: all(outputsOf) };
}

/** Whether threads must wait between two pieces of work: one writes what the other reads or writes. */
export function conflicts(one: Accesses, other: Accesses): boolean {
  const meets = (a: ReadonlySet<string>, b: ReadonlySet<string>): boolean => [...a].some((name) => b.has(name));
  return meets(one.written, other.read) || meets(one.written, other.written) || meets(one.read, other.written);
}
