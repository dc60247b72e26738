/**
 * A cluster of real processes for end-to-end tests: `penstock up --json` on ports the system picks, in a folder of its own, or
 * roles started one by one.
 */
import assert from 'node:assert/strict';
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { keyDigest } from '../../shared/base/client_keys.ts';
import type { TokenSources } from '../../shared/protocol/router_api.ts';
import { projectPath } from './project.ts';
import type { RunningCluster } from './running_cluster.ts';
import { NEVER_SILENT, until } from './until.ts';

/** Command of the build. */
export const cliPath = projectPath('dist/services/cli/main.js');
export const harbour = projectPath('config/models/harbour');

export interface NodeView {
  readonly name: string;
  readonly role: string;
  readonly address: string;
  readonly pid: number;
  readonly epoch: string;
  readonly state: string;
  readonly running: number;
  readonly waiting: number;
  readonly kv_usage: number | null;
  readonly open_streams: number;
  /** Heartbeats since it joined. */
  readonly heartbeats: number;
  /** Bytes fetched, by the way they came. */
  readonly fetched_bytes: Record<'memory' | 'socket' | 'call', number> | null;
  readonly state_slots: Record<'slots' | 'saved' | 'used' | 'hits' | 'evictions', number> | null;
  readonly tiers: Record<
    string,
    {
      blocks: number;
      bytes: number;
      hits: number;
      misses: number;
      evictions: number;
      dedup_factor: number;
      fault: string | null;
    }
  >;
}

interface ReportView {
  readonly cached_tokens: number;
  readonly fetched_tokens: number;
  readonly computed_tokens: number;
  readonly fetched_bytes: number;
  readonly queue_ms: number;
  readonly load_ms: number;
  readonly compute_ms: number;
}

export interface RequestView {
  readonly id: string;
  readonly client_id: string | null;
  readonly sample_of: string | null;
  readonly started_at: string;
  readonly phase: string;
  readonly finish_reason: string | null;
  readonly prompt_tokens: number;
  readonly output_tokens: number;
  readonly tokens: { cached: number; fetched: number; computed: number };
  readonly sources: TokenSources;
  /** Tokens that would have been hits had earlier text not been rewritten; absent when there are none. */
  readonly lost_tokens?: number;
  /** Reason of the last placement. */
  readonly reason: string;
  readonly fetched_bytes: number;
  readonly ttft_ms: number | null;
  readonly ttft_parts_ms: Record<string, number> | null;
  readonly attempts: {
    decode: string;
    outcome: string;
    report: ReportView | null;
    prefills: { prefill: string; ready_tokens: number; outcome: string; report: ReportView | null }[];
  }[];
  readonly notes: string[];
}

export interface CompletionView {
  readonly choices: {
    index: number;
    text: string;
    token_ids: number[];
    prompt_token_ids: number[];
    finish_reason: string;
    logprobs: { token_logprobs: number[]; tokens: string[]; top_logprobs: Record<string, number>[] } | null;
  }[];
  readonly usage: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_tokens_details: { cached_tokens: number };
  };
}

/** Whatever the test does, nothing it started outlives it. */
const started = new Set<ChildProcess>();
process.on('exit', () => {
  for (const child of started) child.kill('SIGKILL');
});

/** Program that starts the command, and its first arguments. */
const penstock: readonly string[] = [process.execPath, cliPath];

export function run(
  args: readonly string[],
  environment: Record<string, string> = {},
  [program, ...first] = penstock,
): ChildProcess {
  assert(program);
  const child = spawn(program, [...first, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...withoutPenstock(), ...environment },
  });
  started.add(child);
  child.once('exit', () => started.delete(child));
  return child;
}

function withoutPenstock(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('PENSTOCK_')));
}

/** Runs to its end. */
export async function runToEnd(
  args: readonly string[],
  environment: Record<string, string> = {},
): Promise<{ code: number | null; output: string; errors: string }> {
  const child = run(args, environment);
  let [output, errors] = ['', ''];
  child.stdout?.on('data', (chunk: Buffer) => (output += chunk.toString()));
  child.stderr?.on('data', (chunk: Buffer) => (errors += chunk.toString()));
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, output, errors };
}

