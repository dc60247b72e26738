/** Flags of `penstock bench serve` about its figures: which times it shows, their percentiles, and the targets of goodput. */
import { ConfigError } from '../../../shared/base/options.ts';
import { metricNames, type GoodputTargets, type MetricName } from './figures.ts';
import type { ServeFlags } from './serve_flags.ts';

/** Reads `--percentile-metrics`; all times when it is absent. @throws ConfigError for a name that is none */
export function metricsOf(text: string | undefined): readonly MetricName[] {
  if (text === undefined) return metricNames;
  const names = text.split(',').map((name) => name.trim());
  const unknown = names.find((name) => !metricNames.some((one) => one === name));
  if (unknown !== undefined)
    throw new ConfigError(`--percentile-metrics: there is no ${JSON.stringify(unknown)}: ${metricNames.join(', ')}`);
  return metricNames.filter((name) => names.includes(name));
}

/** Reads `--metric-percentiles`. @throws ConfigError for what is no percentage */
export function percentilesOf(text: string): readonly number[] {
  const percentiles = text.split(',').map((one) => (one.trim() === '' ? NaN : Number(one)));
  if (!percentiles.every((one) => one >= 0 && one <= 100))
    throw new ConfigError(
      `--metric-percentiles: ${text} is not allowed: numbers from 0 to 100 with commas, for instance 50,99.9`,
    );
  return percentiles;
}

/** Reads the targets of `--goodput`, its own and those of the words after it. @throws ConfigError for a word that is none */
export function goodputOf(given: ServeFlags, words: readonly string[]): GoodputTargets {
  const first = given.text('goodput');
  const [stray] = words;
  if (first === undefined && stray !== undefined)
    throw new ConfigError(
      `penstock bench serve takes flags only, not ${JSON.stringify(stray)}; see \`penstock bench serve --help\``,
    );
  const targets: Record<string, number> = {};
  for (const pair of [...(first ?? '').split(','), ...words].filter((one) => one !== '')) {
    const [, name = '', ms = ''] = /^(ttft|tpot|e2el):(\d*\.?\d+)$/.exec(pair) ?? [];
    if (name === '')
      throw new ConfigError(
        `--goodput: ${JSON.stringify(pair)} is not allowed: ttft:MS, tpot:MS or e2el:MS, for instance ttft:200 tpot:50`,
      );
    targets[name] = Number(ms);
  }
  return targets;
}
