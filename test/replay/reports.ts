/** Figures of policies for the tests of reports. */
import { defaultHardware } from '../../services/replay/hardware.ts';
import type { PolicyFigures, ReplayReport, RequestFigures } from '../../services/replay/report.ts';

const times = (p50: number) => ({ mean: 1.1 * p50, p50, p90: 2 * p50, p99: 4 * p50 });

/** Returns figures of 1,000 requests, with changes. */
function figures(more: Partial<RequestFigures> = {}): RequestFigures {
  return {
    numRequests: 1_000,
    ttftMs: times(800),
    tbtMs: times(20),
    totalMs: times(9_000),
    attainment: 0.9,
    ttftAttainment: 0.93,
    tbtAttainment: 0.95,
    hitTokens: { device: 100, dram: 200, remote: 100, computed: 600 },
    hitBlocks: { device: 10, dram: 20, remote: 10, computed: 60 },
    bytesMoved: 3.21e12,
    rejections: 7,
    ...more,
  };
}

/** Returns figures of a policy with this goodput by seed. */
export function policyFigures(
  name: string,
  goodputOfSeeds: readonly number[],
  more: Partial<RequestFigures> = {},
  isDefault = false,
): PolicyFigures {
  const sum = goodputOfSeeds.reduce((total, one) => total + one, 0);
  return {
    name,
    isDefault,
    goodputOfSeeds,
    goodputPerSecond: goodputOfSeeds.length > 0 ? sum / goodputOfSeeds.length : undefined,
    goodputOfLongestTenth: 1.25,
    atRate: { ratePerSecond: 5, ...figures(more), longestTenth: figures({ ttftMs: times(3_000), numRequests: 100 }) },
    attainmentByRate: [
      { ratePerSecond: 2, attainment: 1, attainmentOfLongestTenth: 0.97 },
      { ratePerSecond: 5, attainment: 0.9, attainmentOfLongestTenth: 0.6 },
    ],
  };
}

/** Returns a report of these policies. */
export function reportOf(policies: readonly PolicyFigures[], more: Partial<ReplayReport> = {}): ReplayReport {
  const tokens = { mean: 12_034.9, p50: 6_909, p90: 27_367, p99: 85_400, max: 126_195 };
  return {
    trace: 'a<b>&.jsonl',
    traceStats: {
      numRequests: 12_031,
      durationSeconds: 3_537,
      requestsPerSecond: 3.4,
      blockTokens: 512,

      inputTokens: tokens,
      outputTokens: { ...tokens, mean: 343 },
      numBlockReferences: 288_500,
      numBlocks: 182_790,
    },
    cluster: { kind: 'split', numPrefill: 8, numDecode: 8 },
    hardware: defaultHardware,
    targets: { ttftMs: 10_000, tbtMs: 100 },
    targetShare: 0.9,

    seeds: [1, 2],
    engine: 'light',
    queueOrder: 'first_come',
    policies,
    notes: ['Only the first 10 requests of the trace.'],
    machine: 'a machine',
    wallSeconds: 12.34,
    cacheCurve: [1_000, Infinity].map((capacityBlocks) => ({
      capacityBlocks,
      hitBlocks: 1,
      hitTokens: 2,
      blockShare: 0.366,
      tokenShare: 0.374,
    })),
    ...more,
  };
}
