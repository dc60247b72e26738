/** `penstock replay` and `penstock plan`: builds the host of the command, whose module is the router's. */
import { cpus } from 'node:os';
import { availableCores } from '../../shared/base/cpu_quota.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { proxiedFetch } from './proxied_fetch.ts';
import { apiKeyOf, connectionTroubleOf, keyHeaders, refusalOf, troubleText } from './router_api.ts';
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

async function fetchText(url: string, keyFlag?: string): Promise<string> {
  const headers = keyHeaders(apiKeyOf(keyFlag, process.env));
  const options = { headers, signal: AbortSignal.timeout(FETCH_MS) };
  const response = await proxiedFetch(process.env)(url, options).catch((error: unknown) => {
    if ((error as Error).name === 'TimeoutError') throw error;
    throw new Error(troubleText(connectionTroubleOf(error)));
  });
  const text = await response.text();
  const { ok, status } = response;
  const trouble = ok ? undefined : refusalOf(status, text, 'authorization' in headers);
  if (!ok) throw new Error(trouble ? troubleText(trouble) : `the answer has status ${status}`);
  if (text.length > MAX_LENGTH) throw new Error(`the answer has more than ${MAX_LENGTH} characters`);
  return text;
}
