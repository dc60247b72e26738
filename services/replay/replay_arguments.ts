/** The command line of `penstock replay`: one table of flags for parsing, checks and help. */
import { ConfigError } from '../../shared/base/options.ts';
import { queueOrderNames, type QueueOrderName } from '../../shared/engine/queue_order.ts';
import { flag, flagHelp, parseFlags, type GivenFlags } from '../../shared/base/command_flags.ts';
import type { TenantWeights } from './run_tenants.ts';
import type { ClusterSize, HardwareSource, ReplayOptions, SlowInstances, TraceSource } from './replay_options.ts';
import { generatorHelp, parseGenerator, type GeneratorSpec } from './trace_generators.ts';
import { TRACE_LIMITS } from '../../shared/trace/trace_reader.ts';

/** Most instances of a role, and most seeds (P1). */
const MAX_INSTANCES = 1_024;
const MAX_SEEDS = 100;
const DEFAULTS = { instances: 2, ttftS: 10, tbtS: 0.1, seeds: 1 };

/** Flag with the key for the router of `--hardware`. */
export const API_KEY_HELP = flag('KEY', 'admin key for that router [the variable PENSTOCK_API_KEY]');

const flags = {
  prefill: flag('N', `prefill instances [${DEFAULTS.instances}]`),
  decode: flag('N', `decode instances [${DEFAULTS.instances}]`),
  aggregated: flag('N', 'instances that prefill and decode, in place of the others'),
  hardware: flag('FILE|URL', 'hardware of an instance, from a file or a running router'),
  'api-key': API_KEY_HELP,
  'trace-block': flag('TOKENS', 'tokens of a block id of the trace [those of the hardware]'),
  policy: flag('NAME[,NAME]', 'placement policies [the default one]'),
  compare: flag('', 'all placement policies'),
  'slo-ttft': flag('S', `seconds to the first token that a request may take [${DEFAULTS.ttftS}]`),
  'slo-tbt': flag('S', `seconds between two tokens [${DEFAULTS.tbtS}]`),
  rate: flag('R', 'one run at R requests a second, without a search for goodput'),
  seeds: flag('N', `runs with seeds 1 to N [${DEFAULTS.seeds}]`),
  requests: flag('N', 'only the first N requests of the trace'),
  engine: flag(
    'light|full',
    'how much of an engine is simulated: its steps, or its scheduler and block pool too [light]',
  ),
  'queue-order': flag('NAME', `order of the instances’ queues: ${queueOrderNames.join(', ')} [${queueOrderNames[0]}]`),
  'fair-shares': flag(
    'on|off',
    'whether tenants of the trace share an instance fairly, above the order of its queue [on]',
  ),
  weights: flag('NAME=W[,NAME=W]', 'weights of tenants, each from 0.001 to 1000 [1]'),
  'strict-roles': flag('', 'roles are walls (policy priced)'),
  'link-bytes-per-second': flag('N', 'speed of the links, in place of the hardware’s'),
  slow: flag('SHARE:FACTOR', 'that share of the instances is so many times slower: 0.5:3'),
  'cache-curve': flag('', 'also the hits of one cache by its capacity'),
  html: flag('FILE', 'the report as a page'),
  json: flag('FILE', 'the report as JSON'),
  progress: flag('', 'progress on standard error, also when that is no terminal'),
  generate: flag('KIND[:KEY=NUMBER,…]', 'generates a trace, prints it or writes it to --out, and ends'),
  out: flag('FILE', 'with --generate: the file of the trace'),
  help: flag('', 'this text'),
};

type Given = GivenFlags<keyof typeof flags>;

/** Flags of the command, each with its dashes. */
export const replayFlags: readonly string[] = Object.keys(flags).map((name) => `--${name}`);

/** A command line that was read. */
export type ReplayLine =
  | { readonly kind: 'help' }
  | { readonly kind: 'generate'; readonly spec: GeneratorSpec; readonly out: string | undefined }
  | { readonly kind: 'replay'; readonly options: ReplayOptions; readonly isProgressWanted: boolean };

