/**
 * What every role's process does around its work: configuration in, ready out, drain on SIGTERM or Ctrl-C, a clear line and a
 * non-zero code when it cannot go on. Under `penstock up` the parent is told over IPC, and its death ends this process too.
 */
import { systemClock, type Clock } from '../base/clock.ts';
import { newId } from '../base/identity.ts';
import { messageOf } from '../base/failure.ts';
import { createLog, type Log } from '../base/log.ts';
import { entropySeed, Random } from '../base/random.ts';
import { GrpcNetwork } from '../net/grpc/grpc_network.ts';
import type { Network } from '../net/network.ts';
import { ConfigError, isLoopback, readCommandLine, type Config } from '../base/options.ts';
import type { Role } from '../protocol/membership.ts';

export interface RoleContext {
  readonly role: Role;
  readonly config: Config;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  readonly network: Network;
  /** This process, and this incarnation of it. */
  readonly identity: { readonly pid: number; readonly epoch: string };
  /** The process cannot go on: says why and ends it. */
  readonly fail: (error: unknown) => void;
  /** Ends the process at once, without a destructor. */
  readonly die: () => void;
  /** Everything the role promised is finished: ends the process. */
  readonly drain: () => void;
}

interface Ready {
  readonly name: string;
  /** gRPC HOST:PORT; for the router, that of the hub. */
  readonly address: string;
  /** Only the router has one. */
  readonly url?: string;
  readonly device?: string;
  readonly model?: string;
}

export interface RunningRole {
  readonly ready: Ready;
  /** Finishes what runs, takes nothing new; resolves when nothing is left. */
  drain(): Promise<void>;
}

/** What a role's process tells `penstock up`. */
export interface ReadyMessage extends Ready {
  readonly kind: 'ready';
  readonly role: Role;
  readonly pid: number;
}

const EXIT_REFUSED = 1;
const EXIT_USAGE = 2;

export async function runRole(role: Role, start: (context: RoleContext) => Promise<RunningRole>): Promise<void> {
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
  process.on('SIGTERM', () => void end());
  process.on('SIGINT', () => void end());
  // The parent died without a word: nobody would end this process.
  process.on('disconnect', endNow);
  try {
    const { config } = readCommandLine(process.argv.slice(2), process.env);
    process.title = `penstock ${role} ${config.name}`.trim();
    refuseOpenPorts(config);
    const log = createLog(config.name || role, config.log_level);
    const clock = systemClock;
    running = await start({
      ...{ role, config, clock, log, fail, die: endNow, drain: () => void end() },
      random: new Random(entropySeed()),
      network: new GrpcNetwork(config.cluster_token, clock),
      identity: { pid: process.pid, epoch: newId() },
    });
    const { ready } = running;
    const message: ReadyMessage = { kind: 'ready', role, pid: process.pid, ...ready };
    if (process.send) process.send(message);
    else
      process.stdout.write(
        `penstock ${role} ${ready.name} ready: ${ready.url ? `${ready.url}, hub ` : ''}${ready.address}\n`,
      );
  } catch (error) {
    fail(error);
  }
}

/** Without a destructor: a GPU that still computes would make an ordinary exit an abort. */
function endNow(): void {
  process.kill(process.pid, 'SIGKILL');
}

/** Whoever listens beyond this machine needs a token. */
function refuseOpenPorts({ bind, hub_bind: hubBind, cluster_token: token }: Config): void {
  const open = [bind, hubBind].find((address) => address !== '' && !isLoopback(address));
  if (open !== undefined && token === '') {
    throw new ConfigError(
      `refusing to listen on ${open} without a cluster token: set PENSTOCK_CLUSTER_TOKEN, the same for every process`,
    );
  }
}