export function temporaryFolder(): { path: string; remove: () => void } {
  const path = mkdtempSync(join(tmpdir(), 'penstock-'));
  return {
    path,
    remove: () => {
      rmSync(path, { recursive: true, force: true });
    },
  };
}

/** Starts `penstock up` as a process, whose children are the roles. @throws AssertionError with what it printed when it ends instead */
async function startProcesses(args: readonly string[], command?: readonly string[]): Promise<RunningCluster> {
  const up = run(['up', '--json', ...args], {}, command);
  const errors: string[] = [];
  assert(up.stdout && up.stderr);
  createInterface({ input: up.stderr }).on('line', (line) => errors.push(line));
  const line = await Promise.race([
    once(createInterface({ input: up.stdout }), 'line').then(([text]) => text as string),
    once(up, 'exit').then(() => undefined),
  ]);
  assert(line, `penstock up ended:\n${errors.join('\n')}`);
  const { url, urls, processes } = JSON.parse(line) as {
    url: string;
    urls: string[];
    processes: { role: string; address: string }[];
  };
  const pidOf = (name: string): number => {
    const last = errors.findLast((text) => text.startsWith(`${name} started`) || text.startsWith(`${name} is back`));
    const pid = /pid (\d+)/.exec(last ?? '')?.[1];
    assert(pid, `${name} has started`);
    return Number(pid);
  };
  const endBy = async (signal: NodeJS.Signals): Promise<void> => {
    if (up.exitCode !== null || up.signalCode !== null) return;
    const exit = once(up, 'exit');
    up.kill(signal);
    await exit;
  };
  return {
    url,
    urls,
    errors,
    pidOf,
    hub: processes.find(({ role }) => role === 'router')?.address ?? '',
    kill: (name, signal) => {
      process.kill(pidOf(name), signal);
    },
    end: () => endBy('SIGTERM'),
    crash: () => endBy('SIGKILL'),
  };
}

/** Key of a tenant in clusters that ask for keys: the one that suites of clients send to others, too. */
export const CLIENT_KEY = 'none';
/** Key of an admin there. */
export const ADMIN_KEY = 'key-of-the-tests';
/** Keys of tenants in clusters under load, one for each client of it. */
const LOAD_KEYS = ['quay', 'mole', 'pier', 'jetty'].map((name) => `key-of-the-${name}`);
/** Limits that no load reaches, so that each request is counted against them, and none is refused. */
const WIDE_LIMITS = { requests_per_minute: 1e9, tokens_per_minute: 1e9, requests_in_flight: 1e6, samples: 1e6 };
/** Name of the keys file in the data folder. */
const KEYS_FILE = 'keys.yaml';

/** Returns the entry of a key in a keys file. */
export function entryOf(key: string, tenant: string, more: object = {}): object {
  return { name: tenant, sha256: keyDigest(key).toString('hex'), tenant, ...more };
}

function headersWith(key: string): Record<string, string> {
  return key === '' ? {} : { authorization: `Bearer ${key}` };
}

export class Cluster {
  readonly url: string;
  /** Address at which other processes join. */
  readonly hub: string;
  readonly errors: string[];
  /** Key of an admin with which the cluster is asked; '' where it asks for none. */
  key = '';
  #clientKeys: readonly string[] = [];
  readonly #running: RunningCluster;
  readonly #folder: ReturnType<typeof temporaryFolder>;

  private constructor(running: RunningCluster, folder: ReturnType<typeof temporaryFolder>, url = running.url) {
    this.#running = running;
    this.url = url;
    this.hub = running.hub;
    this.errors = running.errors;
    this.#folder = folder;
  }

  /** Starts `penstock up` with these arguments, on ports that the system picks, in a folder of its own. */
  static async up(...args: string[]): Promise<Cluster> {
    return Cluster.#start(startProcesses, args);
  }

  /** Starts `penstock up` with another executable of Node. */
  static async upOn(node: string, ...args: string[]): Promise<Cluster> {
    return Cluster.upBy([node, cliPath], ...args);
  }

  /** Starts `penstock up` of another build, or by another program: `command` is what comes before `up`. */
  static async upBy(command: readonly string[], ...args: string[]): Promise<Cluster> {
    return Cluster.#start((own) => startProcesses(own, command), args);
  }

  /** Makes a cluster of processes that a test starts in its own way, with a folder for their data. */
  static async startedBy(start: (folder: string) => Promise<RunningCluster>): Promise<Cluster> {
    return Cluster.#start((own) => start(own[own.indexOf('--data-dir') + 1] ?? ''), []);
  }