/** Policies by name, the default one first. */
export type PolicyNames = readonly [string, ...string[]];

/**
 * Reads the arguments after `penstock replay`. `policies` are the names that `--policy` allows. @throws ConfigError for an unknown flag,
 * a value that is not allowed, or flags that exclude each other.
 */
export function readReplayLine(args: readonly string[], policies: PolicyNames): ReplayLine {
  const { given, words } = parseFlags('replay', flags, args, ['policy']);
  if (given.isSet('help')) return { kind: 'help' };
  if (given.isGiven('generate')) return generateLine(given, words);
  if (given.isGiven('out'))
    throw new ConfigError('--out means nothing without --generate; a report goes to --html or --json');
  const [trace, ...more] = words;
  if (trace === undefined)
    throw new ConfigError('name a trace: penstock replay TRACE.jsonl, or generate:KIND; see `penstock replay --help`');
  if (more.length > 0) throw new ConfigError(`penstock replay takes one trace, not also ${more.join(' ')}`);
  const options: ReplayOptions = {
    trace: sourceOf(trace),
    cluster: clusterOf(given),
    ...hardwareSource(given.text('hardware'), given.text('api-key')),
    policies: policiesOf(given, policies),
    targets: {
      ttftMs: 1_000 * (given.number('slo-ttft', 0.001, 86_400) ?? DEFAULTS.ttftS),
      tbtMs: 1_000 * (given.number('slo-tbt', 0.000_1, 86_400) ?? DEFAULTS.tbtS),
    },
    ratePerSecond: given.number('rate', 0.000_1, 1e6),
    seeds: Array.from({ length: given.whole('seeds', MAX_SEEDS) ?? DEFAULTS.seeds }, (_, i) => i + 1),
    maxRequests: given.whole('requests', Number.MAX_SAFE_INTEGER),
    traceBlockTokens: given.whole('trace-block', 65_536),
    engine: engineOf(given),
    queueOrder: queueOrderOf(given),
    fairShares: fairSharesOf(given),
    weights: weightsOf(given),
    strictRoles: given.isSet('strict-roles'),
    linkBytesPerSecond: given.number('link-bytes-per-second', 1, 1e15),
    slow: slowOf(given),
    cacheCurve: given.isSet('cache-curve'),
    html: given.text('html'),
    json: given.text('json'),
  };
  if (options.html !== undefined && options.html === options.json)
    throw new ConfigError(`--html and --json both name ${options.html}: use two files`);
  return { kind: 'replay', options, isProgressWanted: given.isSet('progress') };
}

/** Returns the help of the command. */
export function replayHelp(policies: PolicyNames, hardwareName: string): string {
  return `penstock replay: a trace through a simulated cluster, under one or more placement policies

Usage: penstock replay TRACE.jsonl | generate:KIND[,KEY=NUMBER…] [options]

The router's own placement decides, at simulated time: goodput (the highest rate at which 90 % of the requests meet the
targets), times to the first and between tokens, hits by tier, bytes moved, rejections. Equal seeds give equal figures.
A trace has Mooncake's format, a request in each line, at most ${TRACE_LIMITS}.

${flagHelp(flags)}

Policies: ${policies.join(', ')}; ${policies[0]} is the default.
Hardware without --hardware: ${hardwareName}.

Generated traces, with the defaults of their values:

${generatorHelp()}
`;
}

function generateLine(given: Given, words: readonly string[]): ReplayLine {
  const others = given.names.filter((name) => name !== 'generate' && name !== 'out');
  if (others.length > 0 || words.length > 0)
    throw new ConfigError(
      `--generate takes only --out, not also ${[...others.map((name) => `--${name}`), ...words].join(', ')}`,
    );
  return { kind: 'generate', spec: parseGenerator(given.value('generate') ?? ''), out: given.text('out') };
}

const GENERATE = 'generate:';

/** Returns the trace that a word names. @throws ConfigError for a generator that there is not */
export function sourceOf(trace: string): TraceSource {
  if (!trace.startsWith(GENERATE)) return { kind: 'file', path: trace };
  const text = trace.slice(GENERATE.length);
  return { kind: 'generated', spec: parseGenerator(text), text };
}

