/** Flags of `penstock bench serve`: those of `vllm bench serve` by the same names. */
import { flag, flagHelp, type GivenFlags } from '../../../shared/base/command_flags.ts';

/** Values that hold without their flag. */
export const DEFAULTS = {
  url: 'http://127.0.0.1:8000',
  numRequests: 1_000,
  numConversations: 100,
  numTurns: 4,
  inputTokens: 1_024,
  outputTokens: 128,
  metrics: 'ttft,tpot,itl,e2el',
  percentiles: '90,99',
};

/** Datasets by name. */
export const datasetKinds = ['random', 'sharegpt', 'mooncake', 'multi-turn'] as const;

const target = {
  'base-url': flag('URL', `server, without the path of --endpoint [${DEFAULTS.url}]`),
  host: flag('HOST', 'server, in place of --base-url'),
  port: flag('PORT', 'its port'),
  backend: flag('NAME', 'openai, vllm (completions) or openai-chat (chats): the default of --endpoint [openai]'),
  endpoint: flag('PATH', '/v1/completions or /v1/chat/completions'),
  model: flag('NAME', 'model [the first of /v1/models]'),
  'api-key': flag('KEY', 'key of the server [the variable PENSTOCK_API_KEY, else OPENAI_API_KEY]'),
  insecure: flag('', 'certificates of an https server are not checked'),
  'ready-check-timeout-sec': flag('S', 'waits so long for the server to answer [0]'),
};

const dataset = {
  'dataset-name': flag('NAME', `${datasetKinds.join(', ')} [random]`),
  'dataset-path': flag('FILE', 'sharegpt: a JSON file of conversations; mooncake: a trace, JSON lines'),
  'num-prompts': flag('N', `prompts; of a trace its first ones [${DEFAULTS.numRequests}]`),
  'input-len': flag('N', 'the same as --random-input-len'),
  'output-len': flag('N', 'the same as --random-output-len and --sharegpt-output-len'),
  'random-input-len': flag('N', `tokens of a prompt [${DEFAULTS.inputTokens}]`),
  'random-output-len': flag('N', `tokens of an answer [${DEFAULTS.outputTokens}]`),
  'random-range-ratio': flag('R', 'lengths from 1 - R to 1 + R of those, or JSON: {"input": R, "output": R} [0]'),
  'random-prefix-len': flag('N', 'tokens of a prefix that all prompts share, before their own [0]'),
  'sharegpt-output-len': flag('N', 'tokens of an answer, in place of the file’s'),
  'trace-speed': flag('X', 'mooncake: the trace runs X times faster [1]'),
  'trace-block': flag('TOKENS', 'mooncake: tokens of a block id [512]'),
  'num-conversations': flag('N', `multi-turn: conversations [${DEFAULTS.numConversations}]`),
  turns: flag('N', `multi-turn: turns of each [${DEFAULTS.numTurns}]; sharegpt: most of the file’s own turns [1]`),
  'prompt-format': flag('auto|ids|text', 'completions: token ids where the server takes them, or text [auto]'),
  seed: flag('N', 'equal seeds lead to equal prompts and times of arrival [0]'),
};

const traffic = {
  'request-rate': flag('R', 'requests per second, or inf: all at once [inf; of a trace its own times]'),
  burstiness: flag('B', 'gaps by a gamma distribution: 1 is Poisson, less comes in bursts, inf is even [1]'),
  'max-concurrency': flag('N', 'most requests (conversations) at a time'),
  'ramp-up-strategy': flag('linear|exponential', 'the rate grows over the run, in place of --request-rate'),
  'ramp-up-start-rps': flag('R', 'rate of the first request'),
  'ramp-up-end-rps': flag('R', 'rate of the last request'),
  'num-warmups': flag('N', 'requests before the run, which do not count [0]'),
  'ignore-eos': flag('', 'answers go on to their wanted length (random, mooncake and multi-turn: always)'),
  temperature: flag('T', 'temperature [the server’s]'),
  'extra-body': flag('JSON', 'further keys of each body; null takes one away'),
  'request-id-prefix': flag('TEXT', 'the header x-request-id is this and a number [bench-TIME-]'),
};

