/** `penstock bench serve` and `penstock bench report`: builds the host of the command. */
import { setMaxListeners } from 'node:events';
import { systemClock } from '../../../shared/base/clock.ts';
import { ConfigError } from '../../../shared/base/options.ts';
import { openHttpClient } from './http_client.ts';
import { reportCommand } from './report_command.ts';
import { serveCommand } from './serve_command.ts';

const HELP = `penstock bench: load on a running server, and its figures

  serve     sends prompts at a rate or a concurrency, and measures as \`vllm bench serve\` does; penstock bench serve --help
  report    RUN.json... --html FILE: results of several runs as one page; penstock bench report --help
`;

/** Runs a command of `penstock bench` and returns its exit code. @throws ConfigError for wrong arguments, Failure for a server that is not there */
export async function runBenchCommand([command, ...args]: readonly string[]): Promise<number> {
  if (command === undefined || ['help', '--help', '-h'].includes(command)) {
    process.stdout.write(HELP);
    return 0;
  }
  if (command === 'report') return reportCommand(args, { out: process.stdout });
  if (command !== 'serve')
    throw new ConfigError(
      `penstock bench has no ${JSON.stringify(command)}: use serve or report; see \`penstock bench --help\``,
    );
  const ended = new AbortController();
  // One listener per request in flight, taken away when it ends.
  setMaxListeners(0, ended.signal);
  // The second signal ends the process, as nothing listens then.
  for (const name of ['SIGINT', 'SIGTERM'] as const)
    process.once(name, () => {
      ended.abort(new Error('the run was interrupted'));
    });
  // A reader such as `head` that closes the pipe has what it wants.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => process.exit(error.code === 'EPIPE' ? 0 : 1));
  return serveCommand(args, {
    clock: systemClock,
    out: process.stdout,
    errors: process.stderr,
    environment: process.env,
    signal: ended.signal,
    cpuMs: () => {
      const { user, system } = process.cpuUsage();
      return (user + system) / 1_000;
    },
    openClient: ({ baseUrl, apiKey, isInsecure }) => openHttpClient(baseUrl, { apiKey, isInsecure }),
  });
}
