/** Processes that serve the readers: the router of this project with instances, or a peer's router with model servers, which emit on a clock. */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { harbour, temporaryFolder } from '../../support/cluster.ts';
import { projectPath } from '../../support/project.ts';
import { startRouter } from '../router_process.ts';
import { SglangRouter } from '../sglang_peer.ts';

/** A router, and the instances or model servers to which it forwards. */
export interface Served {
  readonly url: string;
  readonly model: string;
  readonly router: ChildProcess;
  readonly servers: readonly ChildProcess[];
  /** Ends all processes. */
  close(): void;
}

/** Longest context, so that streams last as long as a measurement. */
export const CONTEXT = 131_072;
const INSTANCES = 2;
/** Options of Node for a profile; the interval is in microseconds. */
const PROFILED = ['--cpu-prof', '--cpu-prof-interval=500'];

/** Starts a router and two decode instances; `profiles` is the folder where the router leaves profiles when it ends. */
export async function servePenstock(numRequests: number, profiles?: string): Promise<Served> {
  const folder = temporaryFolder();
  const started: ChildProcess[] = [];
  const close = (): void => {
    for (const child of started) child.kill('SIGKILL');
    folder.remove();
  };
  try {
    for (const name of ['tokenizer.json', 'tokenizer_config.json', 'generation_config.json'])
      copyFileSync(join(harbour, name), join(folder.path, name));
    const config = JSON.parse(readFileSync(join(harbour, 'config.json'), 'utf8')) as object;
    writeFileSync(join(folder.path, 'config.json'), JSON.stringify({ ...config, max_position_embeddings: CONTEXT }));
    const args = ['--served-model-name', 'harbour', '--max-requests', String(Math.max(1_024, numRequests))];
    const nodeArgs = profiles === undefined ? [] : [...PROFILED, `--cpu-prof-dir=${profiles}`];
    const { process: router, url, hub } = await startRouter(folder.path, started, { args, nodeArgs });
    const servers = Array.from({ length: INSTANCES }, () =>
      fork(projectPath('dist/test/bench/stream/decode_process.js'), [hub, folder.path]),
    );
    started.push(...servers);
    await Promise.all(servers.map((one) => once(one, 'message')));
    return { url, model: 'harbour', router, servers, close };
  } catch (error) {
    close();
    throw error;
  }
}

/** Starts sglang-router and two model servers. @throws Error when it cannot be had */
export async function serveSglang(print: (line: string) => void): Promise<Served> {
  const { url, router, servers, processes } = await SglangRouter.start(print, 'stream/server_process');
  const close = (): void => {
    for (const child of processes) child.kill('SIGKILL');
  };
  return { url, model: 'ids-only', router, servers, close };
}

/** Starts the clock of an instance or a model server. */
export async function startClock(server: ChildProcess): Promise<void> {
  server.send('start');
  await once(server, 'message');
}

/** Asks an instance or a model server for the number of its open sequences. */
export async function numOpenAt(server: ChildProcess): Promise<number> {
  server.send('count');
  const [numOpen] = (await once(server, 'message')) as [number];
  return numOpen;
}
