/** Stages of a report of a GPU, in order; what they say, and how long each may take on a card. */
import type { Figure } from '../bench/figures.ts';

export const stageSeconds = {
  device: 20,
  kernels: 60,
  peaks: 40,
  loads: 30,
  decode: 120,
  prefill: 60,
  mixture: 60,
  sweeps: 60,
  peer: 60,
} as const;

export type StageName = keyof typeof stageSeconds;
export const stageNames = Object.keys(stageSeconds) as StageName[];

/** From a stage's process; `end` comes last. */
export type StageMessage =
  | { readonly kind: 'figure'; readonly figure: Figure }
  | { readonly kind: 'facts'; readonly facts: Readonly<Record<string, unknown>> }
  | { readonly kind: 'end'; readonly error?: string };
