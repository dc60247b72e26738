/**
 * Ordinary load while processes die: a kill -9, or a SIGSTOP of 1 to 8 s and a SIGCONT, every two seconds (as the model says) on any
 * process but the router. None of the requests may fail while a decode instance can be had, none may differ, and no stream may stand still for
 * long beyond the time in which no decode instance ran at all.
 */
/* eslint-disable time/speed -- `npm run chaos` measures; chaos.test.ts asks for no time */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Random } from '../../../shared/base/random.ts';
import { Cluster } from '../../support/cluster.ts';
import { ask, harbourChaos, knownCases, type Answer } from './load.ts';

const VICTIMS = ['prefill-1', 'prefill-2', 'decode-1', 'decode-2', 'store-1'] as const;

interface Span {
  readonly name: string;
  readonly fromMs: number;
  /** Infinity while it lasts. */
  toMs: number;
}

export interface KillsResult {
  readonly numStrikes: number;
  readonly strikes: readonly string[];
  readonly answers: readonly Answer[];
  /** Longest gap of the streams, less the time without a running decode instance, divided by the number of strikes within it. */
  readonly worstGapMs: number;
  readonly noDecodeMs: number;
}

/** Strikes until it has lasted so long, and so many strikes and answers have come. */
export async function runKills(
  least: { readonly ms: number; readonly strikes: number; readonly answers: number },
  random: Random,
  numCases = 40,
  model = harbourChaos,
): Promise<KillsResult> {
  const cases = await knownCases(numCases, random, model);
  const counts = ['--prefill', '2', '--decode', '2', '--store', '1', '--local-prefill-tokens', '64'];
  const cluster = await Cluster.upWithKeys('--model', model.path, ...counts, ...model.options);
  const downs: Span[] = [];
  const strikes: { atMs: number; what: string }[] = [];
  const answers: Answer[] = [];
  const endMs = performance.now() + least.ms;
  const isOver = (): boolean =>
    performance.now() >= endMs && strikes.length >= least.strikes && answers.length >= least.answers;
  try {
    const client = async (): Promise<void> => {
      while (!isOver()) {
        const one = cases[random.below(cases.length)];
        if (one) answers.push(await ask(cluster, one, random.chance(2, 3)));
      }
    };
    const striking = (async () => {
      while (!isOver()) {
        await sleep(model.strikeEveryMs);
        const up = VICTIMS.filter((name) => !downs.some((down) => down.name === name && down.toMs === Infinity));
        const name = up[random.below(Math.max(1, up.length))];
        if (name === undefined) continue;
        strikes.push({ atMs: performance.now(), what: strike(cluster, name, random, downs) });
      }
    })();
    await Promise.all([striking, ...Array.from({ length: model.numClients }, client)]);
  } finally {
    // A stopped process cannot end.
    for (const name of VICTIMS) tryKill(cluster, name, 'SIGCONT');
    await cluster.close();
  }
  const noDecode = overlaps(
    downs.filter(({ name }) => name === 'decode-1'),
    downs.filter(({ name }) => name === 'decode-2'),
  );
  return {
    numStrikes: strikes.length,
    strikes: strikes.map(({ what }) => what),
    answers,
    worstGapMs: worstGap(answers, noDecode, strikes, model.strikeEveryMs),
    noDecodeMs: noDecode.reduce((sum, [from, to]) => sum + to - from, 0),
  };
}

/** Strikes one process and keeps from when to when it did not run. */
function strike(cluster: Cluster, name: string, random: Random, downs: Span[]): string {
  const down: Span = { name, fromMs: performance.now(), toMs: Infinity };
  if (random.chance(1, 2)) {
    const pauseMs = 1_000 + random.below(7_000);
    if (!tryKill(cluster, name, 'SIGSTOP')) return `${name} was away`;
    downs.push(down);
    void sleep(pauseMs).then(() => {
      tryKill(cluster, name, 'SIGCONT');
      down.toMs = performance.now();
    });
    return `${name} stopped for ${pauseMs} ms`;
  }
  const numLines = cluster.errors.length;
  if (!tryKill(cluster, name, 'SIGKILL')) return `${name} was away`;
  downs.push(down);
  void (async () => {
    while (!cluster.errors.slice(numLines).some((line) => line.startsWith(`${name} is back`))) await sleep(20);
    down.toMs = performance.now();
  })();
  return `${name} killed`;
}

function tryKill(cluster: Cluster, name: string, signal: NodeJS.Signals): boolean {
  try {
    cluster.kill(name, signal);
    return true;
  } catch {
    return false;
  }
}

type Interval = readonly [from: number, to: number];

function overlaps(a: readonly Span[], b: readonly Span[]): Interval[] {
  return a.flatMap((one) =>
    b.flatMap((other): Interval[] => {
      const [from, to] = [Math.max(one.fromMs, other.fromMs), Math.min(one.toMs, other.toMs, performance.now())];
      return to > from ? [[from, to]] : [];
    }),
  );
}

function worstGap(
  answers: readonly Answer[],
  noDecode: readonly Interval[],
  strikes: readonly { readonly atMs: number }[],
  strikeEveryMs: number,
): number {
  let worst = 0;
  for (const { startMs, timesMs } of answers.filter(({ timesMs: times }) => times.length > 2)) {
    let before = startMs;
    for (const at of timesMs) {
      const away = noDecode.reduce(
        (sum, [from, to]) => sum + Math.max(0, Math.min(at, to) - Math.max(before, from)),
        0,
      );
      const numStrikes = strikes.filter(({ atMs }) => atMs >= before - strikeEveryMs && atMs <= at).length;
      worst = Math.max(worst, (at - before - away) / Math.max(1, numStrikes));
      before = at;
    }
  }
  return worst;
}
