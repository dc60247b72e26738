/**
 * `penstock up`: a small cluster on one machine, the same processes as anywhere else.
 *
 *   router ──ready──► stores, prefills, decodes ──all ready──► says so        Ctrl-C ──► every child drains and ends
 *      a child that served and dies is started again at once; one that dies young after a pause: 0.25 s, doubling to 10 s
 */
import { fork, type ChildProcess } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { fileURLToPath } from 'node:url';
import { Backoff } from '../../shared/base/backoff.ts';
import { every, type Clock } from '../../shared/base/clock.ts';
import { availableCores } from '../../shared/base/cpu_quota.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { ConfigError, environmentOf, flagsFor } from '../../shared/base/options.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { openModel } from '../../shared/model/open_model.ts';
import type { Model } from '../../shared/model/model_folder.ts';
import { ProgressLine } from './progress_line.ts';
import type { LoadingMessage, ReadyMessage } from './role_process.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { autoDevice } from '../../shared/engine/open_device.ts';
import { exampleCall } from './example_call.ts';
import { LogLines } from './log_lines.ts';
import { isStartedByNpm, watchParent } from './npm_parent.ts';
import type { ClusterConfig, ClusterLine, RoleTables } from './tables.ts';

const MIN_PAUSE_MS = 250;
const MAX_PAUSE_MS = 10_000;
/** A child that dies before it is ready, or so soon after, would only die again. */
const YOUNG_MS = 1_000;
/** How often a parent that npm is gets looked for. */
const PARENT_MS = 500;
/** After the drain timeout of the children themselves. */
const KILL_GRACE_MS = 5_000;

interface Child {
  readonly role: Role;
  readonly name: string;
  process: ChildProcess;
  ready: ReadyMessage | undefined;
  /** When this process was ready; undefined before. */
  readyMs: number | undefined;
  /** Before the next start, should it die young. */
  readonly backoff: Backoff;
}

export class LocalCluster {
  readonly #config: ClusterConfig;
  readonly #isJson: boolean;
  readonly #isLogLevelSet: boolean;
  readonly #tables: RoleTables;
  readonly #flags: ClusterLine['flags'];
  readonly #file: string | undefined;
  readonly #clock: Clock;
  readonly #children: Child[] = [];
  /** Chosen once, kept over restarts of the router. */
  #hubAddress = '';
  #httpBind = '';
  /** What `auto` stands for on this machine. */
  #auto = 'auto';
  readonly #token: string;
  #isEnding = false;
  readonly #progress: ProgressLine;
  /** How far children are that load. */
  readonly #loading = new Map<string, { readonly doneBytes: number; readonly totalBytes: number }>();

  constructor({ config, flags, file, isJson, isSet }: ClusterLine, tables: RoleTables, clock: Clock) {
    this.#config = config;
    this.#tables = tables;
    this.#flags = flags;
    this.#file = file;
    this.#isJson = isJson;
    this.#isLogLevelSet = isSet.has('log_level');
    this.#clock = clock;
    this.#progress = new ProgressLine(process.stderr, () => clock.nowMs());
    this.#token = config.cluster_token || randomBytes(24).toString('hex');
  }

