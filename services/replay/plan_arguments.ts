/** The command line of `penstock plan`. */
import { ConfigError } from '../../shared/base/options.ts';
import { flag, flagHelp, parseFlags, type GivenFlags } from '../../shared/base/command_flags.ts';
import type { InstanceCosts } from './plan.ts';
import { API_KEY_HELP, hardwareSource, sourceOf } from './replay_arguments.ts';
import type { HardwareSource, Targets, TraceSource } from './replay_options.ts';

/** Most instances of a cluster that is looked for (P1). */
const MAX_INSTANCES = 1_024;
const DEFAULTS = { ttftS: 10, tbtS: 0.1, instances: 64, runs: 60 };

const flags = {
  hardware: flag('FILE|URL', 'hardware of an instance, from a file or a running router'),
  'api-key': API_KEY_HELP,
  'trace-block': flag('TOKENS', 'tokens of a block id of the trace [those of the hardware]'),
  'slo-ttft': flag('S', `seconds to the first token that a request may take [${DEFAULTS.ttftS}]`),
  'slo-tbt': flag('S', `seconds between two tokens [${DEFAULTS.tbtS}]`),
  rate: flag('R', 'requests a second [those of the trace]'),
  requests: flag('N', 'only the first N requests of the trace'),
  seed: flag('N', 'seed of the runs [1]'),
  'max-instances': flag('N', `most instances of a cluster [${DEFAULTS.instances}]`),
  'max-runs': flag('N', `most clusters that are tried [${DEFAULTS.runs}]`),
  cost: flag('ROLE=N[,…]', 'cost of an instance: prefill=1,decode=1, and both=1 for one that does any part [1]'),
  json: flag('FILE', 'the plan as JSON'),
  progress: flag('', 'progress on standard error, also when that is no terminal'),
  help: flag('', 'this text'),
};

/** Flags of the command, each with its dashes. */
export const planFlags: readonly string[] = Object.keys(flags).map((name) => `--${name}`);

/** Options of `penstock plan`. */
export interface PlanArguments extends HardwareSource {
  readonly trace: TraceSource;
  readonly traceBlockTokens: number | undefined;
  readonly targets: Targets;
  readonly ratePerSecond: number | undefined;
  readonly maxRequests: number | undefined;
  readonly seed: number;
  readonly maxInstances: number;
  readonly maxRuns: number;
  readonly costs: InstanceCosts;
  readonly json: string | undefined;
  readonly isProgressWanted: boolean;
}

/** Reads the arguments after `penstock plan`; undefined: help is asked for. @throws ConfigError */
export function readPlanLine(args: readonly string[]): PlanArguments | undefined {
  const { given, words } = parseFlags('plan', flags, args);
  if (given.isSet('help')) return undefined;
  const [trace, ...more] = words;
  if (trace === undefined)
    throw new ConfigError('name a trace: penstock plan TRACE.jsonl, or generate:KIND; see `penstock plan --help`');
  if (more.length > 0) throw new ConfigError(`penstock plan takes one trace, not also ${more.join(' ')}`);
  return {
    trace: sourceOf(trace),
    ...hardwareSource(given.text('hardware'), given.text('api-key')),
    traceBlockTokens: given.whole('trace-block', 65_536),
    targets: {
      ttftMs: 1_000 * (given.number('slo-ttft', 0.001, 86_400) ?? DEFAULTS.ttftS),
      tbtMs: 1_000 * (given.number('slo-tbt', 0.000_1, 86_400) ?? DEFAULTS.tbtS),
    },
    ratePerSecond: given.number('rate', 0.000_1, 1e6),
    maxRequests: given.whole('requests', Number.MAX_SAFE_INTEGER),
    seed: given.whole('seed', 2 ** 31) ?? 1,
    maxInstances: given.whole('max-instances', MAX_INSTANCES) ?? DEFAULTS.instances,
    maxRuns: given.whole('max-runs', 1_000) ?? DEFAULTS.runs,
    costs: costsOf(given),
    json: given.text('json'),
    isProgressWanted: given.isSet('progress'),
  };
}

function costsOf(given: GivenFlags<keyof typeof flags>): InstanceCosts {
  const costs: { prefill?: number; decode?: number; both?: number } = {};
  for (const part of (given.text('cost') ?? '').split(',').filter(Boolean)) {
    const [, role, number] = /^(prefill|decode|both)=(\d*\.?\d+)$/.exec(part.trim()) ?? [];
    if (role === undefined || !(Number(number) > 0))
      throw new ConfigError(
        `--cost: ${JSON.stringify(part)} is not allowed: ROLE=N with prefill, decode or both and a number above 0, for instance prefill=2,decode=1`,
      );
    costs[role as keyof typeof costs] = Number(number);
  }
  const { prefill = 1, decode = 1 } = costs;
  return { prefill, decode, both: costs.both ?? Math.max(prefill, decode) };
}

/** Returns the help of the command. */
export function planHelp(hardwareName: string): string {
  return `penstock plan: the cheapest cluster that meets targets with a trace

Usage: penstock plan TRACE.jsonl | generate:KIND[,KEY=NUMBER…] [options]

Runs the trace through simulated clusters (as \`penstock replay\` does, under the placement policy \`priced\`) and looks for the
cheapest one in which 90 % of the requests meet the targets: of instances that do any part of a request, and of prefill and
decode instances apart. More instances are taken to be no worse.

${flagHelp(flags)}

Without both=, an instance that does any part costs as much as the dearer of the two.
Hardware without --hardware: ${hardwareName}.
`;
}
