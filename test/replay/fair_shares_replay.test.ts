/**
 * Tenants that share instances in a replay, over the light model and over the production engine: shares of engine time, weights, a quiet
 * tenant next to a flood, and what fairness costs. Simulated time, so no figure depends on the machine. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import type { QueueOrderName } from '../../shared/engine/queue_order.ts';
import { createPolicy } from '../../shared/placement/policy_registry.ts';
import type { NewRequest, Trace } from '../../shared/trace/trace.ts';
import { defaultHardware } from '../../services/replay/hardware.ts';
import { ReplayRun, type RunOptions } from '../../services/replay/replay_run.ts';
import type { RunResult } from '../../services/replay/run_measurements.ts';
import { tenantsFigures } from '../../services/replay/tenant_figures.ts';
import { TraceHashes } from '../../services/replay/trace_hashes.ts';
import { builtTrace } from './traces.ts';

const BLOCK_TOKENS = 512;

interface Asked {
  readonly atMs: number;
  readonly input: number;
  readonly output: number;
  readonly tenant?: string;
  readonly priority?: number | undefined;
  /** First ids of its prompt's blocks; the others are its own. */
  readonly shared?: readonly number[];
}

/** A trace of these requests, each with blocks of its own after the shared ones. */
function traceOf(asked: readonly Asked[]): Trace {
  const requests = asked.map(({ atMs, input, output, tenant, priority, shared = [] }, i): NewRequest => {
    const numOwn = Math.ceil(input / BLOCK_TOKENS) - shared.length;
    const own = Array.from({ length: numOwn }, (_, k) => 1_000_000 + 1_000 * i + k);
    const hashIds = [...shared, ...own];
    return { timestampMs: atMs, inputTokens: input, outputTokens: output, hashIds, tenant, priority };
  });
  return builtTrace(
    [...requests].sort((a, b) => a.timestampMs - b.timestampMs),
    BLOCK_TOKENS,
  );
}

function times<T>(count: number, make: (i: number) => T): T[] {
  return Array.from({ length: count }, (_, i) => make(i));
}

async function runOf(trace: Trace, isFull: boolean, more: Partial<RunOptions> = {}): Promise<RunResult> {
  const run = new ReplayRun({
    trace,
    isFull,
    speedUp: 1,
    targets: { ttftMs: 2_000, tbtMs: 50 },
    hardware: { ...defaultHardware, maxRows: 8 },
    hashes: new TraceHashes(),
    seed: 1,
    numPrefill: 0,
    numDecode: 1,
    chunkTokens: 512,
    noise: 0.02,
    policy: createPolicy('random', { localPrefillTokens: 256, refusesLate: false }),
    ...more,
  });
  return isFull ? run.runFull() : run.run();
}

function jainOf(result: RunResult, trace: Trace): number {
  const jain = tenantsFigures(result, trace, () => ({ mean: 0, p50: 0, p90: 0, p99: 0 }))?.jain;
  assert(jain !== undefined, 'tenants waited at once');
  return jain;
}

function ratioOf({ tenantTimes }: RunResult, a: string, b: string): number {
  return tenantTimes.get(a)!.contendedMs / tenantTimes.get(b)!.contendedMs;
}

/** 99th percentile of the TTFT of a tenant's requests, in ms. */
function ttftOf({ ttftMs }: RunResult, { columns }: Trace, tenant: string): number {
  const id = columns.tenants.indexOf(tenant);
  const own = ttftMs.filter((_, i) => columns.tenantIds?.[i] === id).sort();
  return own[Math.ceil(0.99 * own.length) - 1]!;
}

/** Four tenants, all backlogged from the start, whose requests cost 1 : 4 : 16 : 64. */
const sizes = [1, 4, 16, 64];
const backlog = traceOf(
  sizes.flatMap((size, t) =>
    times(Math.ceil(1_024 / size), () => ({ atMs: 0, input: 60 * size, output: 4 * size, tenant: `t${t}` })),
  ),
);

/** Answers of 400 tokens: forty at the start, and one for each that ends, so that 8 run and 32 wait all the time. */
function flood(count: number, priority?: (i: number) => number): readonly Asked[] {
  return times(count, (i) => ({ atMs: 0, input: 400, output: 400, tenant: 'flood', priority: priority?.(i) }));
}
const questions = times(40, (i): Asked => ({ atMs: 1_500 * (i + 1), input: 200, output: 16, tenant: 'quiet' }));

describe.each([
  ['light', false],
  ['full', true],
] as const)('the %s engine', (_, isFull) => {
  test.each(['first_come', 'shortest_first', 'slices', 'feedback'] as const)(
    'tenants with requests of 1 : 4 : 16 : 64 get equal engine time under %s, at no loss of throughput',
    async (queueOrder: QueueOrderName) => {
      const fair = await runOf(backlog, isFull, { queueOrder });
      const unfair = await runOf(backlog, isFull, { queueOrder, fairShares: false });
      assert(jainOf(fair, backlog) >= 0.95, `${jainOf(fair, backlog)}`);
      assert(jainOf(unfair, backlog) < 0.8, `without fair shares: ${jainOf(unfair, backlog)}`);
      assert(unfair.simulatedMs / fair.simulatedMs >= 0.97, `${unfair.simulatedMs / fair.simulatedMs}`);
    },
  );

  test('tenants with weights 2 : 1 get 2 : 1 of the engine time', async () => {
    const trace = traceOf(
      ['a', 'b'].flatMap((tenant, t) =>
        times(t === 0 ? 120 : 480, () => ({
          atMs: 0,
          input: t === 0 ? 1_600 : 400,
          output: t === 0 ? 160 : 40,
          tenant,
        })),
      ),
    );
    const even = ratioOf(await runOf(trace, isFull), 'a', 'b');
    assert(Math.abs(even - 1) < 0.05, `1 : 1 gives ${even}`);
    const twice = ratioOf(await runOf(trace, isFull, { weights: new Map([['a', 2]]) }), 'a', 'b');
    assert(Math.abs(twice / 2 - 1) < 0.05, `2 : 1 gives ${twice}`);
  });

  test.each([
    ['no priority', undefined],
    ['the highest priority', () => -1_000_000_000],
    ['a thousand priorities', (i: number) => -(i % 1_000)],
  ] as const)('a quiet tenant next to a flood with %s waits for the next free seat at most', async (__, priority) => {
    const trace = traceOf([...flood(160, priority), ...questions]);
    const alone = ttftOf(await runOf(traceOf(questions), isFull), traceOf(questions), 'quiet');
    const fair = await runOf(trace, isFull);
    // Eight answers that began together end together: a seat is free after one of them at most.
    const seatMs = Math.max(
      ...fair.totalMs.map((ms, i) => (trace.columns.tenantIds![i] === 0 ? ms - fair.ttftMs[i]! : 0)),
    );
    const quiet = ttftOf(fair, trace, 'quiet');
    assert(quiet <= alone + seatMs, `TTFT p99 ${quiet} ms, alone ${alone} ms, a seat ${seatMs} ms`);
    const unfair = await runOf(trace, isFull, { fairShares: false });
    assert(ttftOf(unfair, trace, 'quiet') > 4 * quiet, `${ttftOf(unfair, trace, 'quiet')} ms without fair shares`);
  });
});