/** Returns where the hardware is read, by the flags `--hardware` and `--api-key`. @throws ConfigError where there is a key and no router */
export function hardwareSource(hardware: string | undefined, apiKey: string | undefined): HardwareSource {
  if (apiKey !== undefined && !/^https?:\/\//i.test(hardware ?? ''))
    throw new ConfigError('--api-key is for the router of --hardware URL: name one, or leave out the key');
  return { hardware, apiKey };
}

function clusterOf(given: Given): ClusterSize {
  const numInstances = given.whole('aggregated', MAX_INSTANCES);
  const numPrefill = given.whole('prefill', MAX_INSTANCES);
  const numDecode = given.whole('decode', MAX_INSTANCES);
  if (numInstances === undefined)
    return { kind: 'split', numPrefill: numPrefill ?? DEFAULTS.instances, numDecode: numDecode ?? DEFAULTS.instances };
  if (numPrefill !== undefined || numDecode !== undefined)
    throw new ConfigError('--aggregated is another cluster than --prefill and --decode: replay one after the other');
  return { kind: 'aggregated', numInstances };
}

function policiesOf(given: Given, policies: PolicyNames): readonly string[] {
  const names = given.text('policy');
  if (given.isSet('compare')) {
    if (names !== undefined) throw new ConfigError('--compare runs all policies: leave out --policy, or --compare');
    return policies;
  }
  if (names === undefined) return [policies[0]];
  const chosen = [...new Set(names.split(',').map((name) => name.trim()))];
  const unknown = chosen.find((name) => !policies.includes(name));
  if (unknown !== undefined)
    throw new ConfigError(`--policy: there is no policy ${JSON.stringify(unknown)}: use ${policies.join(', ')}`);
  return chosen;
}

function engineOf(given: Given): ReplayOptions['engine'] {
  const engine = given.value('engine') ?? 'light';
  if (engine === 'light' || engine === 'full') return engine;
  throw new ConfigError(`--engine: ${JSON.stringify(engine)} is not allowed: light or full`);
}

function queueOrderOf(given: Given): QueueOrderName {
  const name = given.value('queue-order') ?? queueOrderNames[0];
  const order = queueOrderNames.find((one) => one === name);
  if (order) return order;
  throw new ConfigError(`--queue-order: ${JSON.stringify(name)} is not allowed: ${queueOrderNames.join(', ')}`);
}

function fairSharesOf(given: Given): boolean {
  const fair = given.value('fair-shares') ?? 'on';
  if (fair === 'on' || fair === 'off') return fair === 'on';
  throw new ConfigError(`--fair-shares: ${JSON.stringify(fair)} is not allowed: on or off`);
}

function weightsOf(given: Given): TenantWeights {
  const weights = new Map<string, number>();
  for (const one of given.text('weights')?.split(',') ?? []) {
    const [, name = '', weight] = /^(.+)=(\d*\.?\d+)$/.exec(one.trim()) ?? [];
    if (!(Number(weight) >= 0.001 && Number(weight) <= 1_000) || weights.has(name))
      throw new ConfigError(
        `--weights: ${JSON.stringify(one)} is not allowed: NAME=W for each tenant once, W from 0.001 to 1000, for instance team=2,guests=0.5`,
      );
    weights.set(name, Number(weight));
  }
  return weights;
}

function slowOf(given: Given): SlowInstances | undefined {
  const slow = given.value('slow');
  if (slow === undefined) return undefined;
  const [, share, factor] = /^(\d*\.?\d+):(\d*\.?\d+)$/.exec(slow) ?? [];
  if (!(Number(share) > 0 && Number(share) <= 1 && Number(factor) >= 1 && Number(factor) <= 1_000))
    throw new ConfigError(
      `--slow: ${JSON.stringify(slow)} is not allowed: SHARE:FACTOR, a share above 0 up to 1 and a factor from 1 to 1000, for instance 0.5:3`,
    );
  return { share: Number(share), factor: Number(factor) };
}
