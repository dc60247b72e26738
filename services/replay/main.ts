/** The commands `penstock replay` and `penstock plan`, as `services/cli` loads them. */
import type { Threads } from '../../shared/base/threads.ts';
import { planCommand } from './plan_command.ts';
import { createRunner } from './replay.ts';
import { replayCommand, type ReplayHost } from './replay_command.ts';

/**
 * Runs `penstock replay` over `threads`, at most `numThreads` at once. Rejects with a ConfigError for wrong arguments and a Failure for a
 * trace or hardware that is refused.
 */
export async function replay(
  args: readonly string[],
  host: ReplayHost,
  { threads, numThreads }: { readonly threads: Threads; readonly numThreads: number },
): Promise<void> {
  await replayCommand(args, host, createRunner(threads, numThreads));
}

/** Runs `penstock plan`. Rejects as `replay` does. */
export async function plan(args: readonly string[], host: ReplayHost): Promise<void> {
  await planCommand(args, host);
}
