/** A process is killed under open streams: the figures are the faults that the readers of the streams that go on noticed. */
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { until } from '../../support/until.ts';
import { numOpenAt, type Served } from './served.ts';
import { STEPS_PER_SECOND } from './step_clock.ts';
import type { Reader } from './reader.ts';
import type { StreamsReport } from './streams.ts';

/** Receiver of a figure; a reference is of the same run. */
export type AddFigure = (
  what: string,
  value: number,
  unit: string,
  reference?: { readonly name: string; readonly value: number },
) => void;

/** Tokens that each stream has after the kill before its readers are asked. */
const TOKENS_AFTER_KILL = STEPS_PER_SECOND;

/** Kills one of the instances, and waits until all streams have gone on. */
export async function killInstance({ servers }: Served, reader: Reader, add: AddFigure): Promise<void> {
  const counts = await Promise.all(servers.map(numOpenAt));
  const numMoved = Math.max(...counts);
  const killed = servers[counts.indexOf(numMoved)];
  if (!killed) throw new Error('no instance has streams');
  await reader.mark();
  await sleep(1_000 / STEPS_PER_SECOND);
  killed.kill('SIGKILL');
  await once(killed, 'exit');
  const report = await haveGoneOn(reader);
  add('killed/streams that moved', numMoved, 'streams');
  addFaults('killed', report, add);
  add('killed/longest pause', report.tbtMs.most, 'ms');
}

/**
 * Kills the last of several routers, whose streams end with it, and waits until those of the others have gone on. Their longest pause is
 * compared with the one in as many tokens before.
 */
export async function killRouter({ routers, servers }: Served, reader: Reader, add: AddFigure): Promise<void> {
  const killed = routers.at(-1);
  const others = routers.slice(0, -1).map(({ url }) => url);
  if (!killed || others.length === 0) throw new Error('no other router would be left');
  await reader.mark();
  const before = await haveGoneOn(reader, others);
  await reader.mark();
  killed.process.kill('SIGKILL');
  await once(killed.process, 'exit');
  const report = await haveGoneOn(reader, others);
  const own = await reader.report([killed.url]);
  const numOpen = await Promise.all(servers.map(numOpenAt));
  const name = 'router killed';
  add(`${name}/its streams`, own.numRead, 'streams');
  add(`${name}/that ended with it`, own.numStreams.ended, 'streams');
  // Streams that stall are open, too.
  add(`${name}/open at the instances`, sum(numOpen), 'streams', { name: 'of the others', value: report.numRead });
  add(`${name}/of the others`, report.numRead, 'streams');
  addFaults(`${name}/of the others`, report, add);
  const reference = { name: 'before', value: before.tbtMs.most };
  add(`${name}/of the others/longest pause`, report.tbtMs.most, 'ms', reference);
}

/** Waits until the streams of these routers, or of all, have gone on for a second, or one has ended. @throws Error when one fails */
async function haveGoneOn(reader: Reader, urls?: readonly string[]): Promise<StreamsReport> {
  // A report is work for the process that reads the streams.
  await sleep((1_000 * TOKENS_AFTER_KILL) / STEPS_PER_SECOND);
  const report = await until('the streams have gone on', async () => {
    const sofar = await reader.report(urls);
    return (sofar.leastTokens >= TOKENS_AFTER_KILL || sofar.numStreams.ended > 0) && sofar;
  });
  if (report.error !== undefined) throw new Error(`a stream failed: ${report.error}`);
  return report;
}

function addFaults(name: string, { numStreams }: StreamsReport, add: AddFigure): void {
  add(`${name}/with a gap`, numStreams.gap, 'streams');
  add(`${name}/with a repeat`, numStreams.repeat, 'streams');
  add(`${name}/with other text`, numStreams.otherText, 'streams');
  add(`${name}/that ended`, numStreams.ended, 'streams');
}

function sum(values: readonly number[]): number {
  return values.reduce((total, one) => total + one, 0);
}
