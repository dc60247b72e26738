/** Runs of a replay over the light model: what becomes of each request, the search for goodput, the policies side by side. Budget: 20 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { createPolicy, type PolicyName } from '../../shared/placement/policy_registry.ts';
import { findGoodput } from '../../services/replay/goodput.ts';
import { defaultHardware } from '../../services/replay/hardware.ts';
import { ReplayRun } from '../../services/replay/replay_run.ts';
import type { RunResult } from '../../services/replay/run_measurements.ts';
import { attainmentOf, everyRequest, figuresOf } from '../../services/replay/run_figures.ts';
import { generateTrace, parseGenerator } from '../../services/replay/trace_generators.ts';
import { TraceHashes } from '../../services/replay/trace_hashes.ts';

const targets = { ttftMs: 2_000, tbtMs: 50 };
const trace = generateTrace(parseGenerator('multi-turn,requests=600,rate=8,input=4000'));
const context = { trace, hardware: defaultHardware, targets };

function runOf(policy: PolicyName, ratePerSecond: number, more: { seed?: number; maxMisses?: number } = {}): RunResult {
  return new ReplayRun({
    trace,
    targets,
    hardware: defaultHardware,
    hashes: new TraceHashes(),
    seed: 1,
    numPrefill: 2,
    numDecode: 2,
    chunkTokens: 2_048,
    noise: 0.02,
    speedUp: ratePerSecond / trace.requestsPerSecond,
    policy: createPolicy(policy, { localPrefillTokens: 256, refusesLate: false }),
    ...more,
  }).run();
}

test('every request gets its first token, all its gaps and its end; its prompt is cached, fetched or computed', () => {
  const { ttftMs, totalMs, gaps, gapOffsets, tokens, isCut } = runOf('priced', 8);
  assert(!isCut);
  for (const i of everyRequest(trace)) {
    assert(ttftMs[i]! > 0 && totalMs[i]! >= ttftMs[i]!);
    const own = gaps.subarray(gapOffsets[i], gapOffsets[i + 1]);
    assert.equal(own.length, trace.columns.outputTokens[i]! - 1);
    const sum = own.reduce((all, gap) => all + gap, 0);
    assert(Math.abs(ttftMs[i]! + sum - totalMs[i]!) < 1e-3 * totalMs[i]! + 1);
    const { device, dram, remote, computed } = tokens;
    assert(device[i]! + dram[i]! + remote[i]! + computed[i]! >= trace.columns.inputTokens[i]!);
  }
});

test('equal seeds give equal figures, other seeds others', () => {
  const figures = (seed: number): unknown => figuresOf(runOf('priced', 8, { seed }), 8, context);
  assert.deepEqual(figures(1), figures(1));
  assert.notDeepEqual(figures(1), figures(2));
});

test('a run that must miss its share ends early, and says so', () => {
  const full = runOf('random', 80);
  const cut = runOf('random', 80, { maxMisses: 60 });
  assert(attainmentOf(full, everyRequest(trace), targets) < 0.9);
  assert(cut.isCut && cut.simulatedMs < full.simulatedMs);
  assert(attainmentOf(cut, everyRequest(trace), targets) < 0.9);
});

/** Share within the targets at `load` times the goodput, as Mooncake's conversation trace has it under round robin. */
function shareAt(load: number): number {
  const points = [
    [0.1, 1],
    [0.8, 0.985],
    [0.93, 0.953],
    [1, 0.9],
    [1.16, 0.61],
    [1.4, 0.41],
    [2.1, 0.26],
    [8.4, 0.16],
  ] as const;
  for (const [i, [to, share]] of points.entries()) {
    const [from, before] = points[i - 1] ?? [0, 1];
    if (load <= to) return before + ((share - before) * (load - from)) / (to - from);
  }
  return 0.15;
}

/** Searches for goodput. Returns what was found, and how often a rate was tried. */
async function searched(
  shareOf: (rate: number) => number,
  guess: number,
  step = 3,
): Promise<{ readonly found: number | undefined; readonly numRuns: number }> {
  let numRuns = 0;
  const trial = await findGoodput({
    attempt: (ratePerSecond) => {
      numRuns++;
      return Promise.resolve({ ratePerSecond, attainment: shareOf(ratePerSecond) });
    },
    share: 0.9,
    guess,
    tolerance: 0.01,
    step,
  });
  assert(!trial || trial.attainment >= 0.9);
  return { found: trial?.ratePerSecond, numRuns };
}

test('the search finds the rate at which a share is met, from above and from below, whatever the share tells', async () => {
  for (const limit of [0.3, 1.1, 4.3, 6.7, 12.5, 40]) {
    for (const shareOf of [
      (rate: number): number => shareAt(rate / limit),
      (rate: number): number => (rate <= limit ? 0.95 : 0.5),
      (rate: number): number => (rate <= limit ? 1 : 0.02),
      (rate: number): number => Math.max(0, 0.9 - 0.1 * Math.log(rate / limit)),
    ]) {
      const { found = 0, numRuns } = await searched(shareOf, 3.4);
      assert(found <= limit * (1 + 1e-9) && found > 0.98 * limit, `${found} for ${limit}`);
      assert(numRuns <= 20, `${numRuns} runs for ${limit}`);
    }
  }
  assert.equal((await searched(() => 0, 3.4)).found, undefined);
  assert(((await searched(() => 1, 3.4)).found ?? 0) > 100);
});

test('a search takes few runs where shares fall as they do on a real trace, and fewest near a guess', async () => {
  for (const limit of [1.1, 4.3, 12.5]) {
    assert((await searched((rate) => shareAt(rate / limit), 3.4)).numRuns <= 8);
    assert((await searched((rate) => shareAt(rate / limit), 1.01 * limit, 0.03)).numRuns <= 4);
    assert((await searched((rate) => shareAt(rate / limit), 0.99 * limit, 0.03)).numRuns <= 4);
  }
});

test('at a load that a split by roles cannot carry, the default policy meets the targets of nearly all and Algorithm 1 does not', () => {
  const at = (policy: PolicyName): number => attainmentOf(runOf(policy, 8), everyRequest(trace), targets);
  const [priced, mooncake] = [at('priced'), at('mooncake')];
  assert(priced >= 0.9, `priced ${priced}`);
  assert(mooncake < 0.8 * priced, `mooncake ${mooncake}`);
});

test('percentiles of many gaps are those of the sorted gaps', () => {
  const result = runOf('priced', 8);
  const sorted = result.gaps.slice().sort();
  assert(sorted.length > 1 << 16);
  const at = (share: number): number => sorted[Math.ceil(share * sorted.length) - 1]!;
  const { tbtMs } = figuresOf(result, 8, context);
  assert.deepEqual([tbtMs.p50, tbtMs.p90, tbtMs.p99], [at(0.5), at(0.9), at(0.99)]);
  assert.equal(tbtMs.mean, sorted.reduce((sum, gap) => sum + gap, 0) / sorted.length);
});
