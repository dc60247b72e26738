/** SGLang's router (Rust) with its cache-aware policy, before servers that answer at once. It works on text: four characters a token. */
import { fork, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { Random } from '../../shared/base/random.ts';
import { freePort } from '../support/free_ports.ts';
import { projectPath } from '../support/project.ts';
import { pythonWith } from './python_peer.ts';

const PACKAGE = 'sglang-router';
const VERSION = '0.3.2';
const INSTANCES = 2;
const START_MS = 60_000;
const CHARACTERS_PER_TOKEN = 4;

export class SglangRouter {
  readonly url: string;
  readonly router: ChildProcess;
  /** Model servers to which it forwards. */
  readonly servers: readonly ChildProcess[];
  static readonly version = VERSION;

  private constructor(url: string, router: ChildProcess, servers: readonly ChildProcess[]) {
    this.url = url;
    this.router = router;
    this.servers = servers;
  }

  /** Starts the router and its model servers, which run a module of this folder. @throws Error when it cannot be had. */
  static async start(print: (line: string) => void, server = 'instant_worker'): Promise<SglangRouter> {
    const python = pythonWith(PACKAGE, VERSION, print);
    const workers = Array.from({ length: INSTANCES }, () => fork(projectPath(`dist/test/bench/${server}.js`)));
    const ports = await Promise.all(workers.map(async (worker) => ((await once(worker, 'message')) as [number])[0]));
    const [port, metrics] = [await freePort(), await freePort()];
    const url = `http://127.0.0.1:${port}`;
    const args = [
      ...['-m', 'sglang_router.launch_router', '--host', '127.0.0.1', '--port', String(port)],
      ...['--worker-urls', ...ports.map((one) => `http://127.0.0.1:${one}`)],
      ...['--policy', 'cache_aware', '--prometheus-port', String(metrics), '--log-level', 'error'],
    ];
    const router = spawn(python, args, { stdio: ['ignore', 'ignore', 'inherit'] });
    const endMs = performance.now() + START_MS;
    for (;;) {
      const isReady = await fetch(`${url}/v1/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model: 'ids-only', prompt: 'a', max_tokens: 1 }),
      }).then(
        ({ ok }) => ok,
        () => false,
      );
      if (isReady) break;
      if (router.exitCode !== null || performance.now() > endMs) {
        for (const child of [router, ...workers]) child.kill('SIGKILL');
        throw new Error('sglang-router does not serve');
      }
      await sleep(100);
    }
    return new SglangRouter(url, router, workers);
  }

  get processes(): readonly ChildProcess[] {
    return [this.router, ...this.servers];
  }

  /** Builds `count` prompts of `length` tokens each, as request bodies with text. */
  bodies(length: number, count: number): Buffer[] {
    const random = new Random(6);
    return Array.from({ length: count }, () => {
      const letters = Array.from({ length: length * CHARACTERS_PER_TOKEN }, (_, i) =>
        i % 6 === 5 ? ' ' : String.fromCharCode(97 + random.below(26)),
      );
      return Buffer.from(JSON.stringify({ model: 'ids-only', prompt: letters.join(''), max_tokens: 1 }));
    });
  }
}
