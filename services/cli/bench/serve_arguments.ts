/** The command line of `penstock bench serve`, checked before anything is sent. */
import { parseFlags } from '../../../shared/base/command_flags.ts';
import { ConfigError } from '../../../shared/base/options.ts';
import { TRACE_BLOCK_TOKENS } from '../../../shared/trace/trace.ts';
import { API_KEY_VARIABLE, apiKeyOf } from '../router_api.ts';
import type { ArrivalRate, RampUp } from './arrivals.ts';
import type { GoodputTargets, MetricName } from './figures.ts';
import { apiOf, type Api } from './request_body.ts';
import { goodputOf, metricsOf, percentilesOf } from './serve_figures.ts';
import { datasetKinds, DEFAULTS, kindsOfFlag, repeatable, serveTable, type ServeFlags } from './serve_flags.ts';
import type { RandomLengths } from './workload.ts';

/** Most prompts of a run (P1): each leaves a row of measurements. */
const MAX_REQUESTS = 1_000_000;
/** Most tokens of a prompt or an answer. */
const MAX_TOKENS = 2 ** 24;
const MAX_TURNS = 1_000;
const MAX_CONCURRENCY = 65_536;

/** Where prompts come from. */
type Dataset =
  | {
      readonly kind: 'random' | 'multi-turn';
      readonly lengths: RandomLengths;
      /** Lengths that the command line does not name: they are made to fit the model's context. */
      readonly free: { readonly input: boolean; readonly output: boolean };
    }
  | { readonly kind: 'sharegpt'; readonly path: string; readonly outputTokens: number | undefined }
  | {
      readonly kind: 'mooncake';
      readonly path: string;
      readonly blockTokens: number;
      readonly speed: number | undefined;
    };

/** A checked command line. */
export interface ServeOptions {
  readonly baseUrl: URL;
  readonly backend: string;
  readonly endpoint: string;
  readonly api: Api;
  readonly model: string | undefined;
  readonly apiKey: string | undefined;
  readonly isInsecure: boolean;
  readonly readyTimeoutMs: number;
  readonly dataset: Dataset;
  /** Conversations, most of them of one turn. */
  readonly numConversations: number;
  readonly numTurns: number;
  readonly promptFormat: 'auto' | 'ids' | 'text';
  readonly seed: number;
  readonly rate: ArrivalRate;
  readonly maxConcurrency: number;
  readonly numWarmups: number;
  readonly ignoreEos: boolean;
  readonly temperature: number | undefined;
  readonly extraBody: Readonly<Record<string, unknown>>;
  /** Text before the number of a request; undefined: the time of the run. */
  readonly requestIdPrefix: string | undefined;
  readonly metrics: readonly MetricName[];
  readonly percentiles: readonly number[];
  readonly goodput: GoodputTargets;
  readonly label: string | undefined;
  readonly metadata: Readonly<Record<string, string>>;
  /** File of the JSON; an empty name is made when the run ended; undefined: none. */
  readonly saveTo: { readonly name: string; readonly folder: string } | undefined;
  readonly html: string | undefined;
  readonly isDetailed: boolean;
  readonly progress: 'auto' | 'on' | 'off';
}

/**
 * Reads the arguments after `penstock bench serve`; undefined: its help is wanted. @throws ConfigError for an unknown flag, a value that is
 * not allowed, or flags that exclude each other
 */
