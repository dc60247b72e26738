/**
 * `npm run sim -- --seeds 2000 [--from N] [--minutes M] [--processes N] [--json FILE] [--stop]`: whole clusters under simulated time,
 * one a seed, in as many processes as there are cores. A seed that fails prints how to run it again and its trace, and the end is code
 * 1; with --stop it is the last one. The report is the same for any number of processes.
 * `npm run sim -- --mutants [--only TEXT]`: how many seeds it takes to find each mutant.
 */
import { writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import { hunt, mutants } from './mutants.ts';
import { Progress } from './progress.ts';
import { runSeeds, servesPool } from './seed_pool.ts';

// A process of a pool ends with its parent.
if (servesPool(process.argv))
  await new Promise((resolve) => process.once('disconnect', resolve)).then(() => process.exit(0));
const { values } = parseArgs({
  options: {
    seeds: { type: 'string', default: '2000' },
    from: { type: 'string', default: '1' },
    minutes: { type: 'string', default: '0' },
    processes: { type: 'string', default: String(availableParallelism()) },
    json: { type: 'string', default: '' },
    trace: { type: 'boolean', default: false },
    stop: { type: 'boolean', default: false },
    mutants: { type: 'boolean', default: false },
    only: { type: 'string', default: '' },
  },
});
const [numSeeds, from, minutes] = [Number(values.seeds), Number(values.from), Number(values.minutes)];
const numProcesses = Math.min(Number(values.processes), numSeeds);
if (
  ![numSeeds, numProcesses].every((count) => Number.isInteger(count) && count >= 1) ||
  !Number.isInteger(from) ||
  !(minutes >= 0)
) {
  process.stderr.write(
    'npm run sim -- --seeds N (from 1) --from N --minutes M --processes N (from 1): numbers, please\n',
  );
  process.exit(2);
}
if (values.mutants) {
  let numAlive = 0;
  const left = mutants.filter(({ name }) => name.includes(values.only));
  const huntAll = async (): Promise<void> => {
    for (let mutant = left.shift(); mutant; mutant = left.shift()) {
      const { name, foundBy, numSeeds: numHunted, what } = await hunt(mutant, Math.min(numSeeds, 1_000));
      if (foundBy === undefined) numAlive++;
      process.stdout.write(
        foundBy === undefined
          ? `ALIVE after ${numHunted} seeds: ${name} ${what}\n`
          : `${numHunted} seeds: ${name}: ${what}\n`,
      );
    }
  };
  await Promise.all(Array.from({ length: availableParallelism() }, huntAll));
  process.exit(numAlive > 0 ? 1 : 0);
}
const startMs = performance.now();
const failures: { seed: number; failures: readonly string[] }[] = [];
const stats: Record<string, number> = {};
let [numRun, numEvents, traceHash] = [0, 0, 0x811c9dc5];
const least = { requests: Infinity, faults: Infinity, events: Infinity };
const untilMs = minutes > 0 ? startMs + minutes * 60_000 : Infinity;
const progress = new Progress({ total: numSeeds, untilMs });
const results = runSeeds({
  from,
  numSeeds,
  numProcesses,
  hasTrace: values.trace,
  mayBegin: () => performance.now() < untilMs,
  onEnded: () => {
    progress.count();
  },
});
for await (const result of results) {
  const { seed } = result;
  numRun++;
  numEvents += result.numEvents;
  least.requests = Math.min(least.requests, result.numRequests);
  least.faults = Math.min(least.faults, result.numFaults);
  least.events = Math.min(least.events, result.numEvents);
  traceHash = Math.imul(traceHash ^ result.traceHash, 0x01000193) >>> 0;
  for (const [name, value] of Object.entries(result.stats)) stats[name] = (stats[name] ?? 0) + value;
  if (result.failures.length > 0) {
    progress.numFailed++;
    progress.clear();
    failures.push({ seed, failures: result.failures });
    process.stdout.write(`seed ${seed} failed: npm run sim -- --seeds 1 --from ${seed}\n`);
    for (const failure of result.failures) process.stdout.write(`  ${failure}\n`);
    for (const line of result.trace.slice(-60)) process.stdout.write(`    ${line}\n`);
    if (values.stop) break;
  } else if (values.trace) for (const line of result.trace) process.stdout.write(`    ${line}\n`);
}
progress.clear();
const seconds = (performance.now() - startMs) / 1_000;
const report = { seeds: numRun, failures, events: numEvents, traceHash: traceHash.toString(16), least, stats, seconds };
process.stdout.write(
  `sim: ${numRun} seeds, ${failures.length} failed, ${numEvents} events, ${((1_000 * seconds) / numRun).toFixed(1)} ms a seed, hash ${report.traceHash}, ${JSON.stringify(stats)}\n`,
);
if (values.json !== '') writeFileSync(values.json, `${JSON.stringify(report, null, 2)}\n`);
process.exit(failures.length > 0 ? 1 : 0);
