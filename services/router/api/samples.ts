/** The samples of a prompt, each a run of its own. */
import type { RequestCounts } from '../record/request_counts.ts';
import type { RequestTrace } from '../record/request_log.ts';
import type { Generation } from '../relay/generation.ts';
import type { ApiContext } from './api_context.ts';
import { logged } from './logged_run.ts';
import { samplesOf } from './new_generation.ts';
import type { AnswerDelta } from './prompt_output.ts';
import { runPrompt } from './prompt_run.ts';
import type { RequestScope } from './request_scope.ts';

/** One sample of a prompt of a request, under way. */
export interface PromptRun {
  readonly trace: RequestTrace;
  readonly generation: Generation;
  /** The first sample of the prompt, which has the counts and log-probabilities of the prompt. */
  readonly first: Generation;
  readonly deltas: AsyncGenerator<AnswerDelta>;
  /** The prompt, as text or token ids, that the choice's text begins with; undefined without `echo`. */
  readonly echo: string | Uint32Array | undefined;
}

/** The samples of all prompts of a request: at least one. */
export type PromptRuns = readonly [PromptRun, ...PromptRun[]];

/** Opens the runs of a prompt: one per sample. Every one starts when its first delta is requested. */
export function startSamples(
  context: ApiContext,
  scope: RequestScope,
  { trace, generation, echo }: Pick<PromptRun, 'trace' | 'generation' | 'echo'>,
  numSamples: number,
): [PromptRun, ...PromptRun[]] {
  const start = (sample: Generation, own: RequestTrace, first: Generation): PromptRun => {
    const { codec, promptLog } = context;
    const run = runPrompt(context, own, sample, scope);
    const deltas = scope.own(promptLog ? logged(codec, promptLog, { id: own.id, generation: sample }, run) : run);
    return { trace: own, generation: sample, first, deltas, echo };
  };
  trace.wanted.numSamples = numSamples;
  const [first, ...others] = samplesOf(generation, numSamples, trace.id);
  return [start(first, trace, first), ...others.map((sample) => start(sample, scope.openSample(trace), first))];
}

/** Returns the counts of all runs. */
export function countsOf(runs: readonly Pick<PromptRun, 'generation'>[]): RequestCounts[] {
  return runs.map(({ generation }) => generation.counts);
}

/**
 * Resolves when no prefill of the runs is running. The tokens have arrived by then; a report with counts may come a moment later, or is
 * given up with its instance.
 */
export async function countsWhole(runs: readonly Pick<PromptRun, 'generation'>[], signal: AbortSignal): Promise<void> {
  for (const counts of countsOf(runs)) await counts.prefillsEnded(signal);
}