const figures = {
  'percentile-metrics': flag('NAMES', `times to report: some of ${DEFAULTS.metrics} [all]`),
  'metric-percentiles': flag('LIST', `percentiles of each [${DEFAULTS.percentiles}]`),
  goodput: flag('NAME:MS …', 'targets in ms: ttft:200 tpot:50 e2el:5000; requests per second that meet all'),
  'save-result': flag('[FILE]', 'writes the result as JSON, by default to LABEL-RATEqps-MODEL-DATE.json'),
  'result-dir': flag('DIR', 'folder of that file'),
  'result-filename': flag('FILE', 'name of that file'),
  'save-detailed': flag('', 'with the times of every request'),
  html: flag('FILE', 'the result as a page of charts'),
  label: flag('NAME', 'name of this run'),
  metadata: flag('KEY=VALUE', 'a further key of the JSON; may be repeated'),
  'disable-tqdm': flag('', 'no progress'),
  progress: flag('', 'progress on standard error, also when that is no terminal'),
  help: flag('', 'this text'),
};

/** All flags, with their help. */
export const serveTable = { ...target, ...dataset, ...traffic, ...figures };

const [ofGenerated, ofFiles] = [
  ['random', 'multi-turn'],
  ['sharegpt', 'mooncake'],
] as const;
const kindsByFlag: { readonly [Name in keyof typeof dataset]?: readonly (typeof datasetKinds)[number][] } = {
  'dataset-path': ofFiles,
  'input-len': ofGenerated,
  'output-len': [...ofGenerated, 'sharegpt'],
  'random-input-len': ofGenerated,
  'random-output-len': ofGenerated,
  'random-range-ratio': ofGenerated,
  'random-prefix-len': ofGenerated,
  'sharegpt-output-len': ['sharegpt'],
  'trace-speed': ['mooncake'],
  'trace-block': ['mooncake'],
  'num-conversations': ['multi-turn'],
  turns: ['multi-turn', 'sharegpt'],
};

/** Returns the datasets with which a flag means something. */
export function kindsOfFlag(name: keyof typeof serveTable): readonly (typeof datasetKinds)[number][] {
  return (kindsByFlag as Readonly<Record<string, readonly (typeof datasetKinds)[number][]>>)[name] ?? datasetKinds;
}

/** Flags as they were given. */
export type ServeFlags = GivenFlags<keyof typeof serveTable>;

/** Flags that may be repeated. */
export const repeatable = ['goodput', 'metadata'] as const satisfies readonly (keyof typeof serveTable)[];

/** Flags of the command, each with its dashes. */
export const serveFlags: readonly string[] = Object.keys(serveTable).map((name) => `--${name}`);

/** Returns the help of the command. */
export function serveHelp(): string {
  return `penstock bench serve: load on a running server with OpenAI's API, and what its users would see

Usage: penstock bench serve [options]

Options, figures and the JSON are those of \`vllm bench serve\`. Times are taken when a part of an answer arrives. Ctrl-C
ends the run and shows what was measured. Several results become one page by penstock bench report.

Server:
${flagHelp(target)}

Prompts:
${flagHelp(dataset)}

Traffic:
${flagHelp(traffic)}

Figures:
${flagHelp(figures)}

For instance:
  penstock bench serve --random-input-len 512 --random-output-len 64 --request-rate 4 --num-prompts 200
  penstock bench serve --dataset-name multi-turn --turns 5 --max-concurrency 8 --goodput ttft:500 tpot:50
  penstock bench serve --dataset-name mooncake --dataset-path TRACE.jsonl --trace-speed 2 --save-result run.json
`;
}
