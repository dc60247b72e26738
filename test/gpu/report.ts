/**
 * `npm run gpu:report [-- --device webgpu:0 --out gpu-report.json --stages a,b]`: the first ten minutes on a card. Stages run one after the
 * other, each in a process of its own, and the file is written after each: one that the driver ends is noted and does not end the others,
 * and a report that was stopped goes on where it was. At the end a table of what was predicted and what was measured.
 */
import { fork } from 'node:child_process';
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { softwareVersion } from '../../shared/base/version.ts';
import { report as machineReport, type Figure } from '../bench/figures.ts';
import { stageNames, stageSeconds, type StageMessage, type StageName } from './report_stages.ts';

/** How a stage ended. `crashed`: its process ended without a word, or this one did, twice, while the stage ran. */
type StageStatus = 'done' | 'failed' | 'crashed' | 'timed out';

interface StageRecord {
  readonly status: StageStatus | 'running' | 'running again';
  readonly seconds?: number;
  readonly figures: readonly Figure[];
  /** Results that are not figures: features, limits, names of failed cases. */
  readonly facts: Readonly<Record<string, unknown>>;
  readonly error?: string;
}

interface GpuReport {
  readonly version: string;
  readonly startedAt: string;
  readonly device: string;
  readonly machine: unknown;
  readonly stages: Partial<Record<StageName, StageRecord>>;
}

/** A stage that takes longer than this many times its share is ended. */
const PATIENCE = 3;

const { values } = parseArgs({
  options: {
    device: { type: 'string', default: 'webgpu' },
    out: { type: 'string', default: 'gpu-report.json' },
    stages: { type: 'string', default: stageNames.join(',') },
    /** Small shapes and few steps: for a software driver, and for the rehearsal. */
    scale: { type: 'string', default: 'card' },
  },
});

const stages = values.stages.split(',').map((name) => {
  const known = stageNames.find((one) => one === name);
  if (!known) throw new Error(`there is no stage ${name}: there are ${stageNames.join(', ')}`);
  return known;
});

const earlier = existsSync(values.out) ? (JSON.parse(readFileSync(values.out, 'utf8')) as GpuReport) : undefined;
let state: GpuReport =
  earlier?.device === values.device
    ? earlier
    : {
        version: softwareVersion,
        startedAt: new Date().toISOString(),
        device: values.device,
        machine: machineReport([]).machine,
        stages: {},
      };

/** Whole or not at all: whoever stops this finds the stages before. */
function save(name: StageName, record: StageRecord): void {
  state = { ...state, stages: { ...state.stages, [name]: record } };
  writeFileSync(`${values.out}.part`, `${JSON.stringify(state, null, 2)}\n`);
  renameSync(`${values.out}.part`, values.out);
}

function runStage(name: StageName): Promise<Pick<StageRecord, 'status' | 'figures' | 'facts' | 'error'>> {
  const figures: Figure[] = [];
  let facts: Record<string, unknown> = {};
  return new Promise((resolve) => {
    const limitMs = PATIENCE * stageSeconds[name] * 1_000;
    const child = fork(new URL('./report_process.js', import.meta.url), [name, values.device, values.scale], {
      timeout: limitMs,
      killSignal: 'SIGKILL',
    });
    const startMs = performance.now();
    let end: { readonly error?: string } | undefined;
    child.on('message', (message: StageMessage) => {
      if (message.kind === 'figure') {
        figures.push(message.figure);
        console.log(`  ${lineOf(message.figure)}`);
      } else if (message.kind === 'facts') facts = { ...facts, ...message.facts };
      else end = message.error === undefined ? {} : { error: message.error };
    });
    child.once('exit', (code, signal) => {
      const has = { figures, facts };
      if (end) resolve({ status: end.error === undefined ? 'done' : 'failed', ...has, ...end });
      else if (performance.now() - startMs >= limitMs) resolve({ status: 'timed out', ...has });
      else resolve({ status: 'crashed', ...has, error: `the process ended (${signal ?? `exit code ${code}`})` });
    });
  });
}

function lineOf({ name, value, unit, ratio, reference }: Figure): string {
  const compared = reference && ratio !== undefined ? `, ${ratio.toPrecision(3)} of ${reference.name}` : '';
  return `${name}: ${value.toPrecision(4)} ${unit}${compared}`;
}

for (const name of stages) {
  const before = state.stages[name];
  // One that was running when this was stopped is tried once more.
  const isAgain = before?.status === 'running';
  if (before && !isAgain) {
    if (before.status === 'running again') save(name, { ...before, status: 'crashed' });
    console.log(`${name}: ${state.stages[name]?.status}, as ${values.out} says`);
    continue;
  }
  console.log(`${name} (${stageSeconds[name]} s)`);
  save(name, { status: isAgain ? 'running again' : 'running', figures: [], facts: {} });
  const startMs = performance.now();
  const record = await runStage(name);
  save(name, { ...record, seconds: Number(((performance.now() - startMs) / 1_000).toFixed(1)) });
  if (record.error !== undefined)
    console.log(`  ${record.status}: ${record.error} (to try it again, take ${name} out of ${values.out})`);
}

const compared = Object.values(state.stages)
  .flatMap(({ figures }) => figures)
  .filter(({ reference }) => reference?.name === 'predicted');
if (compared.length > 0) console.log('\npredicted and measured');
for (const { name, value, unit, reference } of compared) {
  console.log(
    `  ${name.padEnd(64)} ${reference?.value.toPrecision(3).padStart(9)} ${value.toPrecision(3).padStart(9)} ${unit}`,
  );
}
console.log(`\nsend back ${values.out}`);
