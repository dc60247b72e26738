/** The bus of a local cluster with several routers: servers of --bus, or a nats-server of this machine that ends with the cluster. */
import { fork, type ChildProcess } from 'node:child_process';
import { accessSync, constants, statSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { messageOf } from '../../shared/base/failure.ts';
import { ConfigError, environmentOf, withoutAccounts } from '../../shared/base/options.ts';
import { reachBus } from './bus_servers.ts';
import type { EndedChild } from './local_child.ts';
import type { ClusterLine } from './tables.ts';

/** Variable with the token of a NATS server. */
export const BUS_TOKEN_VARIABLE = environmentOf('bus_token');
const PROGRAM = process.platform === 'win32' ? 'nats-server.exe' : 'nats-server';
/** Port of a nats-server that picks one itself. */
const ANY_PORT = '-1';

/**
 * Returns the path of the nats-server that a cluster has to start; undefined where it needs none, because it has one router or servers of its own,
 * one of which has just answered. @throws ConfigError where there is no nats-server, or an account for none; Error when no server of --bus answers
 */
export async function neededNatsServer({ config, isSet }: ClusterLine, path: string): Promise<string | undefined> {
  if (config.router === 1) return undefined;
  if (config.bus !== '') {
    await refuseUnreachable(config);
    return undefined;
  }
  const account = [...isSet].find((name) => name.startsWith('bus_'));
  if (account !== undefined)
    throw new ConfigError(
      `--${account.replaceAll('_', '-')} is for NATS servers, and none is named: add --bus nats://HOST:PORT, or leave it out, and \`up\` starts a nats-server of its own`,
    );
  const found = programIn(path);
  if (found === undefined)
    throw new ConfigError(
      `--router ${config.router}: several routers need a bus, and there is no nats-server in the PATH: install it (2.9 or later, https://github.com/nats-io/nats-server/releases), or name NATS servers with --bus nats://HOST:PORT`,
    );
  return found;
}

/** @throws Error when none of the servers of --bus takes a connection of this process */
async function refuseUnreachable(config: ClusterLine['config']): Promise<void> {
  try {
    await reachBus(config, 'penstock up');
  } catch (error) {
    if (error instanceof ConfigError) throw error;
    throw new Error(
      `several routers need a bus, and no server of --bus ${withoutAccounts(config.bus)} takes a connection: ${messageOf(error)}; start it, correct --bus and the account (--bus-user, --bus-token, --bus-nkey, --bus-credentials), or leave --bus out, and \`up\` starts a nats-server of the PATH`,
      { cause: error },
    );
  }
}

/** Returns the path of the first nats-server in the folders of a PATH. */
function programIn(path: string): string | undefined {
  const files = path
    .split(delimiter)
    .filter((folder) => folder !== '')
    .map((folder) => join(folder, PROGRAM));
  return files.find((file) => {
    try {
      accessSync(file, constants.X_OK);
      return statSync(file).isFile();
    } catch {
      return false;
    }
  });
}

/** Starts the process that runs `program`, a nats-server, for clients that have `token`: on a free port, after a restart on that of before. */
export function forkNatsServer(program: string, token: string, before: EndedChild | undefined): ChildProcess {
  // Its process could not end the server, which holds the port.
  if (before?.isKilled === true) killServer(before.ready.pid);
  const port = before === undefined ? ANY_PORT : new URL(before.ready.address).port;
  return fork(new URL('./nats_process.js', import.meta.url), [program, port], {
    // A group of its own: Ctrl-C reaches `up`, which ends the bus last.
    detached: true,
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    env: { ...process.env, [BUS_TOKEN_VARIABLE]: token },
  });
}

function killServer(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // The server has ended, too.
  }
}
