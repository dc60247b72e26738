/** Milliseconds of engines that a request is predicted to take, by the step times that its instances report. */
import { stepMs, type StepTime } from '../../../shared/protocol/instance_work.ts';
import type { Chosen } from '../../../shared/placement/conductor.ts';
import type { PlacedWork } from '../../../shared/placement/open_placements.ts';
import type { Instance } from '../../../shared/placement/instance.ts';

/** A row counts as a millisecond on an instance that has reported no step time. */
const NOMINAL: StepTime = { constantMs: 0, rowMs: 1, pairMs: 0, contextMs: 0, sequenceMs: 0 };

/**
 * Returns the milliseconds that a placed request takes of its instances until `outputTokens` are generated. Tokens that are held already
 * are no part of its work. The time that any step takes is divided among the sequences that generate at the instance.
 */
export function predictedMs({ decode, prefill, work }: Chosen, outputTokens: number): number {
  const { contextTokens } = work.decode.coming;
  const readTokens = outputTokens * (contextTokens + outputTokens / 2);
  const others = decode.work?.generating.sequences ?? 0;
  const { step = NOMINAL } = decode.work ?? {};
  const tokens = { rows: outputTokens, pairs: 0, contextTokens: readTokens, sequences: outputTokens };
  const tokensMs = stepMs(step, tokens) - step.constantMs + (step.constantMs * outputTokens) / (others + 1);
  return tokensMs + promptsMs(decode, work.decode) + (prefill && work.prefill ? promptsMs(prefill, work.prefill) : 0);
}

function promptsMs({ work }: Instance, { prompts: { tokens, pairs, sequences } }: PlacedWork): number {
  const { step = NOMINAL, chunkTokens = Infinity } = work ?? {};
  const numSteps = tokens / chunkTokens;
  return stepMs(step, { rows: tokens, pairs, contextTokens: 0, sequences }) + (numSteps - 1) * step.constantMs;
}
