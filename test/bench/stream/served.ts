/** Processes that serve the readers: routers of this project with instances, or a peer's router with model servers, which emit on a clock. */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { PoolBody } from '../../../shared/protocol/router_api.ts';
import { harbour, temporaryFolder } from '../../support/cluster.ts';
import { NatsServer } from '../../support/nats_server.ts';
import { projectPath } from '../../support/project.ts';
import { until } from '../../support/until.ts';
import { startRouter, type RouterProcess } from '../router_process.ts';
import { SglangRouter } from '../sglang_peer.ts';

/** Routers, and the instances or model servers to which all of them forward. */
export interface Served {
  readonly model: string;
  readonly routers: readonly ServedRouter[];
  readonly servers: readonly ChildProcess[];
  /** Ends all processes. */
  close(): Promise<void>;
}

type ServedRouter = Pick<RouterProcess, 'url' | 'process'>;

interface PenstockOptions {
  /** Routers; several are connected by a NATS server, one has its own hub. */
  readonly numRouters: number;
  /** Requests at once that a router accepts. */
  readonly numRequests: number;
  /** Folder where routers leave profiles when they end. */
  readonly profiles?: string;
}

/** Longest context, so that streams last as long as a measurement. */
export const CONTEXT = 131_072;
const INSTANCES = 2;
/** Options of Node for a profile; the interval is in microseconds. */
const PROFILED = ['--cpu-prof', '--cpu-prof-interval=500'];

/** Starts routers and two decode instances, and waits until each router knows all of the others. */
export async function servePenstock({ numRouters, numRequests, profiles }: PenstockOptions): Promise<Served> {
  const folder = temporaryFolder();
  const started: ChildProcess[] = [];
  const nats = numRouters > 1 ? await NatsServer.start() : undefined;
  const close = async (): Promise<void> => {
    for (const child of started) child.kill('SIGKILL');
    await nats?.close();
    folder.remove();
  };
  try {
    writeModel(folder.path);
    const limit = ['--max-requests', String(Math.max(1_024, numRequests))];
    const nodeArgs = profiles === undefined ? [] : [...PROFILED, `--cpu-prof-dir=${profiles}`];
    const routers = await Promise.all(
      Array.from({ length: numRouters }, (_, i) => {
        const bus = nats ? ['--bus', nats.url, '--name', `router-${i + 1}`] : [];
        const args = ['--served-model-name', 'harbour', ...limit, ...bus];
        return startRouter(folder.path, started, { args, nodeArgs });
      }),
    );
    const servers = Array.from({ length: INSTANCES }, () =>
      fork(projectPath('dist/test/bench/stream/decode_process.js'), [routers[0]?.hub ?? '', folder.path]),
    );
    started.push(...servers);
    await Promise.all(servers.map((one) => once(one, 'message')));
    for (const { url } of routers)
      await until(`${url} knows all instances and routers`, () => isWhole(url, numRouters - 1));
    return { model: 'harbour', routers, servers, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Writes the repository's model without weights and with a longer context. */
function writeModel(folder: string): void {
  for (const name of ['tokenizer.json', 'tokenizer_config.json', 'generation_config.json'])
    copyFileSync(join(harbour, name), join(folder, name));
  const config = JSON.parse(readFileSync(join(harbour, 'config.json'), 'utf8')) as object;
  writeFileSync(join(folder, 'config.json'), JSON.stringify({ ...config, max_position_embeddings: CONTEXT }));
}

/** Whether a router sees all instances, and so many other routers. */
async function isWhole(url: string, numOthers: number): Promise<boolean> {
  const pool = (await (await fetch(`${url}/api/pool`)).json()) as PoolBody;
  const alive = pool.nodes.filter(({ role, state }) => role === 'decode' && state === 'alive');
  return alive.length === INSTANCES && pool.other_routers.length === numOthers;
}

/** Starts sglang-router and two model servers. @throws Error when it cannot be had */
export async function serveSglang(print: (line: string) => void): Promise<Served> {
  const { url, router, servers, processes } = await SglangRouter.start(print, 'stream/server_process');
  const close = (): Promise<void> => {
    for (const child of processes) child.kill('SIGKILL');
    return Promise.resolve();
  };
  return { model: 'ids-only', routers: [{ url, process: router }], servers, close };
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
