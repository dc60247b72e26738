/**
 * `penstock up`: a small cluster on one machine, of the same processes as anywhere else.
 *
 *   (nats-server ──ready──►) routers ──ready──► stores, prefills, decodes ──all ready──► prints its URLs
 *   Ctrl-C ──► routers drain and end ──► stores, prefills, decodes drain and end (──► nats-server ends)
 *
 * A single router is the hub of the bus. Several meet over NATS: servers of --bus, else a nats-server that is a child as the others are.
 */
import assert from 'node:assert/strict';
import { fork, type ChildProcess } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { every, type Clock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { DONE } from '../../shared/base/signal.ts';
import { ConfigError, environmentOf } from '../../shared/base/options.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { openModel } from '../../shared/model/open_model.ts';
import type { Model } from '../../shared/model/model_folder.ts';
import { ProgressLine } from './progress_line.ts';
import type { LoadingMessage, ServingMessage } from './role_process.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { childArguments, membersOf, type ChildPlace } from './child_arguments.ts';
import { EngineDivision } from './engine_division.ts';
import { exampleCall } from './example_call.ts';
import { clusterTokens } from './lease_process.ts';
import { BUS_TOKEN_VARIABLE, forkNatsServer, neededNatsServer } from './local_bus.ts';
import { LocalChild, type EndedChild, type ReadyChild } from './local_child.ts';
import { isStartedByNpm, watchParent } from './npm_parent.ts';
import { routerPlaces, type RouterPlace } from './router_places.ts';
import type { ClusterConfig, ClusterLine, RoleTables } from './tables.ts';

/** Milliseconds for which `up` waits, once all processes are there, until its routers can answer. */
const SERVING_MS = 10_000;

/** Milliseconds between two checks whether the npm that started this process still lives. */
const PARENT_MS = 500;
/** Milliseconds after the children's own drain timeout until they are killed. */
const KILL_GRACE_MS = 5_000;

/** Bytes of a bus token, or of a cluster token, that `up` makes. */
const TOKEN_BYTES = 24;

/** The cluster of `penstock up`: starts its processes, restarts those that die, and drains all of them at the end. */
export class LocalCluster {
  readonly #line: ClusterLine;
  readonly #config: ClusterConfig;
  readonly #isJson: boolean;
  readonly #tables: RoleTables;
  readonly #clock: Clock;
  /** Processes of roles, routers first. */
  readonly #children: LocalChild[] = [];
  /** The nats-server that this cluster has started; undefined where it needs none. */
  #bus: LocalChild | undefined;
  #division: EngineDivision | undefined;
  readonly #token: string;
  /** Token of that nats-server, which keeps the other users of this machine out. */
  readonly #busToken = randomBytes(TOKEN_BYTES).toString('hex');
  #isEnding = false;
  /** Names of the routers that cannot answer requests yet. */
  readonly #notServing = new Set<string>();
  /** Aborts when all routers can answer requests. */
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
    this.#token = config.cluster_token || randomBytes(TOKEN_BYTES).toString('hex');
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
    const members = membersOf(this.#config, paths.length);
    const natsServer = await neededNatsServer(this.#line, process.env['PATH'] ?? '');
    const places = await routerPlaces(this.#config, this.#config.router + members.length);
    process.on('SIGINT', () => void this.#end('SIGTERM'));
    process.on('SIGTERM', () => void this.#end('SIGTERM'));
    process.on('SIGHUP', () => void this.#end('SIGTERM'));
    this.#endWithNpm();
    this.#print(`starting with the model${paths.length > 1 ? 's' : ''} ${paths.join(', ')}`);
    try {
      if (natsServer !== undefined) await this.#startBus(natsServer);
      for (const { name } of places) this.#notServing.add(name);
      const routers = await Promise.all(places.map((place) => this.#start('router', place.name, place)));
      for (const { address } of routers) this.#keepToken(address);
      await Promise.all(members.map(({ role, name }) => this.#start(role, name)));
    } catch (error) {
      process.stderr.write(`penstock up: ${messageOf(error)}\n`);
      await this.#end('SIGKILL', 1);
    }
    // Members have joined; routers may still wait for their first heartbeats.
    if (this.#children.some(({ role }) => role === 'decode')) await this.#clock.sleep(SERVING_MS, this.#serving.signal);
    const [first] = models;
    if (first) this.#announce(first, this.#clock.nowMs() - startMs);
  }

  /** Keeps a token that this process has made where commands of the same user find it by the address of a hub, until this process ends. */
  #keepToken(hubAddress: string): void {
    if (this.#config.cluster_token !== '') return;
    try {
      process.once('exit', clusterTokens.keep(hubAddress, this.#token));
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
    const routers = this.#children.filter(({ role }) => role === 'router');
    const urls = routers.map(({ ready }) => ready?.url ?? '');
    const [url = ''] = urls;
    if (this.#isJson) {
      const processes = [...this.#children, ...(this.#bus ? [this.#bus] : [])].map(({ role, name, ready }) => ({
        role,
        name,
        address: ready?.address,
        url: ready?.url,
        pid: ready?.pid,
      }));
      process.stdout.write(`${JSON.stringify({ url, urls, processes })}\n`);
      return;
    }
    const call = exampleCall(
      url,
      this.#config.served_model_name || model.name,
      model.hasTokenizer,
      this.#config.keys !== '',
    );
    const apis = urls.map((one) => `${one}/v1`).join(' and ');
    const pages = urls.map((one) => `${one}/dashboard`).join(' and ');
    const seconds = (startUpMs / 1_000).toFixed(1);
    this.#print(`ready in ${seconds} s: OpenAI API ${apis}, dashboard ${pages}, ${routers[0]?.ready?.bus ?? ''}`);
    const hubs = routers.map(({ ready }) => ready?.address).join(' or ');
    if (routers.length > 1) this.#print(`\`penstock policy\`, \`tenant\` and \`doctor\` find it by --router ${hubs}`);
    this.#print(`try:\n\n${call}\n`);
    this.#print('Ctrl-C ends it.');
  }

  async #startBus(natsServer: string): Promise<void> {
    this.#bus = this.#child('bus', 'nats-server', (before) => forkNatsServer(natsServer, this.#busToken, before));
    await this.#bus.start();
  }

  /** Starts a process of a role; a router has a place. */
  #start(role: Role, name: string, place?: RouterPlace): Promise<ReadyChild> {
    const index = this.#children.length;
    const child = this.#child(role, name, (before) => this.#fork({ role, name, index }, place, before));
    this.#children.push(child);
    return child.start();
  }

  #child(role: LocalChild['role'], name: string, fork: (before: EndedChild | undefined) => ChildProcess): LocalChild {
    return new LocalChild({
      role,
      name,
      clock: this.#clock,
      fork,
      print: (line) => {
        this.#print(line);
      },
      onMessage: (message) => {
        this.#take(name, message);
      },
      isEnding: () => this.#isEnding,
    });
  }

  #take(name: string, message: LoadingMessage | ServingMessage): void {
    if (message.kind === 'loading') {
      this.#showLoading(name, message);
      return;
    }
    this.#notServing.delete(name);
    if (this.#notServing.size === 0) this.#serving.abort(DONE);
  }

  /** Shows the loading progress of all instances that are loading, summed, on standard error. */
  #showLoading(name: string, { doneBytes, totalBytes }: LoadingMessage): void {
    this.#loading.set(name, { doneBytes, totalBytes });
    const all = [...this.#loading.values()];
    const sum = (key: 'doneBytes' | 'totalBytes'): number => all.reduce((total, one) => total + one[key], 0);
    const file = `weights of ${this.#loading.size} instance${this.#loading.size === 1 ? '' : 's'}`;
    this.#progress.show({ file, doneBytes: sum('doneBytes'), totalBytes: sum('totalBytes') });
    if (all.every((one) => one.doneBytes >= one.totalBytes)) this.#loading.clear();
  }

  #fork(
    child: Pick<ChildPlace, 'role' | 'name' | 'index'>,
    place: RouterPlace | undefined,
    before: EndedChild | undefined,
  ): ChildProcess {
    assert(this.#division, 'no child starts before devices and cores are divided');
    const bus = this.#bus?.ready?.address ?? '';
    // A router that is started again listens where the one before did; the others join the first router, whose hub a bus replaces.
    const own = {
      httpBind: before?.ready.url?.replace(/^https?:\/\//, '') ?? place?.httpBind ?? '',
      hubAddress: before?.ready.address ?? place?.hubAddress ?? '',
    };
    const joined = { httpBind: '', hubAddress: this.#children[0]?.ready?.address ?? '' };
    const where = child.role === 'router' ? own : joined;
    return fork(
      fileURLToPath(new URL('./main.js', import.meta.url)),
      [child.role, ...childArguments(this.#line, this.#tables, this.#division, { ...child, ...where, bus })],
      {
        // A group of its own: Ctrl-C reaches `up`, which ends the children in order.
        detached: true,
        stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
        env: {
          ...process.env,
          // Tokens of a file are read from it by each process.
          ...(this.#config.cluster_token_file === '' ? { [environmentOf('cluster_token')]: this.#token } : {}),
          ...(bus === '' ? {} : { [BUS_TOKEN_VARIABLE]: this.#busToken }),
        },
      },
    );
  }

  async #end(signal: NodeJS.Signals, exitCode = 0): Promise<void> {
    const all = [...this.#children, ...(this.#bus ? [this.#bus] : [])];
    if (this.#isEnding) {
      for (const child of all) child.kill('SIGKILL');
      return;
    }
    this.#isEnding = true;
    const alive = all.filter((child) => child.isRunning);
    if (signal === 'SIGTERM') this.#print('ending: requests that run may finish; Ctrl-C again ends at once');
    const kill = this.#clock.sleep(this.#config.drain_timeout_ms + KILL_GRACE_MS).then(() => {
      for (const child of alive) child.kill('SIGKILL');
    });
    // Routers end first: they accept no new requests and wait for the running ones, which need the other processes, and these the bus.
    const isRouter = ({ role }: LocalChild): boolean => role === 'router';
    const isBus = ({ role }: LocalChild): boolean => role === 'bus';
    const members = alive.filter((child) => !isRouter(child) && !isBus(child));
    for (const group of [alive.filter(isRouter), members, alive.filter(isBus)]) {
      const ended = Promise.all(group.map((child) => child.ended()));
      for (const child of group) child.kill(signal);
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
