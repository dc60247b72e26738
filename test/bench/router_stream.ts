/**
 * Measures the cost of a streamed token at the router: readers of chats at 30 tokens/s before two instances that emit on a clock. Reports CPU time a token
 * of the router, of its control thread by part, and of the instances; the time between two tokens as a reader on sockets sees it; the same of several
 * routers over one NATS server, compared with one; and, when an instance or a router is killed in the middle, what its readers noticed.
 */
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { temporaryFolder } from '../support/cluster.ts';
import { until } from '../support/until.ts';
import { cpuMsOf, cpuTimesOf, type CpuTimes } from './cpu_times.ts';
import { withReference, type Figure } from './figures.ts';
import { countFullConnections } from './stream/full_connections.ts';
import { killInstance, killRouter, type AddFigure } from './stream/kills.ts';
import { divideProfile, PARTS, readProfile, type ProfileTimes } from './stream/profile_parts.ts';
import { Reader } from './stream/reader.ts';
import { CONTEXT, servePenstock, serveSglang, startClock, type Served } from './stream/served.ts';
import { STEPS_PER_SECOND } from './stream/step_clock.ts';

export interface RouterStreamOptions {
  /** Readers at once, one measurement each. */
  readonly numReaders: readonly number[];
  /** Seconds of each measurement; before it the streams run for half as long. */
  readonly seconds: number;
  /** Further readers that stop reading before it. */
  readonly numStalled: number;
  /** Routers over which the readers are divided; several are measured after one, and compared with it. */
  readonly numRouters: number;
  /** Process that is killed after it; a router only of several. */
  readonly killed: 'instance' | 'router' | undefined;
  readonly hasPeer: boolean;
  readonly print: (line: string) => void;
  readonly onFigure: (figure: Figure) => void;
}

/** Tokens of a stream at most: all of the context but for the prompt. */
const MAX_TOKENS = CONTEXT - 1_024;
const NUM_MODULES = 16;

/** Measures each number of readers with processes of its own. */
export async function benchRouterStream(options: RouterStreamOptions): Promise<Figure[]> {
  const figures: Figure[] = [];
  const add = (figure: Figure): void => {
    figures.push(figure);
    options.onFigure(figure);
  };
  for (const numReaders of options.numReaders) {
    const stalled = options.numStalled > 0 ? `, ${options.numStalled} stalled` : '';
    const name = `router/stream/${numReaders} readers${stalled}`;
    if (options.numRouters === 1) await benchOne(name, numReaders, options, add);
    else await benchSeveral(`${name}, ${options.numRouters} routers`, numReaders, options, add);
  }
  return figures;
}

const MEASURES = [
  ['rate', 'tokens/s'],
  ['control thread', 'µs a token'],
  ['all threads', 'µs a token'],
  ['instances', 'µs a token'],
  ['tbt/p50', 'ms'],
  ['tbt/p99', 'ms'],
  ['reader', 'µs a token'],
] as const;
/** Streams that the control threads could carry by their CPU time a token, each on a core of its own, whatever cores the machine has. */
const CAPACITY = ['capacity', 'streams'] as const;

/** Values of a steady state. `reader` is the CPU time of the benchmark's own reader. */
type Steady = Readonly<Record<(typeof MEASURES)[number][0] | (typeof CAPACITY)[0], number>>;

/** Measures one router, its profile, and the peer. */
async function benchOne(
  name: string,
  numReaders: number,
  options: RouterStreamOptions,
  add: (figure: Figure) => void,
): Promise<void> {
  const after: Figure[] = [];
  const addAfter = figuresOf(name, (figure) => after.push(figure));
  const own = await measureOwn(numReaders, options, addAfter);
  await profile(numReaders, options, addAfter);
  const theirs = options.hasPeer ? await measurePeer(numReaders, options) : undefined;
  const addNow = figuresOf(name, add);
  for (const [what, unit] of MEASURES)
    addNow(what, own[what], unit, theirs && { name: 'sglang-router', value: theirs[what] });
  after.forEach(add);
}

/** Measures one router, and then several with as many readers in all. */
async function benchSeveral(
  name: string,
  numReaders: number,
  options: RouterStreamOptions,
  add: (figure: Figure) => void,
): Promise<void> {
  const after: Figure[] = [];
  const addAfter = figuresOf(name, (figure) => after.push(figure));
  const one = await measureOwn(numReaders, { ...options, numRouters: 1, killed: undefined }, addAfter);
  const several = await measureOwn(numReaders, options, addAfter);
  const addNow = figuresOf(name, add);
  for (const [what, unit] of [...MEASURES, CAPACITY])
    addNow(what, several[what], unit, { name: 'one router', value: one[what] });
  after.forEach(add);
}

/** Returns the receiver of figures whose names begin so. */
function figuresOf(name: string, add: (figure: Figure) => void): AddFigure {
  return (what, value, unit, reference) => {
    const known = { name: `${name}/${what}`, value, unit };
    add(reference ? withReference(known.name, value, unit, reference.name, reference.value) : known);
  };
}

