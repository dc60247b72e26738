import type { KernelSpec } from '../kernel.ts';
import { operation } from './operation.ts';

/** A token of each row that asks for one, as draw.ts defines it; one workgroup per sample. */
export const drawKernel = {
  name: 'draw',
  uses: ['wide'],
  params: { vocab: 'u32', stride: 'u32' },
  buffers: {
    logits: { access: 'read', dtype: 'u32' },
    step: { access: 'read', dtype: 'u32' },
    exp2_table: { access: 'read', dtype: 'u32' },
    pages: { access: 'read_write', dtype: 'u32' },
    slots: { access: 'read_write', dtype: 'u32' },
    results: { access: 'read_write', dtype: 'u32' },
  },
  constants: { WORKGROUP_SIZE: 256 },
} as const satisfies KernelSpec;

export const draw = operation('draw', (plan, op) => {
  const { step, exp2Table, drawPages, slots, results } = plan.resources;
  const logits = plan.buffer(op.logits);
  plan.push({
    spec: drawKernel,
    params: { vocab: op.vocab, stride: logits.stride },
    bindings: { logits: logits.buffer, step, exp2_table: exp2Table, pages: drawPages, slots, results },
    grid: ({ drawn, samples }) => [drawn > 0 ? samples : 0, 1, 1],
    work: ({ drawn }) => ({ bytes: drawn * op.vocab * 8, flops: 0 }),
  });
});
