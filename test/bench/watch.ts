/**
 * The cost of watching a large pool: a router with many members that answer at once, its stream, its routes and its page. The members join over the
 * real wire from two processes, of which the smaller one is killed and comes back.
 */
import { fork, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { Agent, get, request, type IncomingMessage } from 'node:http';
import { loadavg } from 'node:os';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import type { EventPage, PoolBody } from '../../shared/protocol/router_api.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { projectPath } from '../support/project.ts';
import { percentile, type Figure } from './figures.ts';
import { cpuMsOf } from './cpu_times.ts';
import { PageWatch, type Watched } from './watch_page.ts';
import { BLOCK_SIZE, CHAT_BLOCKS, chatTokens, numChats } from './watch_prompts.ts';

export interface WatchBenchOptions {
  readonly numMembers: number;
  readonly numBlocks: number;
  readonly numRequests: number;
  /** Requests a second, of which none waits for another. */
  readonly rate: number;
  /** Milliseconds of each figure of the router, and of each view of the page. */
  readonly spanMs: number;
  readonly print: (line: string) => void;
  readonly onFigure: (figure: Figure) => void;
}

const NUM_READERS = 5;
const TIMES_ASKED = 10;
/** Share of the members that are killed together. */
const LOST_SHARE = 0.3;
/** Milliseconds without a heartbeat after which a member is lost: the members share the machine with all else that runs there. */
const SILENCE_MS = 20_000;
const VIEWS = ['overview', 'pool', 'pool/node/decode-1', 'blocks', 'flow', 'requests', 'playground'];

const agent = new Agent({ keepAlive: true, maxSockets: 64 });

export async function benchWatch(options: WatchBenchOptions): Promise<Figure[]> {
  const pool = await WatchedPool.start(options);
  try {
    await pool.measureRouter();
    await pool.measureRoutes();
    await pool.measurePage();
    await pool.measureLoss();
    return pool.figures;
  } finally {
    pool.close();
  }
}

/** The router, its members and what was measured of them. */
class WatchedPool {
  readonly figures: Figure[] = [];
  readonly #options: WatchBenchOptions;
  readonly #model = projectPath('config/models/harbour');
  readonly #router: ChildProcess;
  readonly #url: string;
  readonly #hub: string;
  readonly #children: ChildProcess[] = [];

  private constructor(options: WatchBenchOptions, router: ChildProcess, url: string, hub: string) {
    this.#options = options;
    this.#router = router;
    this.#url = url;
    this.#hub = hub;
  }

  static async start(options: WatchBenchOptions): Promise<WatchedPool> {
    const args = [
      '--bind',
      '127.0.0.1:0',
      '--hub-bind',
      '127.0.0.1:0',
      '--log-level',
      'error',
      '--silence-ms',
      `${SILENCE_MS}`,
    ];
    const model = ['--model', projectPath('config/models/harbour')];
    const router = spawn(process.execPath, [projectPath('dist/services/cli/main.js'), 'router', ...args, ...model]);
    router.stderr.pipe(process.stderr);
    const [line] = (await once(createInterface({ input: router.stdout }), 'line')) as [string];
    const [, url = '', hub = ''] = /ready: (\S+), hub (\S+)/.exec(line) ?? [];
    const pool = new WatchedPool(options, router, url, hub);
    options.print(`the router is at ${url}, process ${router.pid}`);
    const joinedMs = await timed(async () => {
      await Promise.all([pool.#join(0, pool.#numStaying), pool.#join(pool.#numStaying, options.numMembers)]);
      await pool.#settled(options.numMembers);
    });
    pool.#note('join', joinedMs / 1_000, 's');
    return pool;
  }

  get #numStaying(): number {
    return Math.round(this.#options.numMembers * (1 - LOST_SHARE));
  }

  async #join(first: number, last: number): Promise<void> {
    const { numMembers, numBlocks } = this.#options;
    const args = [this.#hub, this.#model, first, last, numMembers, numBlocks].map(String);
    const child = fork(projectPath('dist/test/bench/watch_members.js'), args);
    this.#children.push(child);
    await Promise.race([
      once(child, 'message'),
      once(child, 'exit').then(() => {
        throw new Error('the process of the members ended');
      }),
    ]);
  }

  /** Resolves when so many members are alive, and a moment later, when what they announced has been read. */
  async #settled(count: number): Promise<void> {
    for (;;) {
      const { nodes } = await this.#pool();
      if (nodes.filter(({ role, state }) => role !== 'router' && state === 'alive').length === count) break;
      await sleep(200);
    }
    await sleep(1_000);
  }

  async #pool(): Promise<PoolBody> {
    return JSON.parse((await asked(`${this.#url}/api/pool`)).text) as PoolBody;
  }

  #note(name: string, value: number, unit: string): void {
    const figure = { name: `watch/${this.#options.numMembers} members/${name}`, value, unit };
    this.figures.push(figure);
    this.#options.onFigure(figure);
  }

  /** CPU, memory and delay of the router without a reader, with one and with several, and what a reader gets. */
  async measureRouter(): Promise<void> {
    for (const count of [0, 1, NUM_READERS]) {
      const readers = await Promise.all(Array.from({ length: count }, () => Reader.open(this.#url)));
      await sleep(2_000);
      const before = readers.map(({ numBytes }) => numBytes);
      await this.#span(count === 0 ? 'no reader' : `${count} readers`);
      const [first = 0] = readers.map(({ numBytes }, i) => numBytes - (before[i] ?? 0));
      const [reader] = readers;
      if (reader && count === 1) this.#note('stream/first tick', reader.firstBytes / 1_000, 'kB');
      if (reader) this.#note(`stream/${count} readers/each`, first / this.#options.spanMs, 'kB/s');
      for (const one of readers) one.close();
    }
  }

  /** Measures the router's process for a span. */
  async #span(name: string, spanMs = this.#options.spanMs): Promise<void> {
    const cpuMs = cpuMsOf(this.#router);
    const startMs = performance.now();
    await sleep(spanMs);
    this.#note(
      `router/${name}/cpu`,
      (100 * (cpuMsOf(this.#router) - cpuMs)) / (performance.now() - startMs),
      '% of a core',
    );
    const node = (await this.#pool()).nodes.find(({ role }) => role === 'router') as unknown as Record<string, number>;
    this.#note(`router/${name}/longest delay in 10 s`, node['loop_delay_ms'] ?? NaN, 'ms');
    this.#note(`router/${name}/memory`, (node['memory_bytes'] ?? NaN) / 2 ** 20, 'MiB');
    this.#note(`router/${name}/load of the machine`, loadavg()[0] ?? NaN, 'processes');
  }

  /** Times of the routes that people and Prometheus ask; CPU is of the router meanwhile, its heartbeats included. */
  async measureRoutes(): Promise<void> {
    const { vocabSize } = readModelFolder(this.#model).config;
    const body = JSON.stringify({ prompt: chatTokens(1, vocabSize) });
    const routes: (readonly [string, string?])[] = [
      ...[
        '/api/pool',
        '/api/requests?limit=100',
        '/api/events?limit=200',
        '/api/history',
        '/api/history?scope=node:decode-1',
      ],
      ...['/api/reuse', '/api/blocks', '/api/decisions', '/api/hardware', '/metrics', '/metrics?scope=router'],
    ].map((path) => [path] as const);
    for (const [path, posted] of [...routes, ['/api/lookup', body] as const]) {
      const took: number[] = [];
      let numBytes = 0;
      const cpuMs = cpuMsOf(this.#router);
      for (let i = 0; i < TIMES_ASKED; i++)
        took.push(await timed(async () => (numBytes = (await asked(`${this.#url}${path}`, posted)).numBytes)));
      this.#note(`route${path}/p50`, percentile(took, 0.5), 'ms');
      this.#note(`route${path}/max`, Math.max(...took), 'ms');
      this.#note(`route${path}/cpu`, (cpuMsOf(this.#router) - cpuMs) / TIMES_ASKED, 'ms');
      this.#note(`route${path}/size`, numBytes / 1_000, 'kB');
    }
  }

  /** Asks at the rate while `meanwhile` runs, and until all have been answered. */
  async #asking(numRequests: number, meanwhile: () => Promise<void>): Promise<void> {
    const { rate, numBlocks } = this.#options;
    const { vocabSize } = readModelFolder(this.#model).config;
    const took: number[] = [];
    const failures = new Map<string, number>();
    const startMs = performance.now();
    const ask = async (i: number): Promise<void> => {
      // Three in four go on in a chat that the pool has, with a tail that it has not.
      const chat = chatTokens((i * 7) % numChats(numBlocks), vocabSize);
      const kept = BLOCK_SIZE * (i % 4 === 0 ? 0 : 4 + ((i * 13) % (CHAT_BLOCKS - 4)));
      const tail = Array.from({ length: 40 }, (_, at) => 3 + ((i * 31 + at * 17 + at * at) % (vocabSize - 3)));
      const body = { model: 'harbour', prompt: [...chat.slice(0, kept), ...tail], max_tokens: 1 };
      const askedMs = performance.now();
      const { status, text } = await asked(`${this.#url}/v1/completions`, JSON.stringify(body));
      took.push(performance.now() - askedMs);
      if (status !== 200) failures.set(text.slice(0, 160), (failures.get(text.slice(0, 160)) ?? 0) + 1);
    };
    const asking = async (): Promise<void> => {
      const running = new Set<Promise<void>>();
      for (let i = 0; i < numRequests; i++) {
        await sleep(Math.max(0, startMs + (i * 1_000) / rate - performance.now()));
        const one = ask(i).catch((error: unknown) => void failures.set(String(error), 1));
        running.add(one);
        void one.then(() => running.delete(one));
      }
      await Promise.all(running);
    };
    const cpuMs = cpuMsOf(this.#router);
    await Promise.all([asking(), meanwhile()]);
    const seconds = (performance.now() - startMs) / 1_000;
    this.#note('requests/rate', took.length / seconds, 'requests/s');
    this.#note('requests/p50', percentile(took, 0.5), 'ms');
    this.#note('requests/p99', percentile(took, 0.99), 'ms');
    this.#note('requests/cpu of the router', (cpuMsOf(this.#router) - cpuMs) / took.length, 'ms a request');
    for (const [text, count] of failures) this.#options.print(`${count} requests failed: ${text}`);
  }

  /** The page, each view for a span, while requests come. */
  async measurePage(): Promise<void> {
    const page = await PageWatch.open(`${this.#url}/dashboard`);
    await this.#asking(this.#options.numRequests, async () => {
      await sleep(2_000);
      await this.#span('requests');
      for (const view of VIEWS) this.#notePage(view, await page.watch(`#/${view}`, this.#options.spanMs));
      this.#notePage('hidden', await page.watchHidden(this.#options.spanMs));
    });
    await page.close();
    await this.#span('after the requests, no reader');
  }

  #notePage(
    name: string,
    { longest, elements, heapBytes, streamBytes, askedBytes, errors }: Watched,
    spanMs = this.#options.spanMs,
  ): void {
    this.#note(`page/${name}/longest task`, longest.ms, 'ms');
    this.#note(`page/${name}/longest task by CPU time`, longest.cpuMs, 'ms');
    this.#note(`page/${name}/elements`, elements, 'elements');
    this.#note(`page/${name}/heap`, heapBytes / 2 ** 20, 'MiB');
    this.#note(`page/${name}/traffic of the stream`, streamBytes / spanMs, 'kB/s');
    this.#note(`page/${name}/other traffic`, askedBytes / spanMs, 'kB/s');
    for (const error of errors) this.#options.print(`${name}: ${error}`);
  }

  /** Members are killed together, and come back. */
  async measureLoss(): Promise<void> {
    const { numMembers, spanMs, print } = this.#options;
    const page = await PageWatch.open(`${this.#url}/dashboard`);
    const numKept = this.#numStaying;
    const before = (await this.#events()).at(0)?.id ?? 0;
    for (const [name, act] of [
      ['leave', () => Promise.resolve(void this.#children.pop()?.kill('SIGKILL'))],
      ['return', () => this.#join(numKept, numMembers)],
    ] as const) {
      for (const view of ['overview', 'pool']) {
        const isFirst = view === 'overview';
        const watchedMs = isFirst ? SILENCE_MS + spanMs : spanMs;
        const watching = page.watch(`#/${view}`, watchedMs);
        await Promise.all([
          isFirst ? sleep(1_000).then(act) : undefined,
          this.#span(`members ${name}, ${view}`),
          watching,
        ]);
        this.#notePage(`members ${name}, ${view}`, await watching, watchedMs);
      }
      const { health, nodes } = await this.#pool();
      print(`health: ${JSON.stringify(health)}; ${nodes.length} nodes`);
    }
    await this.#settled(numMembers);
    const events = (await this.#events(before)).toReversed();
    this.#note('members leave and return/events', events.length, 'events');
    for (const { kind, text } of events.slice(0, 10)) print(`  ${kind}: ${text}`);
    const counts = new Map<string, number>();
    for (const { kind } of events) counts.set(kind, (counts.get(kind) ?? 0) + 1);
    print(JSON.stringify([...counts]));
    await page.close();
  }

  async #events(since = 0): Promise<EventPage['events']> {
    const { text } = await asked(`${this.#url}/api/events?limit=10000&since=${since}`);
    return (JSON.parse(text) as EventPage).events;
  }

  close(): void {
    for (const child of [this.#router, ...this.#children]) child.kill('SIGKILL');
  }
}

/** A reader of the stream that counts bytes. */
class Reader {
  numBytes = 0;
  firstBytes = 0;
  readonly #response: IncomingMessage;

  private constructor(response: IncomingMessage) {
    this.#response = response;
    response.on('data', (chunk: Buffer) => {
      this.numBytes += chunk.length;
      if (this.firstBytes === 0 && chunk.includes('\n\n')) this.firstBytes = this.numBytes;
    });
  }

  static async open(url: string): Promise<Reader> {
    const [response] = (await once(get(`${url}/api/stream`), 'response')) as [IncomingMessage];
    return new Reader(response);
  }

  close(): void {
    this.#response.destroy();
  }
}

async function timed(run: () => Promise<unknown>): Promise<number> {
  const startMs = performance.now();
  await run();
  return performance.now() - startMs;
}

interface Answer {
  readonly status: number;
  readonly text: string;
  readonly numBytes: number;
}

function asked(url: string, body?: string): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const headers = body === undefined ? {} : { 'content-type': 'application/json' };
    const call = request(url, { method: body === undefined ? 'GET' : 'POST', agent, headers }, (response) => {
      const chunks: Buffer[] = [];
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('end', () => {
        const bytes = Buffer.concat(chunks);
        resolve({ status: response.statusCode ?? 0, text: bytes.toString(), numBytes: bytes.length });
      });
      response.on('error', reject);
    });
    call.on('error', reject);
    call.end(body);
  });
}
