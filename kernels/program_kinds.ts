/** Operations of a program by what they are for, whatever their kind. */
import type { Operation, OperationOf, Program } from './program.ts';

/** Whether the operation stores the KV of its layer: every program has one for each layer that stores any. */
export function isStore(op: Operation | undefined): op is OperationOf<'rope_store' | 'latent_store'> {
  return op?.kind === 'rope_store' || op?.kind === 'latent_store';
}

/** Whether the operation reads the KV of its layer. */
export function isAttention(op: Operation): op is OperationOf<'attention' | 'latent_attention'> {
  return op.kind === 'attention' || op.kind === 'latent_attention';
}

/** Returns the most experts, and the most experts per token, that any mixture of the program has; both are 0 when the program has none. */
export function widestMixture({ operations }: Pick<Program, 'operations'>): {
  readonly experts: number;
  readonly perToken: number;
} {
  const routes = operations.filter((op) => op.kind === 'route');
  return {
    experts: Math.max(0, ...routes.map(({ experts }) => experts)),
    perToken: Math.max(0, ...routes.map(({ perToken }) => perToken)),
  };
}

/** Returns the operation of a program that reads logits, or undefined when the program neither samples nor lists candidates. */
export function samplingOf({
  operations,
}: Pick<Program, 'operations'>): OperationOf<'candidates' | 'sample'> | undefined {
  return operations.find((op) => op.kind === 'candidates' || op.kind === 'sample');
}

/**
 * Returns the buffer of hidden states, which `Segment.hidden` receives: the program's only one of kind `hidden`; undefined when it has
 * none.
 */
export function hiddenOf({
  buffers,
}: Pick<Program, 'buffers'>): { readonly name: string; readonly width: number } | undefined {
  const [found] = Object.entries(buffers).filter(([, { rows }]) => rows === 'hidden');
  return found && { name: found[0], width: found[1].width };
}
