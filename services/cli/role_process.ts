/**
 * What every role's process does around its work: the host it runs on, configuration in, ready out, drain on SIGTERM or Ctrl-C, a
 * clear line and a non-zero code when it cannot go on. Under `penstock up` the parent is told over IPC, and its death ends this
 * process too.
 */
import { readFileSync } from 'node:fs';
import { systemClock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { newId } from '../../shared/base/identity.ts';
import { createLog } from '../../shared/base/log.ts';
import { ConfigError, isLoopback } from '../../shared/base/options.ts';
import { entropySeed, Random } from '../../shared/base/random.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import type { OpenBus } from '../../shared/bus/bus.ts';
import type { NatsServers } from '../../shared/bus/nats/nats_options.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import type { Host, Ready, RunningRole, StartRole } from '../../shared/node/role.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { dataFolders } from './data_folders.ts';

/** What a role's process tells `penstock up`. */
export interface ReadyMessage extends Ready {
  readonly kind: 'ready';
  readonly role: Role;
  readonly pid: number;
}

const EXIT_REFUSED = 1;
const EXIT_USAGE = 2;

export async function runRole(role: Role, config: ProcessConfig, start: StartRole<ProcessConfig>): Promise<void> {
  const say = (line: string): void => {
    process.stderr.write(`penstock ${role}: ${line}\n`);
  };
  const fail = (error: unknown): void => {
    say(messageOf(error));
    process.exit(error instanceof ConfigError ? EXIT_USAGE : EXIT_REFUSED);
  };
  let running: RunningRole | undefined;
  let isEnding = false;
  const end = async (): Promise<void> => {
    if (isEnding) endNow();
    isEnding = true;
    await running?.drain();
    process.exit(0);
  };
  // Asked twice over the network it goes on; a second signal means now.
  const drain = (): void => {
    if (!isEnding) void end();
  };
  process.on('SIGTERM', () => void end());
  process.on('SIGINT', () => void end());
  // The parent died without a word: nobody would end this process.
  process.on('disconnect', endNow);
  try {
    process.title = `penstock ${role} ${config.name}`.trim();
    refuseOpenPorts(config);
    const log = createLog(config.name || role, config.log_level);
    const host = realHost(config, log, await busServers(role, config, log));
    running = await start({ ...host, role, config, fail, drain });
    const { ready } = running;
    const message: ReadyMessage = { kind: 'ready', role, pid: process.pid, ...ready };
    if (process.send) process.send(message);
    else
      process.stdout.write(
        `penstock ${role} ${ready.name} ready: ${ready.url ? `${ready.url}, ${ready.bus}` : ready.address}\n`,
      );
  } catch (error) {
    fail(error);
  }
}

/** The real one. */
function realHost(config: ProcessConfig, log: Host['log'], openBus: OpenBus | undefined): Host {
  const clock = systemClock;
  return {
    ...{ clock, log, newId, openBus, die: endNow, folders: dataFolders, threads: workerThreads },
    random: new Random(entropySeed()),
    network: new GrpcNetwork(config.cluster_token, clock),
    identity: { pid: process.pid, epoch: newId() },
    kill: (pid) => {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // It has ended already.
      }
    },
  };
}

/** The bus that `--bus` names. @throws ConfigError for a file that cannot be read. */
async function busServers(role: Role, config: ProcessConfig, log: Host['log']): Promise<OpenBus | undefined> {
  if (config.bus === '') return undefined;
  /** A part of the servers' description: what a file holds, nothing where none is named. */
  const textOf = <Key extends string>(key: Key, flag: string, file: string): Partial<Record<Key, string>> => {
    if (file === '') return {};
    try {
      return { [key]: readFileSync(file, 'utf8') } as Record<Key, string>;
    } catch (error) {
      throw new ConfigError(`${flag} ${file}: ${messageOf(error)}`);
    }
  };
  const urls = config.bus.split(',');
  const bad = urls.find((url) => !URL.canParse(url));
  if (bad !== undefined) throw new ConfigError(`--bus ${bad}: nats://HOST:PORT or tls://HOST:PORT`);
  const servers: NatsServers = {
    ...{ urls, user: config.bus_user, password: config.bus_password },
    ...textOf('nkeySeed', '--bus-nkey', config.bus_nkey),
    ...textOf('credentials', '--bus-credentials', config.bus_credentials),
    ...textOf('ca', '--bus-ca', config.bus_ca),
    ...textOf('cert', '--bus-cert', config.bus_cert),
    ...textOf('key', '--bus-key', config.bus_key),
  };
  const name = `penstock ${config.cluster} ${config.name || role}`;
  // A cluster without NATS need not load its client.
  const { NatsBus } = await import('../../shared/bus/nats/nats_bus.ts');
  return (listener) => new NatsBus({ servers, name, clock: systemClock, log }, listener);
}

/** Without a destructor: a GPU that still computes would make an ordinary exit an abort. */
function endNow(): void {
  process.kill(process.pid, 'SIGKILL');
}

/** Whoever listens beyond this machine needs a token, and so does who speaks there. */
function refuseOpenPorts(config: ProcessConfig & { readonly hub_bind?: string }): void {
  const { bind, hub_bind: hubBind = '', bus, cluster_token: token } = config;
  if (token !== '') return;
  const open = [bind, hubBind].find((address) => address !== '' && !isLoopback(address));
  const set = 'set PENSTOCK_CLUSTER_TOKEN, the same for every process';
  if (open !== undefined) throw new ConfigError(`refusing to listen on ${open} without a cluster token: ${set}`);
  const away = bus.split(',').find((server) => URL.canParse(server) && !isLoopback(new URL(server).host));
  if (away !== undefined) throw new ConfigError(`refusing to use a bus on ${away} without a cluster token: ${set}`);
}