export function readServeLine(
  args: readonly string[],
  environment: Readonly<Record<string, string | undefined>>,
): ServeOptions | undefined {
  const { given, words } = parseFlags('bench serve', serveTable, withOptionalValue(args), repeatable);
  if (given.isSet('help')) return undefined;
  const [kind, api, endpoint] = targetOf(given);
  const isGenerated = kind === 'random' || kind === 'multi-turn';
  const numTurns = given.whole('turns', MAX_TURNS) ?? (kind === 'multi-turn' ? DEFAULTS.numTurns : 1);
  if (numTurns > 1 && api !== 'chat')
    throw new ConfigError('conversations of several turns are chats: use --endpoint /v1/chat/completions');
  for (const name of given.names) {
    const kinds = kindsOfFlag(name);
    if (!kinds.includes(kind))
      throw new ConfigError(`--${name} means something with --dataset-name ${kinds.join(' or ')} only, not ${kind}`);
  }
  // Further pairs may follow the first one, as in vLLM.
  const pairs = given.isGiven('metadata') ? words.filter((word) => word.includes('=')) : [];
  const seed = given.whole('seed', 2 ** 32 - 1, 0) ?? 0;
  const numPrompts = given.whole('num-prompts', MAX_REQUESTS);
  const conversations = given.whole('num-conversations', MAX_REQUESTS);
  return {
    baseUrl: urlOf(given),
    backend: given.text('backend') ?? 'openai',
    endpoint,
    api,
    model: given.text('model'),
    apiKey: apiKeyOf(given.text('api-key'), environment, [API_KEY_VARIABLE, 'OPENAI_API_KEY']),
    isInsecure: given.isSet('insecure'),
    readyTimeoutMs: 1_000 * (given.number('ready-check-timeout-sec', 0, 86_400) ?? 0),
    dataset: datasetOf(given, kind),
    numConversations:
      kind === 'multi-turn'
        ? (conversations ?? numPrompts ?? DEFAULTS.numConversations)
        : (numPrompts ?? (kind === 'mooncake' ? MAX_REQUESTS : DEFAULTS.numRequests)),
    numTurns,
    promptFormat: oneOf(given, 'prompt-format', ['auto', 'ids', 'text']),
    seed,
    rate: rateOf(given),
    maxConcurrency: given.whole('max-concurrency', MAX_CONCURRENCY) ?? Infinity,
    numWarmups: given.whole('num-warmups', 100_000, 0) ?? 0,
    ignoreEos: given.isSet('ignore-eos') || isGenerated || kind === 'mooncake',
    temperature: given.number('temperature', 0, 100),
    extraBody: objectOf(given.text('extra-body')),
    requestIdPrefix: given.value('request-id-prefix'),
    metrics: metricsOf(given.text('percentile-metrics')),
    percentiles: percentilesOf(given.text('metric-percentiles') ?? DEFAULTS.percentiles),
    goodput: goodputOf(
      given,
      words.filter((word) => !pairs.includes(word)),
    ),
    label: given.text('label'),
    metadata: metadataOf(given.text('metadata'), pairs),
    saveTo: saveOf(given),
    html: given.text('html'),
    isDetailed: given.isSet('save-detailed'),
    progress: given.isSet('disable-tqdm') ? 'off' : given.isSet('progress') ? 'on' : 'auto',
  };
}

/** `--save-result` may stand alone, as in vLLM, or have a file. */
function withOptionalValue(args: readonly string[]): string[] {
  return args.map((arg, i) => {
    const next = args[i + 1];
    return arg === '--save-result' && (next === undefined || next.startsWith('--')) ? '--save-result=' : arg;
  });
}

function oneOf<T extends string>(
  given: ServeFlags,
  name: Parameters<ServeFlags['text']>[0],
  all: readonly [T, ...T[]],
): T {
  const text = given.text(name) ?? all[0];
  const found = all.find((one) => one === text);
  if (found === undefined)
    throw new ConfigError(`--${name}: ${JSON.stringify(text)} is not allowed: ${all.join(', ')}`);
  return found;
}

