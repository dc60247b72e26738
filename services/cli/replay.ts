/** `penstock replay` and `penstock plan`: builds the host of the command, whose module is the router's. */
import { cpus } from 'node:os';
import { availableCores } from '../../shared/base/cpu_quota.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { proxiedFetch } from './proxied_fetch.ts';
import { loadReplay } from './role_modules.ts';

/** Milliseconds until a router must have answered, and most characters of its answer. */
const FETCH_MS = 10_000;
const MAX_LENGTH = 2 ** 20;

/** Runs a command with its arguments. @throws ConfigError for wrong arguments, Failure for a trace or hardware that is refused */
export async function runReplayCommand(command: 'replay' | 'plan', args: readonly string[]): Promise<void> {
  const { plan, replay } = await loadReplay();
  // A reader such as `head` that closes the pipe has what it wants.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => process.exit(error.code === 'EPIPE' ? 0 : 1));
  const numThreads = availableCores();
  const host = {
    clock: systemClock,
    out: process.stdout,
    errors: process.stderr,
    fetchText,
    machine: `${cpus()[0]?.model ?? process.arch}, ${numThreads} cores, Node ${process.version}`,
  };
  if (command === 'plan') await plan(args, host);
  else await replay(args, host, { threads: workerThreads, numThreads });
}

async function fetchText(url: string): Promise<string> {
  const response = await proxiedFetch(process.env)(url, { signal: AbortSignal.timeout(FETCH_MS) });
  if (!response.ok) throw new Error(`the answer has status ${response.status}`);
  const text = await response.text();
  if (text.length > MAX_LENGTH) throw new Error(`the answer has more than ${MAX_LENGTH} characters`);
  return text;
}
