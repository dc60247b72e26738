/** A store, started alongside a cluster that the test can kill. */
/* eslint-disable time/speed -- `npm run chaos` measures; chaos.test.ts asks for no time */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { run, type Cluster } from '../../support/cluster.ts';

export class StoreProcess {
  readonly #process: ChildProcess;
  readonly log: string[];
  hasEnded = false;

  constructor(cluster: Cluster, dataDir: string, token: string, log: string[], more: readonly string[]) {
    this.log = log;
    this.#process = run(
      [
        ...['store', '--name', 'victim', '--join', cluster.hub, '--data-dir', dataDir],
        ...['--disk-bytes', '64MiB', '--log-level', 'warn', ...more],
      ],
      { PENSTOCK_CLUSTER_TOKEN: token },
    );
    this.#process.once('exit', () => (this.hasEnded = true));
    assert(this.#process.stderr && this.#process.stdout);
    createInterface({ input: this.#process.stderr }).on('line', (line) => log.push(line));
  }

  /** Resolves with the milliseconds it took to serve. */
  async ready(): Promise<number> {
    const startMs = performance.now();
    assert(this.#process.stdout);
    await Promise.race([once(createInterface({ input: this.#process.stdout }), 'line'), once(this.#process, 'exit')]);
    assert(!this.hasEnded, `the store ended at its start:\n${this.log.slice(-10).join('\n')}`);
    return performance.now() - startMs;
  }

  get pid(): number {
    return this.#process.pid ?? 0;
  }

  async kill(): Promise<void> {
    const exit = once(this.#process, 'exit');
    this.#process.kill('SIGKILL');
    await exit;
  }
}
