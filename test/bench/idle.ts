/**
 * Measures a cluster while nobody asks: `penstock up` as a user starts it, and its small form of a single engine. CPU time until it is
 * healthy, then over a span without requests memory, threads, CPU and wake-ups of each process, and the first answer after the span; where
 * it is asked for, the same once more after many requests of one token.
 */
import { loadavg } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { Cluster, mapConcurrently } from '../support/cluster.ts';
import { until } from '../support/until.ts';
import { withReference, type Figure } from './figures.ts';
import { parentOf, treeOf, useOf, type ProcessUse } from './process_tree.ts';

export interface IdleBenchOptions {
  /** Requests of one token after which all is measured again; 0: it is not. */
  readonly numRequests: number;
  /** Milliseconds without a request over which CPU and wake-ups are counted. */
  readonly spanMs: number;
  readonly print: (line: string) => void;
  readonly onFigure: (figure: Figure) => void;
}

/** Aims of the default cluster, all processes together but for the router's own: seconds, MiB, and percent of a core. */
const AIMS = { 'CPU until healthy': 5, RSS: 450, CPU: 1, 'RSS of the router': 260 } as const;
/** Forms of a cluster, and the processes that each consists of. */
const forms = {
  default: { args: [], names: ['router', 'prefill-1', 'decode-1', 'store-1'] },
  small: { args: ['--prefill', '0', '--store', '0'], names: ['router', 'decode-1'] },
} as const;
const WIDTH = 8;
/** Milliseconds after requests until memory is looked at: what they left is freed by then. */
const SETTLE_MS = 5_000;
const COLUMNS = ['CPU s', 'RSS MiB', 'PSS MiB', 'threads', 'CPU %', 'wake-ups/s'];

export async function benchIdle(options: IdleBenchOptions): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const form of ['default', 'small'] as const) {
    const cluster = await Cluster.up(...forms[form].args);
    try {
      figures.push(...(await new IdleCluster(form, cluster, options).measure()));
    } finally {
      await cluster.close();
    }
  }
  return figures;
}

class IdleCluster {
  readonly #form: keyof typeof forms;
  readonly #cluster: Cluster;
  readonly #options: IdleBenchOptions;
  readonly #figures: Figure[] = [];

  constructor(form: keyof typeof forms, cluster: Cluster, options: IdleBenchOptions) {
    this.#form = form;
    this.#cluster = cluster;
    this.#options = options;
  }

  async measure(): Promise<Figure[]> {
    const { numRequests, print } = this.#options;
    await until('the cluster is healthy', async () => (await fetch(`${this.#cluster.url}/health`)).ok);
    const started = this.#uses();
    this.#note('CPU until healthy', sumOf(started, 'cpuSeconds'), 's');
    await this.#measureSpan('idle', started);
    this.#note('first answer', await this.#answerMs(), 'ms');
    this.#note('second answer', await this.#answerMs(), 'ms');
    if (numRequests > 0) {
      const startMs = performance.now();
      await mapConcurrently(
        Array.from({ length: numRequests }, (_, i) => i),
        WIDTH,
        (i) => this.#cluster.completion({ prompt: [1 + (i % 200), 2, 3], max_tokens: 1 }),
      );
      print(`${numRequests} requests in ${((performance.now() - startMs) / 1_000).toFixed(0)} s`);
      await sleep(SETTLE_MS);
      await this.#measureSpan(`idle after ${numRequests} requests`, started);
    }
    return this.#figures;
  }

  /** Milliseconds of a chat's answer of one token, whose prompt the form of a chat and a new sentence make. */
  async #answerMs(): Promise<number> {
    const content = `Mira keeps the red key since ${performance.now()}. Who keeps it?`;
    const body = { messages: [{ role: 'user', content }], max_tokens: 1, temperature: 0 };
    const startMs = performance.now();
    const response = await fetch(`${this.#cluster.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(text);
    return performance.now() - startMs;
  }

  /** Waits for the span, and prints what each process has taken over it next to its CPU time until it was healthy. */
  async #measureSpan(when: string, started: ReadonlyMap<string, ProcessUse>): Promise<void> {
    const { spanMs, print } = this.#options;
    const before = this.#uses();
    const startMs = performance.now();
    await sleep(spanMs);
    const seconds = (performance.now() - startMs) / 1_000;
    const after = this.#uses();
    const rateOf = (key: keyof ProcessUse): number => (sumOf(after, key) - sumOf(before, key)) / seconds;
    print(`\n${this.#form} cluster, ${when}, load ${loadavg()[0]?.toFixed(1)}; CPU s: until healthy`);
    print(['process'.padEnd(14), ...COLUMNS.map((name) => name.padStart(11))].join(''));
    for (const name of [...after.keys(), 'total']) {
      const of = (uses: ReadonlyMap<string, ProcessUse>, key: keyof ProcessUse): number =>
        name === 'total' ? sumOf(uses, key) : (uses.get(name)?.[key] ?? NaN);
      const perSecond = (key: keyof ProcessUse): number => (of(after, key) - of(before, key)) / seconds;
      const values = [
        of(started, 'cpuSeconds').toFixed(2),
        of(after, 'rssMiB').toFixed(0),
        of(after, 'pssMiB').toFixed(0),
        String(of(after, 'numThreads')),
        (100 * perSecond('cpuSeconds')).toFixed(2),
        perSecond('wakeUps').toFixed(1),
      ];
      print([name.padEnd(14), ...values.map((value) => value.padStart(11))].join(''));
    }
    const place = when === 'idle' ? '' : `after ${this.#options.numRequests}/`;
    this.#note(`${place}RSS`, sumOf(after, 'rssMiB'), 'MiB');
    this.#note(`${place}RSS of the router`, after.get('router')?.rssMiB ?? NaN, 'MiB');
    this.#note(`${place}PSS`, sumOf(after, 'pssMiB'), 'MiB');
    this.#note(`${place}threads`, sumOf(after, 'numThreads'), 'threads');
    this.#note(`${place}CPU`, 100 * rateOf('cpuSeconds'), '% of a core');
    this.#note(`${place}wake-ups`, rateOf('wakeUps'), '/s');
  }

  /** Returns the use of each process, with those that it has started; `up` itself stands alone. */
  #uses(): Map<string, ProcessUse> {
    const pids = forms[this.#form].names.map((name) => [name, this.#cluster.pidOf(name)] as const);
    const [[, router]] = pids as unknown as [(typeof pids)[number]];
    return new Map([
      ['up', useOf([parentOf(router)])],
      ...pids.map(([name, pid]) => [name, useOf(treeOf(pid))] as const),
    ]);
  }

  #note(what: string, value: number, unit: string): void {
    const aim = this.#form === 'default' ? AIMS[(what.split('/').at(-1) ?? '') as keyof typeof AIMS] : undefined;
    const name = `idle/${this.#form}/${what}`;
    const figure = aim === undefined ? { name, value, unit } : withReference(name, value, unit, 'the aim', aim);
    this.#figures.push(figure);
    this.#options.onFigure(figure);
  }
}

function sumOf(uses: ReadonlyMap<string, ProcessUse>, key: keyof ProcessUse): number {
  return [...uses.values()].reduce((total, use) => total + use[key], 0);
}
