/** The interface between the command and the runs: options with trace and hardware in, figures of the policies out. */
import type { Hardware } from './hardware.ts';
import type { ReplayProgress } from '../../shared/base/progress_text.ts';
import type { PolicyNames } from './replay_arguments.ts';
import type { ReplayOptions } from './replay_options.ts';
import type { PolicyFigures } from './report.ts';
import type { Trace } from '../../shared/trace/trace.ts';

/** Input of the runs: the options, and the trace and hardware that they name, read and checked. */
export interface ReplayInput {
  readonly options: ReplayOptions;
  readonly trace: Trace;
  readonly hardware: Hardware;
}

/**
 * Replays a trace under every policy of the options, at least one, and returns their figures in that order. Rejects with a Failure when
 * the options do not fit together.
 */
export type RunReplay = (
  input: ReplayInput,
  onProgress: (progress: ReplayProgress) => void,
) => Promise<readonly PolicyFigures[]>;

/** The runs, and the policies that they know, the default one first. */
export interface ReplayRunner {
  readonly policies: PolicyNames;
  readonly run: RunReplay;
}
