/** The samples of a prompt, each a run of its own. */
import type { RequestCounts } from '../record/request_counts.ts';
import type { RequestTrace } from '../record/request_trace.ts';
import type { Generation } from '../relay/generation.ts';
import type { ApiContext } from './api_context.ts';
import { logged } from './logged_run.ts';
import { samplesOf } from './new_generation.ts';
import { runPrompt, type TakeOutput } from './prompt_run.ts';
import type { RequestScope } from './request_scope.ts';

/** The first sample of a prompt, whose counts and log-probabilities are the prompt's. */
type FirstSample = Pick<PromptRun, 'trace' | 'generation'>;

/** One sample of a prompt of a request. */
export interface PromptRun {
  readonly trace: RequestTrace;
  readonly generation: Generation;
  readonly first: FirstSample;
  /** Runs it, and gives its output to `take`. Rejects with what ends it before its last delta. */
  readonly run: (take: TakeOutput) => Promise<void>;
  /** The prompt, as text or token ids, that the choice's text begins with; undefined without `echo`. */
  readonly echo: string | Uint32Array | undefined;
}

/** The samples of all prompts of a request: at least one. */
export type PromptRuns = readonly [PromptRun, ...PromptRun[]];

/** Opens the runs of a prompt: one per sample. */
export function startSamples(
  context: ApiContext,
  scope: RequestScope,
  { trace, generation, echo }: Pick<PromptRun, 'trace' | 'generation' | 'echo'>,
  numSamples: number,
): [PromptRun, ...PromptRun[]] {
  const start = (sample: FirstSample, first: FirstSample): PromptRun => {
    const { codec, promptLog } = context;
    const { id } = sample.trace;
    const run = (take: TakeOutput): Promise<void> => runPrompt(context, sample.trace, sample.generation, scope, take);
    const { generation: own } = sample;
    const owned = (take: TakeOutput): Promise<void> =>
      scope.own(promptLog ? logged(codec, promptLog, { id, generation: own }, run, take) : run(take));
    return { ...sample, first, run: owned, echo };
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