function urlOf(given: ServeFlags): URL {
  const [host, port] = [given.text('host'), given.whole('port', 65_535)];
  const base = given.text('base-url');
  if (base !== undefined && (host !== undefined || port !== undefined))
    throw new ConfigError('--base-url names host and port: leave out --host and --port');
  const ofHost = host?.includes(':') === true ? `[${host}]` : (host ?? '127.0.0.1');
  const text = base ?? `http://${ofHost}:${port ?? 8_000}`;
  if (!/^https?:\/\//i.test(text) || !URL.canParse(text))
    throw new ConfigError(`--base-url: ${JSON.stringify(text)} is no URL such as ${DEFAULTS.url}`);
  const url = new URL(text);
  // The path of an endpoint has it; clients of OpenAI's API are given it with the URL.
  url.pathname = url.pathname.replace(/\/v1\/?$/, '');
  return url;
}

function targetOf(given: ServeFlags): [kind: (typeof datasetKinds)[number], api: Api, endpoint: string] {
  const kind = oneOf(given, 'dataset-name', datasetKinds);
  const backend = oneOf(given, 'backend', ['openai', 'vllm', 'openai-chat']);
  const isChat = backend === 'openai-chat' || kind === 'multi-turn' || (given.whole('turns', MAX_TURNS) ?? 1) > 1;
  const endpoint = given.text('endpoint') ?? (isChat ? '/v1/chat/completions' : '/v1/completions');
  const api = endpoint.startsWith('/') ? apiOf(endpoint) : undefined;
  if (api === undefined)
    throw new ConfigError(
      `--endpoint: ${endpoint} is not allowed: a path that ends with /completions or /chat/completions`,
    );
  return [kind, api, endpoint];
}

function datasetOf(given: ServeFlags, kind: (typeof datasetKinds)[number]): Dataset {
  const path = given.text('dataset-path');
  if (kind === 'random' || kind === 'multi-turn') {
    const free = (
      ...names: readonly ('random-input-len' | 'input-len' | 'random-output-len' | 'output-len')[]
    ): boolean => names.every((name) => !given.isGiven(name));
    return {
      kind,
      lengths: lengthsOf(given),
      free: { input: free('random-input-len', 'input-len'), output: free('random-output-len', 'output-len') },
    };
  }
  if (path === undefined) throw new ConfigError(`--dataset-name ${kind} needs its file: --dataset-path FILE`);
  const output = given.whole('sharegpt-output-len', MAX_TOKENS) ?? given.whole('output-len', MAX_TOKENS);
  if (kind === 'sharegpt') return { kind, path, outputTokens: output };
  const hasRate = given.isGiven('request-rate') || given.isGiven('ramp-up-strategy');
  if (hasRate && given.isGiven('trace-speed'))
    throw new ConfigError('--trace-speed keeps the times of the trace, and a rate replaces them: leave one out');
  const speed = hasRate ? undefined : (given.number('trace-speed', 1e-6, 1e6) ?? 1);
  return { kind, path, blockTokens: given.whole('trace-block', 65_536) ?? TRACE_BLOCK_TOKENS, speed };
}

function lengthsOf(given: ServeFlags): RandomLengths {
  const ratio = given.text('random-range-ratio') ?? '0';
  const { input, output } = ratio.startsWith('{') ? ratiosOf(ratio) : { input: Number(ratio), output: Number(ratio) };
  if (!(input >= 0 && input < 1 && output >= 0 && output < 1))
    throw new ConfigError(`--random-range-ratio: ${ratio} is not allowed: from 0 up to, not including, 1`);
  return {
    inputTokens:
      given.whole('random-input-len', MAX_TOKENS) ?? given.whole('input-len', MAX_TOKENS) ?? DEFAULTS.inputTokens,
    outputTokens:
      given.whole('random-output-len', MAX_TOKENS) ?? given.whole('output-len', MAX_TOKENS) ?? DEFAULTS.outputTokens,
    inputRatio: input,
    outputRatio: output,
    prefixTokens: given.whole('random-prefix-len', MAX_TOKENS, 0) ?? 0,
  };
}

function ratiosOf(text: string): { readonly input: number; readonly output: number } {
  const { input = 0, output = 0 } = objectOf(text, 'random-range-ratio');
  return { input: Number(input), output: Number(output) };
}

function rateOf(given: ServeFlags): ArrivalRate {
  const numberOrInf = (name: 'request-rate' | 'burstiness', most: number): number | undefined =>
    given.value(name)?.toLowerCase() === 'inf' ? Infinity : given.number(name, 1e-6, most);
  const ratePerSecond = numberOrInf('request-rate', 1e6) ?? Infinity;
  const burstiness = numberOrInf('burstiness', 1e6) ?? 1;
  const [start, end] = [given.number('ramp-up-start-rps', 1e-6, 1e6), given.number('ramp-up-end-rps', 1e-6, 1e6)];
  if (!given.isGiven('ramp-up-strategy')) {
    if (start !== undefined || end !== undefined)
      throw new ConfigError('name how the rate grows: --ramp-up-strategy linear');
    return { ratePerSecond, burstiness, rampUp: undefined };
  }
  const kind: RampUp['kind'] = oneOf(given, 'ramp-up-strategy', ['linear', 'exponential']);
  if (given.isGiven('request-rate'))
    throw new ConfigError('--ramp-up-strategy sets the rate: leave out --request-rate');
  if (start === undefined || end === undefined || start > end)
    throw new ConfigError(
      '--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps, the first not above the second',
    );
  return { ratePerSecond: Infinity, burstiness, rampUp: { kind, startPerSecond: start, endPerSecond: end } };
}

function objectOf(text: string | undefined, name = 'extra-body'): Readonly<Record<string, unknown>> {
  if (text === undefined) return {};
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // The same message serves.
  }
  throw new ConfigError(`--${name}: ${text} is no JSON object`);
}

/**
 * Reads the pairs of the flag, which were joined by commas, and those after it. A value may have commas; what follows one has no `=` then.
 */
function metadataOf(text: string | undefined, more: readonly string[]): Readonly<Record<string, string>> {
  if (text === undefined) return {};
  const pairs = text.split(/,(?=[^,=]+=)/);
  return Object.fromEntries(
    [...pairs, ...more].map((pair) => {
      const at = pair.indexOf('=');
      if (at < 1) throw new ConfigError(`--metadata: ${JSON.stringify(pair)} is not allowed: KEY=VALUE`);
      return [pair.slice(0, at).trim(), pair.slice(at + 1).trim()];
    }),
  );
}

function saveOf(given: ServeFlags): ServeOptions['saveTo'] {
  const names = [given.value('save-result') || undefined, given.text('result-filename')].filter(
    (one) => one !== undefined,
  );
  if (names.length > 1) throw new ConfigError('--save-result and --result-filename both name the file: leave one out');
  const folder = given.text('result-dir');
  const isWanted = names.length > 0 || folder !== undefined || given.isGiven('save-result');
  return isWanted ? { name: names[0] ?? '', folder: folder ?? '' } : undefined;
}
