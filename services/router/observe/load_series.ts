/** Values of members' loads as series: gauges summed, and counters since the start of a process as rates. */
import type { Instance } from '../../../shared/placement/instance.ts';
import { loadFields, type LoadField } from '../../../shared/protocol/load_fields.ts';

const TIERS = ['device', 'dram', 'disk'] as const;

const GAUGES = plainSeries('gauge');
const COUNTERS = plainSeries('counter');
const SUMMED = GAUGES.filter(({ isSummed }) => isSummed);

/** Series of a set of members, in the order of the values. */
export const LOAD_SERIES: readonly string[] = [
  'instances',
  ...SUMMED.map(({ name }) => name),
  ...TIERS.flatMap((tier) => [`${tier}_bytes`, `${tier}_capacity_bytes`]),
  ...TIERS.map((tier) => `${tier}_evictions_per_s`),
  'fetched_bytes_per_s',
];

/** Series of one member, in the order of the values. */
export const NODE_SERIES: readonly string[] = [
  ...GAUGES.map(({ name }) => name),
  ...TIERS.flatMap((tier) => [
    `${tier}_bytes`,
    `${tier}_hits_per_s`,
    `${tier}_misses_per_s`,
    `${tier}_evictions_per_s`,
  ]),
  'fetched_bytes_per_s',
  ...COUNTERS.map(({ name }) => name),
  'failed_calls_per_s',
];

/** Counters of a member, in the order of {@link countersOf}. */
const NUM_COUNTERS = 3 * TIERS.length + 2 + COUNTERS.length;

/** Returns the series of plain values of this kind. */
function plainSeries(kind: LoadField['kind']) {
  return loadFields.flatMap(([from, field]) =>
    field.history && field.kind === kind ? [{ from, ...field.history }] : [],
  );
}

function countersOf({ load, failures }: Instance): number[] {
  const { memory = 0, socket = 0, call = 0 } = load?.fetched ?? {};
  return [
    ...TIERS.flatMap((tier) => {
      const { hits = 0, misses = 0, evictions = 0 } = load?.tiers[tier] ?? {};
      return [hits, misses, evictions];
    }),
    memory + socket + call,
    ...COUNTERS.map(({ from }) => load?.[from] ?? 0),
    failures.count,
  ];
}

/** Rates of members' counters between two looks. An incarnation that is seen first has no rates; a counter that falls has none either. */
export class CounterRates {
  readonly #before = new WeakMap<Instance, readonly number[]>();

  /** Returns the growth of each counter per second. `sinceMs` is the time since the last call for this member. */
  of(instance: Instance, sinceMs: number): number[] {
    const now = countersOf(instance);
    // The first heartbeat has counts of the time before.
    const before = this.#before.get(instance);
    if (instance.load) this.#before.set(instance, now);
    if (!before || sinceMs <= 0) return new Array<number>(NUM_COUNTERS).fill(0);
    return now.map((value, i) => (Math.max(0, value - (before[i] ?? 0)) * 1_000) / sinceMs);
  }
}

/** Adds a member's values to those of a set, in the order of {@link LOAD_SERIES}. */
export function addLoad(sums: Float64Array, { load }: Instance, rates: readonly number[]): void {
  const values = [
    1,
    ...SUMMED.map(({ from }) => load?.[from] ?? 0),
    ...TIERS.flatMap((tier) => [load?.tiers[tier]?.bytes ?? 0, load?.tiers[tier]?.capacityBytes ?? 0]),
    ...TIERS.map((_, i) => rates[3 * i + 2] ?? 0),
    rates[3 * TIERS.length] ?? 0,
  ];
  for (const [i, value] of values.entries()) sums[i] = (sums[i] ?? 0) + value;
}

/** Returns a member's values in the order of {@link NODE_SERIES}; NaN for what it does not have. */
export function nodeValues({ load }: Instance, rates: readonly number[]): number[] {
  return [
    ...GAUGES.map(({ from }) => load?.[from] ?? NaN),
    ...TIERS.flatMap((tier, i) => {
      const bytes = load?.tiers[tier]?.bytes;
      return bytes === undefined ? [NaN, NaN, NaN, NaN] : [bytes, ...rates.slice(3 * i, 3 * i + 3)];
    }),
    ...rates.slice(3 * TIERS.length),
  ];
}