async function measureOwn(numReaders: number, options: RouterStreamOptions, add: AddFigure): Promise<Steady> {
  const { numRouters, numStalled, seconds, killed } = options;
  const served = await servePenstock({ numRouters, numRequests: numReaders + numStalled });
  const reader = new Reader();
  try {
    await begin(served, reader, numReaders, options);
    const steady = await measureSteady(served, reader, seconds);
    if (killed === 'instance') await killInstance(served, reader, add);
    if (killed === 'router') await killRouter(served, reader, add);
    return steady;
  } finally {
    reader.close();
    await served.close();
  }
}

/** Returns undefined, and prints why, where the peer cannot be had. */
async function measurePeer(numReaders: number, options: RouterStreamOptions): Promise<Steady | undefined> {
  let served: Served;
  try {
    served = await serveSglang(options.print);
  } catch (error) {
    options.print(`sglang-router is missing: ${error instanceof Error ? error.message : String(error)}`);
    return undefined;
  }
  const reader = new Reader();
  try {
    await begin(served, reader, numReaders, options);
    const steady = await measureSteady(served, reader, options.seconds);
    // Its threads share the work; none of them is the one that serves all requests.
    return { ...steady, 'control thread': steady['all threads'] };
  } finally {
    reader.close();
    await served.close();
  }
}

/** Opens all streams, waits until those that stop reading are full, and lets the others run for a while. */
async function begin(
  { model, routers, servers }: Served,
  reader: Reader,
  numReaders: number,
  { seconds, numStalled }: RouterStreamOptions,
): Promise<void> {
  const urls = routers.map(({ url }) => url);
  await reader.open({ urls, model, numReaders, numStalled, maxTokens: MAX_TOKENS });
  await Promise.all(servers.map(startClock));
  if (numStalled > 0) {
    const ports = urls.map((url) => Number(new URL(url).port));
    await until('all stalled streams are stuck', async () => {
      const counts = await Promise.all(ports.map(countFullConnections));
      return sum(counts) >= numStalled;
    });
  }
  await sleep(500 * seconds);
}

async function measureSteady({ routers, servers }: Served, reader: Reader, seconds: number): Promise<Steady> {
  const times = () => ({
    routers: routers.map(({ process }) => cpuTimesOf(process)),
    servers: sum(servers.map(cpuMsOf)),
  });
  await reader.mark();
  const before = times();
  await sleep(1_000 * seconds);
  const after = times();
  const { numTokens, tokensOfUrls, elapsedMs, tbtMs, cpuMs } = await reader.report();
  const perToken = (ms: number): number => (1_000 * ms) / numTokens;
  const usedBy = (kind: keyof CpuTimes): number[] =>
    after.routers.map((one, i) => one[kind] - (before.routers[i]?.[kind] ?? 0));
  const controlMs = usedBy('control');
  return {
    rate: (1_000 * numTokens) / elapsedMs,
    'control thread': perToken(sum(controlMs)),
    'all threads': perToken(sum(usedBy('all'))),
    instances: perToken(after.servers - before.servers),
    'tbt/p50': tbtMs.p50,
    'tbt/p99': tbtMs.p99,
    reader: perToken(cpuMs),
    capacity: sum(controlMs.map((ms, i) => (1_000 * (tokensOfUrls[i] ?? 0)) / ms / STEPS_PER_SECOND)),
  };
}

function sum(values: readonly number[]): number {
  return values.reduce((total, one) => total + one, 0);
}

/** Prints where the control thread's time goes, on a router of its own: the profiler has a cost. */
async function profile(numReaders: number, options: RouterStreamOptions, add: AddFigure): Promise<void> {
  const folder = temporaryFolder();
  const served = await servePenstock({ numRouters: 1, numRequests: numReaders, profiles: folder.path });
  const reader = new Reader();
  try {
    const router = served.routers[0]?.process;
    if (!router) throw new Error('no router serves');
    await begin(served, reader, numReaders, { ...options, numStalled: 0 });
    await reader.mark();
    const [cpu, startUs] = [cpuTimesOf(router), monotonicUs()];
    await sleep(1_000 * options.seconds);
    const cpuMs = cpuTimesOf(router).control - cpu.control;
    const endUs = monotonicUs();
    const { numTokens } = await reader.report();
    reader.close();
    router.kill('SIGTERM');
    await once(router, 'exit');
    const times = divideProfile(readProfile(folder.path), startUs, endUs);
    // On a busy machine the thread waits for a core in all parts alike, while the profile's clock goes on.
    const perToken = (ms: number): number => (1_000 * ms * cpuMs) / times.busyMs / numTokens;
    printModules(times, perToken, options.print);
    for (const part of PARTS) add(`profile/${part}`, perToken(times.parts[part]), 'µs a token');
  } finally {
    reader.close();
    await served.close();
    folder.remove();
  }
}

/** Returns the time of the clock that profiles have. */
function monotonicUs(): number {
  return Number(process.hrtime.bigint() / 1_000n);
}

function printModules(
  { modules, busyMs }: ProfileTimes,
  perToken: (ms: number) => number,
  print: (line: string) => void,
): void {
  print('own time of modules on the control thread: µs a token, share, part');
  for (const { name, part, ms } of modules.slice(0, NUM_MODULES)) {
    const share = (100 * ms) / busyMs;
    print(`  ${perToken(ms).toFixed(2).padStart(7)} ${share.toFixed(1).padStart(5)} %  ${part.padEnd(8)} ${name}`);
  }
}
