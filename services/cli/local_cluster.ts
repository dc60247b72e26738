/**
 * `penstock up`: a small cluster on one machine, of the same processes as anywhere else.
 *
 *   router ──ready──► stores, prefills, decodes ──all ready──► prints its URLs        Ctrl-C ──► every child drains and ends
 *      a child that served and dies is restarted at once; one that dies young after a pause: 0.25 s, doubling to 10 s
 */
import assert from 'node:assert/strict';
import { fork, type ChildProcess } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { Backoff } from '../../shared/base/backoff.ts';
import { every, type Clock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { DONE } from '../../shared/base/signal.ts';
import { ConfigError, environmentOf } from '../../shared/base/options.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { openModel } from '../../shared/model/open_model.ts';
import type { Model } from '../../shared/model/model_folder.ts';
import { ProgressLine } from './progress_line.ts';
import type { LoadingMessage, ReadyMessage, ServingMessage } from './role_process.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { childArguments, membersOf } from './child_arguments.ts';
import { EngineDivision } from './engine_division.ts';
import { exampleCall } from './example_call.ts';
import { clusterTokens } from './lease_process.ts';
import { LogLines } from './log_lines.ts';
import { isStartedByNpm, watchParent } from './npm_parent.ts';
import type { ClusterConfig, ClusterLine, RoleTables } from './tables.ts';

/** Milliseconds for which `up` waits, once all processes are there, until its router can answer. */
const SERVING_MS = 10_000;

const MIN_PAUSE_MS = 250;
const MAX_PAUSE_MS = 10_000;
/**
 * Milliseconds after a child is ready until it no longer counts as young. A young child that dies is restarted after a pause, because
 * it would probably die again.
 */
const YOUNG_MS = 1_000;
/** Milliseconds between two checks whether the npm that started this process still lives. */
const PARENT_MS = 500;
/** Milliseconds after the children's own drain timeout until they are killed. */
const KILL_GRACE_MS = 5_000;

interface Child {
  readonly role: Role;
  readonly name: string;
  process: ChildProcess;
  ready: ReadyMessage | undefined;
  /** Time at which this process was ready; undefined before. */
  readyMs: number | undefined;
  /** Pauses before the restarts of a child that died young. */
  readonly backoff: Backoff;
}

/** The cluster of `penstock up`: starts its processes, restarts those that die, and drains all of them at the end. */
export class LocalCluster {
  readonly #line: ClusterLine;
  readonly #config: ClusterConfig;
  readonly #isJson: boolean;
  readonly #tables: RoleTables;
  readonly #clock: Clock;
  readonly #children: Child[] = [];
  /** Address of the router's hub, chosen at its first start and kept when the router restarts; `#httpBind` likewise. */
  #hubAddress = '';
  #httpBind = '';
  #division: EngineDivision | undefined;
  readonly #token: string;
  #isEnding = false;
  /** Aborts when the router can answer requests. */
  readonly #serving = new AbortController();
  readonly #progress: ProgressLine;
  /** Loading progress of the children that load weights, by name. */
  readonly #loading = new Map<string, { readonly doneBytes: number; readonly totalBytes: number }>();

  constructor(line: ClusterLine, tables: RoleTables, clock: Clock) {
    const { config, isJson } = line;
    this.#line = line;
    this.#config = config;
    this.#tables = tables;
    this.#isJson = isJson;
    this.#clock = clock;
    this.#progress = new ProgressLine(process.stderr, () => clock.nowMs());
    this.#token = config.cluster_token || randomBytes(24).toString('hex');
  }

  /**
   * Starts the cluster and resolves when all of it is ready. A signal ends the cluster; a child that cannot start ends this process
   * with code 1.
   */
  async run(): Promise<void> {
    process.title = 'penstock up';
    if (this.#config.advertise !== '') {
      throw new ConfigError(
        '--advertise is for a single process: leave it out with `up`, whose processes all listen on 127.0.0.1',
      );
    }
    this.#division = await EngineDivision.of(this.#config);
    const { models: paths } = this.#division;
    const startMs = this.#clock.nowMs();
    const models = await Promise.all(paths.map((path) => openModel(path)));
    this.#refuseAmbiguous(models);
    for (const model of models) {
      shapeOf(model);
      await (await model.openWeights()).close();
    }
    process.on('SIGINT', () => void this.#end('SIGTERM'));
    process.on('SIGTERM', () => void this.#end('SIGTERM'));
    process.on('SIGHUP', () => void this.#end('SIGTERM'));
    this.#endWithNpm();
    this.#print(`starting with the model${paths.length > 1 ? 's' : ''} ${paths.join(', ')}`);
    try {
      const router = await this.#start('router', 'router');
      this.#hubAddress = router.address;
      this.#httpBind = router.url?.replace(/^https?:\/\//, '') ?? '';
      this.#keepToken();
      await Promise.all(membersOf(this.#config, paths.length).map(({ role, name }) => this.#start(role, name)));
    } catch (error) {
      process.stderr.write(`penstock up: ${messageOf(error)}\n`);
      await this.#end('SIGKILL', 1);
    }
    // Members have joined; the router may still wait for their first heartbeats.
    if (this.#children.some(({ role }) => role === 'decode')) await this.#clock.sleep(SERVING_MS, this.#serving.signal);
    const [first] = models;
    if (first) this.#announce(first, this.#clock.nowMs() - startMs);
  }

  /** Keeps a token that this process has made where commands of the same user find it, until this process ends. */
  #keepToken(): void {
    if (this.#config.cluster_token !== '') return;
    try {
      process.once('exit', clusterTokens.keep(this.#hubAddress, this.#token));
    } catch (error) {
      process.stderr.write(
        `penstock up: cannot keep the cluster token for \`penstock policy\` (${messageOf(error)}): set PENSTOCK_CLUSTER_TOKEN for both\n`,
      );
    }
  }

  /** Drains the cluster when npm has died, which may happen without a signal to this process. */
  #endWithNpm(): void {
    if (!isStartedByNpm(process.env)) return;
    const isOrphan = watchParent();
    const ended = new AbortController();
    every(this.#clock, PARENT_MS, ended.signal, () => {
      if (!isOrphan()) return;
      ended.abort();
      if (!this.#isEnding) void this.#end('SIGTERM');
    });
  }

  /** Checks that each model has its own name in the API. @throws ConfigError otherwise. */
  #refuseAmbiguous(models: readonly Model[]): void {
    if (models.length > 1 && this.#config.served_model_name !== '')
      throw new ConfigError('--served-model-name is the name of one model, and there are several --model');
    const names = models.map(({ name }) => name);
    const twice = names.find((name, i) => names.indexOf(name) !== i);
    if (twice !== undefined) throw new ConfigError(`two of --model are called ${twice}: rename a folder, or serve one`);
  }

  #announce(model: Model, startUpMs: number): void {
    const router = this.#children.find(({ role }) => role === 'router')?.ready;
    const { url = '', bus = '' } = router ?? {};
    if (this.#isJson) {
      const processes = this.#children.map(({ role, name, ready }) => ({
        role,
        name,
        address: ready?.address,
        pid: ready?.pid,
      }));
      process.stdout.write(`${JSON.stringify({ url, processes })}\n`);
      return;
    }
    const call = exampleCall(
      url,
      this.#config.served_model_name || model.name,
      model.hasTokenizer,
      this.#config.keys !== '',
    );
    this.#print(
      `ready in ${(startUpMs / 1_000).toFixed(1)} s: OpenAI API ${url}/v1, dashboard ${url}/dashboard, ${bus}`,
    );
    this.#print(`try:\n\n${call}\n`);
    this.#print('Ctrl-C ends it.');
  }

  async #start(role: Role, name: string): Promise<ReadyMessage> {
    const child: Child = {
      role,
      name,
      process: this.#fork(role, name),
      ready: undefined,
      readyMs: undefined,
      backoff: new Backoff({ clock: this.#clock, firstMs: MIN_PAUSE_MS, mostMs: MAX_PAUSE_MS }),
    };
    this.#children.push(child);
    return this.#supervise(child);
  }

  /**
   * Resolves when the child is ready, and restarts it when it dies later. @throws Error when the child ends before it has ever been
   * ready.
   */
  #supervise(child: Child): Promise<ReadyMessage> {
    child.readyMs = undefined;
    return new Promise((resolve, reject) => {
      child.process.on('message', (message: ReadyMessage | LoadingMessage | ServingMessage) => {
        if (message.kind === 'serving') {
          this.#serving.abort(DONE);
          return;
        }
        if (message.kind === 'loading') {
          this.#showLoading(child, message);
          return;
        }
        const isFirst = child.ready === undefined;
        child.ready = message;
        child.readyMs = this.#clock.nowMs();
        const { address, url, device, pid } = message;
        const what = device === undefined ? '' : `, ${device}`;
        this.#print(`${child.name} ${isFirst ? 'started' : 'is back'}: ${url ?? address}, pid ${pid}${what}`);
        resolve(message);
      });
      child.process.once('exit', (code, signal) => {
        if (this.#isEnding) return;
        const how = signal ? `was killed by ${signal}` : `ended with code ${code}`;
        if (child.ready === undefined) {
          reject(new Error(`${child.name} ${how} before it was ready`));
          return;
        }
        void this.#restart(child, how);
      });
    });
  }

  /** Shows the loading progress of all instances that are loading, summed, on standard error. */
  #showLoading(child: Child, { doneBytes, totalBytes }: LoadingMessage): void {
    this.#loading.set(child.name, { doneBytes, totalBytes });
    const all = [...this.#loading.values()];
    const sum = (key: 'doneBytes' | 'totalBytes'): number => all.reduce((total, one) => total + one[key], 0);
    const file = `weights of ${this.#loading.size} instance${this.#loading.size === 1 ? '' : 's'}`;
    this.#progress.show({ file, doneBytes: sum('doneBytes'), totalBytes: sum('totalBytes') });
    if (all.every((one) => one.doneBytes >= one.totalBytes)) this.#loading.clear();
  }

  async #restart(child: Child, how: string): Promise<void> {
    const isYoung = child.readyMs === undefined || this.#clock.nowMs() - child.readyMs < YOUNG_MS;
    if (!isYoung) child.backoff.reset();
    const pauseMs = isYoung ? child.backoff.lengthen() : 0;
    this.#print(`${child.name} ${how}; starting it again${pauseMs > 0 ? ` in ${pauseMs / 1_000} s` : ''}`);
    await this.#clock.sleep(pauseMs);
    if (this.#isEnding) return;
    child.process = this.#fork(child.role, child.name);
    await this.#supervise(child);
  }

  #fork(role: Role, name: string): ChildProcess {
    const division = this.#division;
    assert(division, 'no child starts before devices and cores are divided');
    const place = {
      role,
      name,
      hubAddress: this.#hubAddress,
      httpBind: this.#httpBind,
      index: [...this.#children.map((one) => one.name), name].indexOf(name),
    };
    const child = fork(
      fileURLToPath(new URL('./main.js', import.meta.url)),
      [role, ...childArguments(this.#line, this.#tables, division, place)],
      {
        // A group of its own: Ctrl-C reaches `up`, which ends the children in order.
        detached: true,
        stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
        // Tokens of a file are read from it by each process.
        env:
          this.#config.cluster_token_file === ''
            ? { ...process.env, [environmentOf('cluster_token')]: this.#token }
            : process.env,
      },
    );
    const lines = new LogLines(name, (line) => {
      process.stderr.write(`${line}\n`);
    });
    child.stderr?.on('data', (chunk: Buffer) => {
      lines.push(chunk.toString('utf8'));
    });
    return child;
  }

  async #end(signal: NodeJS.Signals, exitCode = 0): Promise<void> {
    if (this.#isEnding) {
      for (const child of this.#children) child.process.kill('SIGKILL');
      return;
    }
    this.#isEnding = true;
    const alive = this.#children.filter(
      (child) => child.process.exitCode === null && child.process.signalCode === null,
    );
    if (signal === 'SIGTERM') this.#print('ending: requests that run may finish; Ctrl-C again ends at once');
    const gone = (children: readonly Child[]): Promise<unknown> =>
      Promise.all(children.map((child) => new Promise((resolve) => child.process.once('exit', resolve))));
    const kill = this.#clock.sleep(this.#config.drain_timeout_ms + KILL_GRACE_MS).then(() => {
      for (const child of alive) child.process.kill('SIGKILL');
    });
    // The router ends first: it accepts no new requests and waits for the running ones, which need the other processes.
    const routers = alive.filter(({ role }) => role === 'router');
    const others = alive.filter(({ role }) => role !== 'router');
    for (const group of [routers, others]) {
      const ended = gone(group);
      for (const child of group) child.process.kill(signal);
      await Promise.race([ended, kill]);
    }
    this.#print('ended');
    process.exit(exitCode);
  }

  /** Standard output belongs to the JSON line when one was asked for. */
  #print(line: string): void {
    (this.#isJson ? process.stderr : process.stdout).write(`${line}\n`);
  }
}
