/**
 * Measures the cost of a streamed token at the router: readers of chats at 30 tokens/s before two instances that emit on a clock. Reports CPU time a token
 * of the router, of its control thread by part, and of the instances; the time between two tokens as a reader on sockets sees it; and,
 * when an instance is killed in the middle, what its readers noticed.
 */
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { temporaryFolder } from '../support/cluster.ts';
import { until } from '../support/until.ts';
import { cpuMsOf, cpuTimesOf } from './cpu_times.ts';
import { withReference, type Figure } from './figures.ts';
import { countFullConnections } from './stream/full_connections.ts';
import { divideProfile, PARTS, readProfile, type ProfileTimes } from './stream/profile_parts.ts';
import { Reader } from './stream/reader.ts';
import { CONTEXT, numOpenAt, servePenstock, serveSglang, startClock, type Served } from './stream/served.ts';
import { STEPS_PER_SECOND } from './stream/step_clock.ts';

export interface RouterStreamOptions {
  /** Readers at once, one measurement each. */
  readonly numReaders: readonly number[];
  /** Seconds of each measurement; before it the streams run for half as long. */
  readonly seconds: number;
  /** Further readers that stop reading before it. */
  readonly numStalled: number;
  /** Whether an instance is killed after it. */
  readonly hasKill: boolean;
  readonly hasPeer: boolean;
  readonly print: (line: string) => void;
  readonly onFigure: (figure: Figure) => void;
}

/** Tokens that each stream has after the kill before its readers are asked. */
const TOKENS_AFTER_KILL = STEPS_PER_SECOND;
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
    const after: Figure[] = [];
    const addAfter: AddFigure = (what, value, unit) => after.push({ name: `${name}/${what}`, value, unit });
    const own = await measureOwn(numReaders, options, addAfter);
    await profile(numReaders, options, addAfter);
    const theirs = options.hasPeer ? await measurePeer(numReaders, options) : undefined;
    for (const [what, unit] of MEASURES) {
      const reference = theirs?.[what];
      const known = { name: `${name}/${what}`, value: own[what], unit };
      add(reference === undefined ? known : withReference(known.name, own[what], unit, 'sglang-router', reference));
    }
    after.forEach(add);
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

/** Values of a steady state. `reader` is the CPU time of the benchmark's own reader. */
type Steady = Readonly<Record<(typeof MEASURES)[number][0], number>>;
type AddFigure = (what: string, value: number, unit: string) => void;

async function measureOwn(numReaders: number, options: RouterStreamOptions, add: AddFigure): Promise<Steady> {
  const served = await servePenstock(numReaders + options.numStalled);
  const reader = new Reader();
  try {
    await begin(served, reader, numReaders, options);
    const steady = await measureSteady(served, reader, options.seconds);
    if (options.hasKill) await killOne(served, reader, add);
    return steady;
  } finally {
    reader.close();
    served.close();
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
    served.close();
  }
}

/** Opens all streams, waits until those that stop reading are full, and lets the others run for a while. */
async function begin(
  { url, model, servers }: Served,
  reader: Reader,
  numReaders: number,
  { seconds, numStalled }: RouterStreamOptions,
): Promise<void> {
  await reader.open({ url, model, numReaders, numStalled, maxTokens: MAX_TOKENS });
  await Promise.all(servers.map(startClock));
  if (numStalled > 0) {
    const port = Number(new URL(url).port);
    await until('all stalled streams are stuck', async () => (await countFullConnections(port)) >= numStalled);
  }
  await sleep(500 * seconds);
}

async function measureSteady({ router, servers }: Served, reader: Reader, seconds: number): Promise<Steady> {
  const times = () => ({ ...cpuTimesOf(router), servers: servers.reduce((sum, one) => sum + cpuMsOf(one), 0) });
  await reader.mark();
  const before = times();
  await sleep(1_000 * seconds);
  const after = times();
  const { numTokens, elapsedMs, tbtMs, cpuMs } = await reader.report();
  const perToken = (ms: number): number => (1_000 * ms) / numTokens;
  return {
    rate: (1_000 * numTokens) / elapsedMs,
    'control thread': perToken(after.control - before.control),
    'all threads': perToken(after.all - before.all),
    instances: perToken(after.servers - before.servers),
    'tbt/p50': tbtMs.p50,
    'tbt/p99': tbtMs.p99,
    reader: perToken(cpuMs),
  };
}

/** Prints where the control thread's time goes, on a router of its own: the profiler has a cost. */
async function profile(numReaders: number, options: RouterStreamOptions, add: AddFigure): Promise<void> {
  const folder = temporaryFolder();
  const served = await servePenstock(numReaders, folder.path);
  const reader = new Reader();
  try {
    await begin(served, reader, numReaders, { ...options, numStalled: 0 });
    await reader.mark();
    const [cpu, startUs] = [cpuTimesOf(served.router), monotonicUs()];
    await sleep(1_000 * options.seconds);
    const cpuMs = cpuTimesOf(served.router).control - cpu.control;
    const endUs = monotonicUs();
    const { numTokens } = await reader.report();
    reader.close();
    served.router.kill('SIGTERM');
    await once(served.router, 'exit');
    const times = divideProfile(readProfile(folder.path), startUs, endUs);
    // On a busy machine the thread waits for a core in all parts alike, while the profile's clock goes on.
    const perToken = (ms: number): number => (1_000 * ms * cpuMs) / times.busyMs / numTokens;
    printModules(times, perToken, options.print);
    for (const part of PARTS) add(`profile/${part}`, perToken(times.parts[part]), 'µs a token');
  } finally {
    reader.close();
    served.close();
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

/** Kills one of the instances, and waits until all streams have gone on. */
async function killOne({ servers }: Served, reader: Reader, add: AddFigure): Promise<void> {
  const counts = await Promise.all(servers.map(numOpenAt));
  const numMoved = Math.max(...counts);
  const killed = servers[counts.indexOf(numMoved)];
  if (!killed) throw new Error('no instance has streams');
  await reader.mark();
  await sleep(1_000 / STEPS_PER_SECOND);
  killed.kill('SIGKILL');
  await once(killed, 'exit');
  await until('all streams have gone on', async () => {
    const { leastTokens, numStreams } = await reader.report();
    return leastTokens >= TOKENS_AFTER_KILL || numStreams.ended > 0;
  });
  const { numStreams, tbtMs, error } = await reader.report();
  if (error !== undefined) throw new Error(`a stream failed: ${error}`);
  add('killed/streams that moved', numMoved, 'streams');
  add('killed/with a gap', numStreams.gap, 'streams');
  add('killed/with a repeat', numStreams.repeat, 'streams');
  add('killed/with other text', numStreams.otherText, 'streams');
  add('killed/that ended', numStreams.ended, 'streams');
  add('killed/longest pause', tbtMs.most, 'ms');
}
