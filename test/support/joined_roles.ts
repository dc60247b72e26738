/** A cluster whose roles a test starts one by one, each with options and an environment of its own. A role that is killed does not come back. */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Cluster, harbour, run } from './cluster.ts';
import type { RunningCluster } from './running_cluster.ts';
import { until } from './until.ts';

const TOKEN = { PENSTOCK_CLUSTER_TOKEN: 'a-secret-of-joined-roles' };

/** The processes of the cluster, by name. */
export class JoinedRoles implements RunningCluster {
  url = '';
  hub = '';
  readonly errors: string[] = [];
  /** The cluster as its clients see it. */
  cluster!: Cluster;
  readonly #children = new Map<string, ChildProcess>();
  #folder = '';

  /** Starts a router with these arguments. */
  static async start(...args: string[]): Promise<JoinedRoles> {
    const roles = new JoinedRoles();
    roles.cluster = await Cluster.startedBy(async (folder) => {
      roles.#folder = folder;
      const place = ['--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0'];
      const line = await roles.#start('router', ['router', ...place, '--model', harbour, ...args]);
      [, roles.url = '', roles.hub = ''] = /ready: (\S+), hub (\S+)/.exec(line) ?? [];
      return roles;
    });
    return roles;
  }

  /** Starts an instance; resolves when it is in the pool. */
  async addInstance(role: 'prefill' | 'decode', name: string, ...args: string[]): Promise<void> {
    await this.#add(name, [role, '--model', harbour, '--threads', '1', ...args]);
  }

  /** Starts a store; resolves when it is in the pool. */
  async addStore(name: string): Promise<void> {
    await this.#add(name, ['store', '--data-dir', join(this.#folder, name)]);
  }

  async #add(name: string, args: string[]): Promise<void> {
    await this.#start(name, [...args, '--name', name, '--bind', '127.0.0.1:0', '--join', this.hub]);
    await until(`${name} is in the pool`, async () =>
      (await this.cluster.pool()).some((node) => node.name === name && node.state === 'alive'),
    );
  }

  /** Starts a process; resolves with the line that it prints when it is ready. */
  async #start(name: string, args: readonly string[]): Promise<string> {
    const child = run([...args, '--log-level', 'warn'], TOKEN);
    this.#children.set(name, child);
    assert(child.stdout && child.stderr);
    createInterface({ input: child.stderr }).on('line', (line) => this.errors.push(line));
    const line = await Promise.race([
      once(createInterface({ input: child.stdout }), 'line').then(([text]) => text as string),
      once(child, 'exit').then(() => undefined),
    ]);
    assert(line, `${name} ended:\n${this.errors.join('\n')}`);
    return line;
  }

  pidOf(name: string): number {
    const pid = this.#children.get(name)?.pid;
    assert(pid, `${name} has started`);
    return pid;
  }

  kill(name: string, signal: NodeJS.Signals): void {
    process.kill(this.pidOf(name), signal);
  }

  /** Drains instances, and waits until they have left the pool. */
  async remove(...names: readonly string[]): Promise<void> {
    await Promise.all(names.map((name) => this.#endBy(name, 'SIGTERM')));
    await until('they have left', async () => (await this.cluster.pool()).every(({ name }) => !names.includes(name)));
  }

  async #endBy(name: string, signal: NodeJS.Signals): Promise<void> {
    const child = this.#children.get(name);
    this.#children.delete(name);
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const exit = once(child, 'exit');
    child.kill(signal);
    // A test may have stopped it.
    child.kill('SIGCONT');
    await exit;
  }

  async end(): Promise<void> {
    for (const name of [...this.#children.keys()].reverse()) await this.#endBy(name, 'SIGTERM');
  }

  async crash(): Promise<void> {
    for (const name of [...this.#children.keys()]) await this.#endBy(name, 'SIGKILL');
  }
}