  /**
   * Starts the same cluster in this process, for less than half of the CPU time. Its roles cannot be stopped with signals, and one that is
   * killed does not come back.
   */
  static async inProcess(...args: string[]): Promise<Cluster> {
    // Loaded by suites that use it: it brings all roles.
    const { startInProcess } = await import('./in_process.ts');
    // Its threads share one process with the test's own work: none of them is lost unless a test kills it, and says after how long.
    const silence = args.includes('--silence-ms') ? [] : NEVER_SILENT;
    return Cluster.#start(startInProcess, [...silence, ...args]);
  }

  /**
   * Starts the same cluster as {@link inProcess} with keys of clients: {@link CLIENT_KEY} is a tenant's, and the cluster itself is asked with
   * an admin's. For suites of clients, which then have keys on.
   */
  static async withKeys(...args: string[]): Promise<Cluster> {
    const { startInProcess } = await import('./in_process.ts');
    return Cluster.#startWithKeys(startInProcess, [entryOf(CLIENT_KEY, 'client')], [...NEVER_SILENT, ...args]);
  }

  /**
   * Starts `penstock up` with keys of clients: those of {@link withKeys}, and for {@link clientHeaders} those of several tenants, with limits
   * that no load reaches. Requests of a key that is removed from {@link keysFile} are aborted.
   */
  static async upWithKeys(...args: string[]): Promise<Cluster> {
    const ofLoad = LOAD_KEYS.map((key) => entryOf(key, key, { limits: WIDE_LIMITS }));
    const entries = [entryOf(CLIENT_KEY, 'client'), ...ofLoad];
    const cluster = await Cluster.#startWithKeys(startProcesses, entries, ['--revoke', 'abort', ...args]);
    cluster.#clientKeys = LOAD_KEYS;
    return cluster;
  }

