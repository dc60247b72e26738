/**
 * The production engine in simulated time against the light model: both engines give the same figures. `npm run test:long` looks for
 * goodput too. Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { createPolicy, type PolicyName } from '../../shared/placement/policy_registry.ts';
import { defaultHardware } from '../../services/replay/hardware.ts';
import { ReplayRun } from '../../services/replay/replay_run.ts';
import type { RunResult, TokenSource } from '../../services/replay/run_measurements.ts';
import { attainmentOf, everyRequest } from '../../services/replay/run_figures.ts';
import { generateTrace, parseGenerator } from '../../services/replay/trace_generators.ts';
import { TraceHashes } from '../../services/replay/trace_hashes.ts';
import type { Trace } from '../../shared/trace/trace.ts';
import { longTest } from '../support/long.ts';

const SEEDS = 6;
const targets = { ttftMs: 2_000, tbtMs: 50 };

interface Setup {
  readonly trace: Trace;
  readonly policy: PolicyName;
  readonly speedUp: number;
  readonly isFull: boolean;
  readonly seed?: number;
}

function runOf({ trace, policy, speedUp, isFull, seed = 1 }: Setup): Promise<RunResult> {
  const run = new ReplayRun({
    trace,
    speedUp,
    isFull,
    targets,
    hardware: defaultHardware,
    hashes: new TraceHashes(),
    seed,
    numPrefill: 2,
    numDecode: 2,
    chunkTokens: 512,
    noise: 0.05,
    policy: createPolicy(policy, { localPrefillTokens: 256 }),
  });
  return isFull ? run.runFull() : Promise.resolve(run.run());
}

function sum(values: ArrayLike<number>): number {
  return Array.from(values).reduce((all, value) => all + value, 0);
}

function mean(values: Float64Array): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

const traceOf = (numRequests: number): Trace =>
  generateTrace(parseGenerator(`multi-turn,requests=${numRequests},rate=8,input=2000`));

describe.each(['mooncake', 'priced'] as const)('under %s', (policy) => {
  test('every request ends with its tokens, and equal seeds give equal figures', async () => {
    const trace = traceOf(60);
    const setup = { trace, policy, speedUp: 1, isFull: true };
    const [first, second] = [await runOf(setup), await runOf(setup)];
    assert.deepEqual(first, second);
    assert.equal(sum(first.isRejected), 0);
    assert(first.totalMs.every((ms, i) => ms >= first.ttftMs[i]! && first.ttftMs[i]! > 0));
    const prompts = trace.columns.inputTokens.reduce((sum, tokens) => sum + tokens, 0);
    const [device, dram, remote, computed] = ['device', 'dram', 'remote', 'computed'].map((where) =>
      sum(first.tokens[where as TokenSource]),
    ) as [number, number, number, number];
    assert(device > 0 && device + dram + remote + computed >= prompts);
  });

  test('times, hits and busy instances are those of the light model', async () => {
    const setup = { trace: traceOf(200), policy, speedUp: 1 };
    const [light, full] = [await runOf({ ...setup, isFull: false }), await runOf({ ...setup, isFull: true })];
    const within = (name: string, of: (result: RunResult) => number, share: number): void => {
      const [a, b] = [of(light), of(full)];
      assert(Math.abs(a - b) <= share * Math.max(a, b), `${name}: ${a} light, ${b} full`);
    };
    within('mean gap', ({ meanGapMs }) => mean(meanGapMs), 0.05);
    within('mean total', ({ totalMs }) => mean(totalMs), 0.05);
    // One placement changes all later ones: hits of a single seed differ by more than the means of several.
    within('computed tokens', ({ tokens }) => sum(tokens.computed), 0.1);
    within('busy share', ({ busyShare }) => busyShare, 0.05);
    within('attainment', (result) => attainmentOf(result, everyRequest(setup.trace), targets), 0.05);
  });

  longTest('goodput is within 5 % of the light model', async () => {
    const trace = traceOf(400);
    const [light, full] = [await goodputOf(trace, policy, false), await goodputOf(trace, policy, true)];
    assert(Math.abs(light - full) <= 0.05 * Math.max(light, full), `${light} light, ${full} full`);
  });
});

/** Returns the speed-up up to which 90 % of the requests are within the targets, to 1 %: the mean of seeds, because one placement changes all later ones. */
async function goodputOf(trace: Trace, policy: PolicyName, isFull: boolean): Promise<number> {
  const meets = async (speedUp: number): Promise<boolean> => {
    let all = 0;
    for (let seed = 1; seed <= SEEDS; seed++)
      all += attainmentOf(await runOf({ trace, policy, speedUp, isFull, seed }), everyRequest(trace), targets);
    return all / SEEDS >= 0.9;
  };
  let [below, above] = [1, 2];
  while (await meets(above)) [below, above] = [above, 2 * above];
  while (above / below > 1.01) {
    const middle = Math.sqrt(below * above);
    if (await meets(middle)) below = middle;
    else above = middle;
  }
  return below;
}
