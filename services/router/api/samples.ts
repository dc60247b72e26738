/** The samples of a prompt, each a run of its own. */
import type { RequestCounts } from '../record/request_counts.ts';
import type { RequestTrace } from '../record/request_trace.ts';
import type { Generation } from '../relay/generation.ts';
import type { ApiContext } from './api_context.ts';
import { logged } from './logged_run.ts';
import { samplesOf } from './new_generation.ts';
import type { AnswerDelta } from './prompt_output.ts';
import { runPrompt } from './prompt_run.ts';
import type { RequestScope } from './request_scope.ts';

/** The first sample of a prompt, whose counts and log-probabilities are the prompt's. */
type FirstSample = Pick<PromptRun, 'trace' | 'generation'>;

/** One sample of a prompt of a request, under way. */
export interface PromptRun {
  readonly trace: RequestTrace;
  readonly generation: Generation;
  readonly first: FirstSample;
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
  const start = (sample: FirstSample, first: FirstSample): PromptRun => {
    const { codec, promptLog } = context;
    const run = runPrompt(context, sample.trace, sample.generation, scope);
    const { id } = sample.trace;
    const deltas = scope.own(promptLog ? logged(codec, promptLog, { id, generation: sample.generation }, run) : run);
    return { ...sample, first, deltas, echo };
  };
  trace.emit({ kind: 'read', facts: { numSamples } });
  const [own, ...others] = samplesOf(generation, numSamples, trace.id);
  const first = { trace, generation: own };
  return [
    start(first, first),
    ...others.map((sample) => start({ trace: scope.openSample(trace), generation: sample }, first)),
  ];
}

/** Returns the counts of all runs. */
export function countsOf(runs: readonly Pick<PromptRun, 'trace'>[]): RequestCounts[] {
  return runs.map(({ trace }) => trace.record.counts);
}

/**
 * Resolves when no prefill of the runs is running. The tokens have arrived by then; a report with counts may come a moment later, or is
 * given up with its instance.
 */
export async function countsWhole(runs: readonly Pick<PromptRun, 'trace'>[], signal: AbortSignal): Promise<void> {
  for (const { trace } of runs) await trace.prefillsEnded(signal);
}