  /** Starts a cluster with these entries in its keys file, and an admin's. */
  static async #startWithKeys(
    startAll: (args: readonly string[]) => Promise<RunningCluster>,
    entries: readonly object[],
    args: string[],
  ): Promise<Cluster> {
    const start = (own: readonly string[]): Promise<RunningCluster> => {
      const file = join(own[own.indexOf('--data-dir') + 1] ?? '', KEYS_FILE);
      writeFileSync(file, JSON.stringify([...entries, entryOf(ADMIN_KEY, 'tests', { admin: true })]));
      return startAll([...own, '--keys', file]);
    };
    const cluster = await Cluster.#start(start, args);
    cluster.key = ADMIN_KEY;
    return cluster;
  }

  static async #start(start: (args: readonly string[]) => Promise<RunningCluster>, args: string[]): Promise<Cluster> {
    const folder = temporaryFolder();
    const own = ['--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0', '--data-dir', folder.path];
    try {
      return new Cluster(await start([...own, ...args]), folder);
    } catch (error) {
      folder.remove();
      throw error;
    }
  }

  /** Returns the same cluster as its router of that index sees it. */
  seenBy(router: number): Cluster {
    return new Cluster(this.#running, this.#folder, this.#running.urls?.[router]);
  }

  get dataFolder(): string {
    return this.#folder.path;
  }

  /** File of the keys, where the cluster asks for some. */
  get keysFile(): string {
    return join(this.#folder.path, KEYS_FILE);
  }

  /** Headers with the key. */
  get headers(): Record<string, string> {
    return headersWith(this.key);
  }

  /** Headers with the key of a tenant, which the number of the client picks; none where the cluster asks for no keys. */
  clientHeaders(client: number): Record<string, string> {
    return headersWith(this.#clientKeys[client % this.#clientKeys.length] ?? '');
  }

  /**
   * Returns what the router serves under this path. Retried once: while this process computed, an idle connection may have been closed
   * without notice.
   */
  async #look<T>(path: string): Promise<T> {
    const look = (): Promise<Response> => fetch(`${this.url}${path}`, { headers: this.headers });
    return (await (await look().catch(look)).json()) as T;
  }

  /** Returns the instances and stores; the router's own node is left out. */
  async pool(): Promise<NodeView[]> {
    const { nodes } = await this.#look<{ nodes: NodeView[] }>('/api/pool');
    return nodes.filter(({ role }) => role !== 'router');
  }

  /** Returns the counts of what the router has open; all are zero when nothing runs (R2). */
  async open(): Promise<{ requests: number; answers: number; body_bytes: number; promises: number }> {
    const { router } = await this.#look<{
      router: { requests: number; answers: number; body_bytes: number; promises: number };
    }>('/api/pool');
    return router;
  }

  async requests(limit = 512): Promise<RequestView[]> {
    return (await this.#look<{ requests: RequestView[] }>(`/api/requests?limit=${limit}`)).requests;
  }

  async node(name: string): Promise<NodeView> {
    const node = (await this.pool()).find((candidate) => candidate.name === name);
    assert(node, `${name} is in the pool`);
    return node;
  }

  /** Process id of a child by its name, the router's too. */
  pidOf(name: string): number {
    return this.#running.pidOf(name);
  }

  kill(name: string, signal: NodeJS.Signals = 'SIGKILL'): void {
    this.#running.kill(name, signal);
  }

  /** Kills them and waits until each is back with another epoch; `meanwhile` runs while they are down. */
  async killAndAwait(names: readonly string[], meanwhile: () => void = () => undefined): Promise<void> {
    const before = await Promise.all(names.map((name) => this.node(name)));
    for (const name of names) this.kill(name);
    meanwhile();
    for (const { name, epoch } of before) {
      await until(`${name} is back and announces`, async () => {
        const node = (await this.pool()).find((candidate) => candidate.name === name);
        return (
          node !== undefined && node.epoch !== epoch && node.state === 'alive' && Object.keys(node.tiers).length > 0
        );
      });
    }
  }

  /** Resolves when no sequence is in any batch, no block is used, no stream is open and the router has no request (R2). */
  async idle(): Promise<void> {
    const isIdle = ({ running, waiting, open_streams: numStreams, kv_usage: kvUsage }: NodeView): boolean =>
      running === 0 && waiting === 0 && numStreams === 0 && (kvUsage ?? 0) === 0;
    // Heartbeats may tell of the time before the latest request; the router knows it.
    const hasNone = async (): Promise<boolean> => {
      const { requests, answers } = await this.open();
      return requests === 0 && answers === 0;
    };
    await until(
      'nothing runs, is used or is open (R2)',
      async () => (await hasNone()) && (await this.pool()).every(isIdle),
    );
  }

  async completion(body: Record<string, unknown>, signal?: AbortSignal): Promise<CompletionView> {
    const response = await fetch(`${this.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...this.headers },
      body: JSON.stringify({ temperature: 0, return_token_ids: true, ignore_eos: true, ...body }),
      ...(signal ? { signal } : {}),
    });
    const text = await response.text();
    assert.equal(response.status, 200, text);
    return JSON.parse(text) as CompletionView;
  }

  /** Kills `penstock up` itself, without which its processes end. */
  async crash(): Promise<void> {
    await this.#running.crash();
  }

  async close(): Promise<void> {
    await this.#running.end();
    this.#folder.remove();
  }
}

/** Resolves when each instance and store has sent two heartbeats more, so that this router knows what they have done by now. */
export async function heartbeats(url: string, headers: Readonly<Record<string, string>> = {}): Promise<void> {
  const counts = new Map<string, number>();
  await until('all have sent two heartbeats', async () => {
    const { nodes } = (await (await fetch(`${url}/api/pool`, { headers })).json()) as { nodes: NodeView[] };
    const members = nodes.filter(({ role }) => role !== 'router');
    // One that joins meanwhile counts from then on.
    for (const { epoch, heartbeats: count } of members) if (!counts.has(epoch)) counts.set(epoch, count);
    return members.length > 0 && members.every(({ epoch, heartbeats: count }) => count >= counts.get(epoch)! + 2);
  });
}

/** Results in order, at most `width` at once. */
export async function mapConcurrently<T, R>(
  items: readonly T[],
  width: number,
  work: (item: T, index: number) => Promise<R>,
): Promise<R[]> {
  const results: R[] = [];
  let next = 0;
  const worker = async (): Promise<void> => {
    for (let index = next++; index < items.length; index = next++)
      results[index] = await work(items[index] as T, index);
  };
  await Promise.all(Array.from({ length: width }, worker));
  return results;
}