  /** Resolves when the cluster is ready; it lives until a signal ends it, or at once when a child cannot start. */
  async run(): Promise<void> {
    process.title = 'penstock up';
    if (this.#config.advertise !== '') {
      throw new ConfigError(
        '--advertise names one process; with `up` every process listens on 127.0.0.1 and says where',
      );
    }
    this.#refuseMixedFormats();
    const { device, prefill_device: prefillDevice, decode_device: decodeDevice } = this.#config;
    // Asked only where it matters: looking for adapters takes a moment.
    const names = new Set([prefillDevice || device, decodeDevice || device]);
    if (names.has('auto') && names.size > 1) this.#auto = (await autoDevice()).device;
    const startMs = this.#clock.nowMs();
    const models = await Promise.all(this.#models.map((path) => openModel(path)));
    this.#refuseAmbiguous(models);
    for (const model of models) {
      shapeOf(model);
      await (await model.openWeights()).close();
    }
    process.on('SIGINT', () => void this.#end('SIGTERM'));
    process.on('SIGTERM', () => void this.#end('SIGTERM'));
    process.on('SIGHUP', () => void this.#end('SIGTERM'));
    this.#endWithNpm();
    this.#say(`starting with the model${this.#models.length > 1 ? 's' : ''} ${this.#models.join(', ')}`);
    try {
      const router = await this.#start('router', 'router');
      this.#hubAddress = router.address;
      this.#httpBind = router.url?.replace(/^http:\/\//, '') ?? '';
      await Promise.all(
        (['store', 'prefill', 'decode'] as const).flatMap((role) => {
          // As many of either engine for each model; stores hold blocks of all.
          const numModels = role === 'store' ? 1 : this.#models.length;
          return Array.from({ length: this.#config[role] * numModels }, (_, i) =>
            this.#start(role, `${role}-${i + 1}`),
          );
        }),
      );
    } catch (error) {
      process.stderr.write(`penstock up: ${messageOf(error)}\n`);
      await this.#end('SIGKILL', 1);
    }
    const [first] = models;
    if (first) this.#announce(first, this.#clock.nowMs() - startMs);
  }

  /** npm may die without a word to its script. */
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

  get #models(): string[] {
    return this.#config.model.split(',');
  }

  /** @throws ConfigError for models that could not be told apart. */
  #refuseAmbiguous(models: readonly Model[]): void {
    if (models.length > 1 && this.#config.served_model_name !== '')
      throw new ConfigError('--served-model-name is the name of one model, and there are several --model');
    const names = models.map(({ name }) => name);
    const twice = names.find((name, i) => names.indexOf(name) !== i);
    if (twice !== undefined) throw new ConfigError(`two of --model are called ${twice}: rename a folder, or serve one`);
  }

  /** `auto` is another format on each kind of device. */
  #refuseMixedFormats(): void {
    const { device, weights, prefill, prefill_device: prefillDevice, decode_device: decodeDevice } = this.#config;
    const [one, other] = [prefillDevice || device, decodeDevice || device];
    if (weights === 'auto' && prefill > 0 && (one === 'wasm') !== (other === 'wasm')) {
      throw new ConfigError(`prefill on ${one} and decode on ${other} need one weight format: add --weights f16`);
    }
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
    const call = exampleCall(url, this.#config.served_model_name || model.name, model.hasTokenizer);
    this.#say(`ready in ${(startUpMs / 1_000).toFixed(1)} s: OpenAI API ${url}/v1, dashboard ${url}/dashboard, ${bus}`);
    this.#say(`try:\n\n${call}\n`);
    this.#say('Ctrl-C ends it.');
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

  /** Resolves when ready. @throws Error when it ends before that for the first time. */
  #supervise(child: Child): Promise<ReadyMessage> {
    child.readyMs = undefined;
    return new Promise((resolve, reject) => {
      child.process.on('message', (message: ReadyMessage | LoadingMessage) => {
        if (message.kind === 'loading') {
          this.#showLoading(child, message);
          return;
        }
        const isFirst = child.ready === undefined;
        child.ready = message;
        child.readyMs = this.#clock.nowMs();
        const { address, url, device, pid } = message;
        const what = device === undefined ? '' : `, ${device}`;
        this.#say(`${child.name} ${isFirst ? 'started' : 'is back'}: ${url ?? address}, pid ${pid}${what}`);
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

  /** Of all that load together, on standard error. */
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
    this.#say(`${child.name} ${how}; starting it again${pauseMs > 0 ? ` in ${pauseMs / 1_000} s` : ''}`);
    await this.#clock.sleep(pauseMs);
    if (this.#isEnding) return;
    child.process = this.#fork(child.role, child.name);
    await this.#supervise(child);
  }

  /** Cores, divided among the engines that compute on them; where `auto` decides, all may. */
  #coresEach(): number {
    const { device, prefill, decode, prefill_device: prefillDevice, decode_device: decodeDevice } = this.#config;
    const onCores = (count: number, name: string): number => (name.startsWith('webgpu') ? 0 : count);
    const ofModel = onCores(prefill, prefillDevice || device) + onCores(decode, decodeDevice || device);
    const numEngines = this.#models.length * ofModel;
    return Math.max(1, Math.floor(availableCores() / Math.max(1, numEngines)));
  }

  #fork(role: Role, name: string): ChildProcess {
    const config = this.#config;
    const isEngine = role === 'prefill' || role === 'decode';
    const flags =
      role === 'router'
        ? this.#routerFlags()
        : ['--bind', '127.0.0.1:0', '--join', this.#hubAddress, ...(isEngine ? this.#engineFlags(role, name) : [])];
    const own = isEngine ? { ...this.#flags, model: this.#modelOf(role, name) } : this.#flags;
    const child = fork(
      fileURLToPath(new URL('./main.js', import.meta.url)),
      [
        ...[role, ...flagsFor(this.#tables[role], own)],
        ...(this.#file === undefined ? [] : ['--config', this.#file]),
        ...['--name', name, '--log-level', this.#isLogLevelSet ? config.log_level : 'warn'],
        ...flags,
      ],
      {
        // A group of its own: Ctrl-C reaches `up`, which ends the children in order.
        detached: true,
        stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
        env: { ...process.env, [environmentOf('cluster_token')]: this.#token },
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

  /** The first so many instances of a role are of the first model. */
  #modelOf(role: 'prefill' | 'decode', name: string): string {
    const index = Math.floor((Number(/\d+$/.exec(name)?.[0] ?? 1) - 1) / Math.max(1, this.#config[role]));
    return this.#models[index] ?? this.#config.model;
  }

  #engineFlags(role: 'prefill' | 'decode', name: string): string[] {
    const { threads, prefill_device: prefill, decode_device: decode, lose_device_after_steps: steps } = this.#config;
    const device = role === 'prefill' ? prefill : decode;
    // The second instance of a role loses its device after twice as many steps, so that not all are gone at once.
    const loseAfter = steps * Number(/\d+$/.exec(name)?.[0] ?? 1);
    return [
      ...(device === '' ? [] : ['--device', device]),
      ...(this.#isMixed() ? ['--mix-numerics'] : []),
      ...['--device-sharing', String(this.#numSharing(role)), '--threads', String(threads || this.#coresEach())],
      ...(loseAfter > 0 ? ['--lose-device-after-steps', String(loseAfter)] : []),
    ];
  }

  /** Who asks for two kinds of devices in one cluster means them to share blocks. */
  #isMixed(): boolean {
    const { device, prefill, prefill_device: prefillDevice, decode_device: decodeDevice } = this.#config;
    const resolved = (name: string): string => (name === 'auto' ? this.#auto : name);
    return prefill > 0 && resolved(prefillDevice || device) !== resolved(decodeDevice || device);
  }

  /** Engines on this role's device. */
  #numSharing(role: 'prefill' | 'decode'): number {
    const { device, prefill, decode, prefill_device: prefillDevice, decode_device: decodeDevice } = this.#config;
    const [ofPrefill, ofDecode] = [prefillDevice || device, decodeDevice || device];
    const own = role === 'prefill' ? ofPrefill : ofDecode;
    return Math.max(1, this.#models.length * ((ofPrefill === own ? prefill : 0) + (ofDecode === own ? decode : 0)));
  }

  #routerFlags(): string[] {
    return [
      ...(this.#httpBind ? ['--bind', this.#httpBind] : []),
      ...(this.#hubAddress ? ['--hub-bind', this.#hubAddress] : []),
    ];
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
    if (signal === 'SIGTERM') this.#say('ending: requests that run may finish; Ctrl-C again ends at once');
    const gone = (children: readonly Child[]): Promise<unknown> =>
      Promise.all(children.map((child) => new Promise((resolve) => child.process.once('exit', resolve))));
    const kill = this.#clock.sleep(this.#config.drain_timeout_ms + KILL_GRACE_MS).then(() => {
      for (const child of alive) child.process.kill('SIGKILL');
    });
    // The router first: it takes nothing new and waits for what runs, which needs the others.
    const routers = alive.filter(({ role }) => role === 'router');
    const others = alive.filter(({ role }) => role !== 'router');
    for (const group of [routers, others]) {
      const ended = gone(group);
      for (const child of group) child.process.kill(signal);
      await Promise.race([ended, kill]);
    }
    this.#say('ended');
    process.exit(exitCode);
  }

  /** Standard output belongs to the JSON line when one was asked for. */
  #say(line: string): void {
    (this.#isJson ? process.stderr : process.stdout).write(`${line}\n`);
  }
}
