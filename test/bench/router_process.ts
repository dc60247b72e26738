/** A router as users start it, in a process of its own, on ports that the system picks. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { projectPath } from '../support/project.ts';

/** A router that serves. */
export interface RouterProcess {
  readonly process: ChildProcess;
  readonly url: string;
  /** Address at which instances join: that of its hub, or of the NATS server of `--bus`. */
  readonly hub: string;
}

/** Starts a router of this model; `started` gets its process at once. */
export async function startRouter(
  model: string,
  started: ChildProcess[],
  { args = [], nodeArgs = [] }: { readonly args?: readonly string[]; readonly nodeArgs?: readonly string[] } = {},
): Promise<RouterProcess> {
  const own = ['--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0', '--model', model, '--log-level', 'error'];
  const command = [...nodeArgs, projectPath('dist/services/cli/main.js'), 'router', ...own, ...args];
  const router = spawn(process.execPath, command, { stdio: ['ignore', 'pipe', 'pipe'] });
  started.push(router);
  router.stderr.pipe(process.stderr);
  const [line] = (await once(createInterface({ input: router.stdout }), 'line')) as [string];
  const [, url = '', hub = ''] = /ready: (\S+), (?:hub|bus) (\S+)/.exec(line) ?? [];
  return { process: router, url, hub };
}
