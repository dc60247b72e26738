/**
 * The roles of a local cluster in this process: real sockets, threads and data folders, each role with a host of its own, as `penstock up`
 * starts them. For suites that ask what the API answers; suites about processes start processes.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import type { Clock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { createLog } from '../../shared/base/log.ts';
import { readCommandLine, type OptionTable } from '../../shared/base/options.ts';
import type { Thread, Threads } from '../../shared/base/threads.ts';
import type { Listener, Network } from '../../shared/net/network.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import type { RunningRole } from '../../shared/node/role.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { childArguments, membersOf, type ChildPlace } from '../../services/cli/child_arguments.ts';
import { EngineDivision } from '../../services/cli/engine_division.ts';
import { modelFolder } from '../../services/cli/models.ts';
import { loadStart } from '../../services/cli/role_modules.ts';
import { realHost } from '../../services/cli/role_process.ts';
import { loadTables, tableOf, type ClusterLine, type RoleTables } from '../../services/cli/tables.ts';
import type { RunningCluster } from './running_cluster.ts';

/** One role, with the parts of its host that end with it. */
export class InProcessRole {
  readonly role: Role;
  readonly name: string;
  readonly #listeners: Listener[] = [];
  readonly #threads: Pick<Thread<unknown>, 'close'>[] = [];
  #network: Network | undefined;
  #running: RunningRole | undefined;
  #isDead = false;

  constructor(role: Role, name: string) {
    [this.role, this.name] = [role, name];
  }

  get ready(): RunningRole['ready'] {
    assert(this.#running, `${this.name} has started`);
    return this.#running.ready;
  }

  /** Starts the role. `onFail` is called when it would end its process later. */
  async start(config: ProcessConfig, onFail: (error: unknown) => void): Promise<void> {
    const start = await loadStart(this.role);
    const host = realHost(config, createLog(this.name, config.log_level), undefined);
    this.#network = host.network;
    const isAlive = (): boolean => !this.#isDead;
    this.#running = await start({
      ...host,
      role: this.role,
      config,
      clock: clockWhile(isAlive, host.clock),
      network: this.#recording(host.network),
      threads: this.#recordingThreads(host.threads),
      showLoading: () => undefined,
      drain: () => undefined,
      die: () => {
        this.kill();
      },
      fail: (error) => {
        if (isAlive()) onFail(error);
      },
    });
  }

  #recording(network: Network): Network {
    return {
      listen: async (...args) => {
        const listener = await network.listen(...args);
        this.#listeners.push(listener);
        return listener;
      },
      hostTowards: (peer) => network.hostTowards(peer),
      open: (...args) => network.open(...args),
      forget: (address) => {
        network.forget(address);
      },
      close: () => {
        network.close();
      },
    };
  }

  #recordingThreads(threads: Threads): Threads {
    return {
      spawn: (module, data, listener) => {
        const thread = threads.spawn(module, data, listener);
        this.#threads.push(thread);
        return thread;
      },
    };
  }

  async drain(): Promise<void> {
    if (!this.#isDead) await this.#running?.drain();
  }

  /** Drops the role's sockets and threads, and stops its clock: others see what they see of a process that was killed. */
  kill(): void {
    assert(this.role !== 'router', 'a router is killed as a process: Cluster.up');
    if (this.#isDead) return;
    this.#isDead = true;
    for (const listener of this.#listeners) void listener.close(0);
    this.#network?.close();
    for (const thread of this.#threads) void thread.close();
  }
}

/** Returns a clock that stands still when `isAlive` no longer holds. */
function clockWhile(isAlive: () => boolean, clock: Clock): Clock {
  const whileAlive = (wait: Promise<void>): Promise<void> =>
    wait.then(() => (isAlive() ? undefined : new Promise<void>(() => undefined)));
  return {
    nowMs: () => clock.nowMs(),
    wallMs: () => clock.wallMs(),
    sleep: (ms, signal) => whileAlive(clock.sleep(ms, signal)),
    turn: () => whileAlive(clock.turn()),
  };
}

async function readUp(args: readonly string[], tables: RoleTables): Promise<ClusterLine> {
  const table: OptionTable = tableOf('up', tables);
  const line = readCommandLine(table, { command: 'up', tables: { ...tables, up: table } }, args, {}) as ClusterLine;
  const names = line.config.model.split(',');
  const model = (await Promise.all(names.map((name) => modelFolder(name)))).join(',');
  return { ...line, config: { ...line.config, model }, flags: { ...line.flags, model } };
}

/** Starts the cluster that `penstock up ARGS` would start, in this process. */
export async function startInProcess(args: readonly string[]): Promise<RunningCluster> {
  const tables = await loadTables();
  const line = await readUp(args, tables);
  const division = await EngineDivision.of(line.config);
  const token = line.config.cluster_token || randomBytes(24).toString('hex');
  const errors: string[] = [];
  const roles: InProcessRole[] = [];
  const begin = async (place: ChildPlace): Promise<InProcessRole> => {
    const { role, name } = place;
    const own = new InProcessRole(role, name);
    roles.push(own);
    const arguments_ = childArguments(line, tables, division, place);
    const { config } = readCommandLine(tables[role], { command: role, tables }, arguments_, {});
    await own.start({ ...(config as unknown as ProcessConfig), cluster_token: token }, (error) => {
      errors.push(`${name} ended: ${messageOf(error)}`);
    });
    return own;
  };
  const end = async (): Promise<void> => {
    // The router ends first, as under `penstock up`.
    for (const isRouter of [true, false])
      await Promise.all(roles.filter(({ role }) => (role === 'router') === isRouter).map((one) => one.drain()));
  };
  try {
    const nowhere = { hubAddress: '', httpBind: '', bus: '' };
    const router = await begin({ role: 'router', name: 'router', index: 0, ...nowhere });
    const { address: hub, url = '' } = router.ready;
    const members = membersOf(line.config, division.models.length);
    await Promise.all(members.map((member, i) => begin({ ...member, index: i + 1, ...nowhere, hubAddress: hub })));
    return {
      url,
      hub,
      errors,
      end,
      crash: () => assert.fail('roles of one process do not crash together: Cluster.up'),
      pidOf: () => assert.fail('roles of one process have no process of their own: Cluster.up'),
      kill: (name, signal) => {
        assert.equal(signal, 'SIGKILL', 'a thread cannot be stopped: Cluster.up');
        const role = roles.find((one) => one.name === name);
        assert(role, `${name} is in the cluster`);
        role.kill();
      },
    };
  } catch (error) {
    await end();
    throw error;
  }
}
