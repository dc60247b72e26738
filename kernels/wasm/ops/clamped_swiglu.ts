import { gatedMul } from './gated.ts';

/** The `clamped_swiglu` operation: (up + 1) · gate · sigmoid(alpha · gate), both clamped. Threads split rows or columns. */
export const clampedSwiglu = gatedMul('clamped_swiglu');
