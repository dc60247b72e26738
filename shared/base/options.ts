/**
 * The configuration: one table that yields the YAML schema, the environment, the flags and the help, so that no two of them
 * can disagree. Precedence: flag, environment, file, default.
 */
import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { parse as parseYaml } from 'yaml';
import { z } from 'zod';
import { messageOf } from './failure.ts';
import { logLevels } from './log.ts';

/** The configuration is refused; the message names the place and what is allowed there. */
export class ConfigError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'ConfigError';
  }
}

const units: Record<string, number> = { '': 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };

/** Bytes: a number, or text such as 512MiB or 2GiB. */
const bytes = z.preprocess((value) => {
  const match = typeof value === 'string' ? /^(\d+(?:\.\d+)?) ?(KiB|MiB|GiB|TiB|)$/.exec(value) : null;
  return match ? Math.floor(Number(match[1]) * (units[match[2] ?? ''] ?? 1)) : value;
}, z.int('a size in bytes, or with KiB, MiB, GiB or TiB').nonnegative());

/** Text from a flag or the environment becomes the number it spells. */
const integer = (schema: z.ZodInt): z.ZodType<number> =>
  z.preprocess((value) => (typeof value === 'string' && /^-?\d+$/.test(value) ? Number(value) : value), schema);

const address = z.string().regex(/^.+:\d{1,5}$/, 'HOST:PORT, for instance 127.0.0.1:8000');
const count = (): z.ZodType<number> => integer(z.int().min(0).max(256));
const positive = (max: number): z.ZodType<number> => integer(z.int().min(1).max(max));

/** A flag without a value; `true` and `false` in the environment and the file. */
const onOrOff = z.preprocess(
  (value) => (value === 'true' || value === '1' ? true : value === 'false' || value === '0' ? false : value),
  z.boolean('true or false'),
);

interface Option<T> {
  readonly schema: z.ZodType<T>;
  readonly default: T;
  readonly help: string;
  /** How a flag's value is shown in the help. */
  readonly value: string;
  readonly group: 'Model and engine' | 'Budgets' | 'Network' | 'Router' | 'Local cluster (up)' | 'Process';
}

function option<T>(
  group: Option<T>['group'],
  value: string,
  schema: z.ZodType<T>,
  fallback: T,
  help: string,
): Option<T> {
  return { group, value, schema, default: fallback, help };
}

const defaultModel = fileURLToPath(new URL('../../../config/models/harbour', import.meta.url));
const defaultData = join(process.env['XDG_DATA_HOME'] ?? join(homedir(), '.local', 'share'), 'penstock');

const options = {
  model: option(
    'Model and engine',
    'DIR',
    z.string().min(1),
    defaultModel,
    'Hugging Face folder: config.json, model.safetensors, tokenizer.json',
  ),
  served_model_name: option('Model and engine', 'NAME', z.string(), '', "name in the API; default: the folder's"),
  device: option(
    'Model and engine',
    'NAME',
    z.string().min(1),
    'auto',
    'what computes: auto, wasm, webgpu, webgpu:INDEX, webgpu:PART_OF_NAME; `penstock devices` lists them',
  ),
  kernel_set: option(
    'Model and engine',
    'SET',
    z.enum(['deterministic', 'fast']),
    'deterministic',
    'webgpu kernels: deterministic (same bits whatever the batch and the failures) or fast',
  ),
  weights: option(
    'Model and engine',
    'FORMAT',
    z.enum(['auto', 'f32', 'f16', 'int8', 'int4']),
    'auto',
    'format of weights: f32, f16, int8, int4; auto: f16 on webgpu, int8 on wasm; one value per cluster',
  ),
  device_memory: option(
    'Budgets',
    'SIZE',
    bytes,
    0,
    'memory of a webgpu device that an engine uses, weights included; 0: what there is, less a tenth',
  ),
  device_sharing: option(
    'Budgets',
    'N',
    positive(256),
    1,
    'engines that divide what a webgpu device has; `up` sets it',
  ),
  kv_dtype: option(
    'Model and engine',
    'TYPE',
    z.enum(['f16', 'f32']),
    'f16',
    'type of KV blocks: f16, or f32 for exact tests',
  ),
  mix_numerics: option(
    'Model and engine',
    '',
    onOrOff,
    false,
    'engines whose numerics differ share KV blocks; output is then equal within a tolerance only. `up` sets it for two kinds',
  ),
  block_size: option(
    'Model and engine',
    'N',
    integer(z.int().min(4).max(1024).multipleOf(4)),
    32,
    'tokens per KV block, a multiple of 4; one value per cluster',
  ),
  threads: option(
    'Model and engine',
    'N',
    integer(z.int().min(0).max(256)),
    0,
    'threads per engine; 0: the cores, divided among local engines by `up`',
  ),
  kv_blocks: option(
    'Budgets',
    'N',
    integer(
      z
        .int()
        .min(0)
        .max(2 ** 24),
    ),
    0,
    'blocks in the device; 0: on wasm what 512 MiB hold, on webgpu what is left after the weights',
  ),
  dram_bytes: option(
    'Budgets',
    'SIZE',
    bytes,
    256 * 2 ** 20,
    'host memory for records: outbox of an instance, DRAM tier of a store',
  ),
  disk_bytes: option('Budgets', 'SIZE', bytes, 4 * 2 ** 30, "a store's LMDB tier; 0: none"),
  max_model_len: option(
    'Budgets',
    'N',
    integer(z.int().min(0)),
    0,
    'longest prompt and output together; 0: what the model has',
  ),
  max_num_seqs: option('Budgets', 'N', positive(1024), 64, 'sequences an engine runs at once'),
  max_waiting: option(
    'Budgets',
    'N',
    positive(2 ** 20),
    1024,
    'sequences that wait for an engine; more are refused with 503',
  ),
  // A GPU's grid has at most 65,535 workgroups in a dimension.
  chunk_tokens: option('Budgets', 'N', positive(65_535), 512, 'tokens an engine computes in one step'),
  data_dir: option(
    'Process',
    'DIR',
    z.string().min(1),
    defaultData,
    'where a store keeps its LMDB environment, in a folder of its name',
  ),
  bind: option(
    'Network',
    'HOST:PORT',
    z.union([address, z.literal('')]),
    '',
    'where to listen; default 127.0.0.1, port 8000 for the router, picked by the system for others',
  ),
  advertise: option(
    'Network',
    'HOST:PORT',
    z.union([address, z.literal('')]),
    '',
    'address that others reach this process at; default: the bound one',
  ),
  join: option('Network', 'HOST:PORT', address, '127.0.0.1:8001', "the router's hub"),
  hub_bind: option(
    'Router',
    'HOST:PORT',
    address,
    '127.0.0.1:8001',
    'where the router serves the hub that others join',
  ),
  cluster_token: option(
    'Network',
    'TOKEN',
    z.string().regex(/^[\x21-\x7e]*$/, 'printable ASCII without spaces'),
    '',
    'secret that all processes of a cluster share; better in the environment than in a flag',
  ),
  local_prefill_tokens: option(
    'Router',
    'N',
    integer(z.int().min(0)),
    256,
    'up to so many tokens to compute go straight to decode, without a prefill instance',
  ),
  max_requests: option('Router', 'N', positive(2 ** 16), 1024, 'requests in flight; more are refused with 503'),
  max_connections: option('Router', 'N', positive(2 ** 20), 16_384, 'open HTTP connections; more are closed'),
  request_timeout_ms: option(
    'Router',
    'MS',
    positive(86_400_000),
    600_000,
    'a request that takes longer ends with an error',
  ),
  max_body_bytes: option(
    'Router',
    'SIZE',
    bytes,
    0,
    "a larger request body is refused; 0: 32 bytes per token of the model's context, at least 4 MiB",
  ),
  body_timeout_ms: option('Router', 'MS', positive(3_600_000), 30_000, 'a request that arrives more slowly is ended'),
  stalled_reader_ms: option(
    'Router',
    'MS',
    positive(86_400_000),
    60_000,
    'a client that reads nothing of its stream for this long is ended',
  ),
  strict_parameters: option(
    'Router',
    '',
    onOrOff,
    false,
    'refuse request keys that no documentation knows, instead of naming them in x-penstock-ignored',
  ),
  silence_ms: option('Router', 'MS', positive(600_000), 3_000, 'an instance silent for this long is lost'),
  prefill: option('Local cluster (up)', 'N', count(), 1, 'prefill instances'),
  decode: option('Local cluster (up)', 'N', integer(z.int().min(1).max(256)), 1, 'decode instances'),
  store: option('Local cluster (up)', 'N', count(), 1, 'stores'),
  prefill_device: option(
    'Local cluster (up)',
    'NAME',
    z.string(),
    '',
    "the prefill instances' device; default: --device",
  ),
  decode_device: option(
    'Local cluster (up)',
    'NAME',
    z.string(),
    '',
    "the decode instances' device; default: --device",
  ),
  name: option(
    'Process',
    'NAME',
    z.string().regex(/^[A-Za-z0-9._:@-]*$/, 'letters, digits and . _ : @ -'),
    '',
    'name in the dashboard; default: role@address',
  ),
  drain_timeout_ms: option(
    'Process',
    'MS',
    positive(3_600_000),
    30_000,
    'after SIGTERM, running requests get this long',
  ),
  lose_device_after_steps: option(
    'Process',
    'N',
    integer(z.int().min(0)),
    0,
    'for drills: the device is lost after so many steps, as a driver reset would; 0: never',
  ),
  hang_after_steps: option(
    'Process',
    'N',
    integer(z.int().min(0)),
    0,
    'for drills: the engine hangs after so many steps, as a stuck driver would; 0: never',
  ),
  step_timeout_ms: option(
    'Process',
    'MS',
    positive(86_400_000),
    120_000,
    'an engine step that takes longer is a device that hangs: the instance ends',
  ),
  log_level: option('Process', 'LEVEL', z.enum(logLevels), 'info', `one of ${logLevels.join(', ')}`),
} as const satisfies Record<string, Option<never> | Option<string> | Option<number> | Option<boolean>>;

type OptionName = keyof typeof options;
export type Config = { readonly [K in OptionName]: (typeof options)[K] extends Option<infer T> ? T : never };

const names = Object.keys(options) as OptionName[];

function flagOf(name: string): string {
  return `--${name.replaceAll('_', '-')}`;
}

export function environmentOf(name: string): string {
  return `PENSTOCK_${name.toUpperCase()}`;
}

export interface CommandLine {
  readonly config: Config;
  /** The options that were set other than by default, by name. */
  readonly isSet: ReadonlySet<string>;
  readonly isJson: boolean;
  readonly isHelp: boolean;
}

/** @throws ConfigError for an unknown flag, key or variable, or a value that is not allowed. */
export function readCommandLine(
  args: readonly string[],
  environment: Readonly<Record<string, string | undefined>>,
): CommandLine {
  const flags = readFlags(args);
  const file = flags['config'] ?? environment['PENSTOCK_CONFIG'];
  const fromFile = typeof file === 'string' ? readFile(file) : {};
  const values: Record<string, unknown> = {};
  const isSet = new Set<string>();
  for (const name of names) {
    const [value, where] = pick(name, flags, environment, fromFile, file);
    if (value !== undefined) isSet.add(name);
    values[name] = value === undefined ? options[name].default : check(name, value, where);
  }
  refuseUnknownVariables(environment);
  return { config: values as unknown as Config, isSet, isJson: flags['json'] === true, isHelp: flags['help'] === true };
}

function readFlags(args: readonly string[]): Record<string, string | boolean | undefined> {
  const typeOf = (name: OptionName): 'boolean' | 'string' => (options[name].value === '' ? 'boolean' : 'string');
  try {
    const { values } = parseArgs({
      args: [...args],
      options: {
        ...Object.fromEntries(names.map((name) => [flagOf(name).slice(2), { type: typeOf(name) }])),
        config: { type: 'string' as const },
        json: { type: 'boolean' as const },
        help: { type: 'boolean' as const, short: 'h' },
      },
      strict: true,
      allowPositionals: false,
    });
    return values;
  } catch (error) {
    throw new ConfigError(`${messageOf(error)}\nSee \`penstock --help\` for what there is.`);
  }
}

function readFile(path: string): Record<string, unknown> {
  let parsed: unknown;
  try {
    parsed = parseYaml(readFileSync(path, 'utf8')) ?? {};
  } catch (error) {
    throw new ConfigError(`cannot read the configuration file ${path}: ${messageOf(error)}`);
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    throw new ConfigError(`${path}: expected keys and values, for instance \`block_size: 32\``);
  }
  for (const key of Object.keys(parsed)) {
    if (!Object.hasOwn(options, key))
      throw new ConfigError(`${path}: ${key}: unknown key; allowed are ${names.join(', ')}`);
  }
  return parsed as Record<string, unknown>;
}

function pick(
  name: OptionName,
  flags: Record<string, unknown>,
  environment: Readonly<Record<string, string | undefined>>,
  fromFile: Record<string, unknown>,
  file: unknown,
): [value: unknown, where: string] {
  const flag = flagOf(name);
  if (flags[flag.slice(2)] !== undefined) return [flags[flag.slice(2)], flag];
  const variable = environmentOf(name);
  if (environment[variable] !== undefined) return [environment[variable], variable];
  return [fromFile[name] ?? undefined, `${String(file)}: ${name}`];
}

function check(name: OptionName, value: unknown, where: string): unknown {
  const result = options[name].schema.safeParse(value);
  if (result.success) return result.data;
  const allowed = result.error.issues.map(({ message }) => message).join('; ');
  throw new ConfigError(`${where}: ${JSON.stringify(value)} is not allowed: ${allowed} (${options[name].help})`);
}

/** A misspelt variable would silently do nothing. */
function refuseUnknownVariables(environment: Readonly<Record<string, string | undefined>>): void {
  const known = new Set([...names.map(environmentOf), 'PENSTOCK_CONFIG']);
  const unknown = Object.keys(environment).find((name) => name.startsWith('PENSTOCK_') && !known.has(name));
  if (unknown) throw new ConfigError(`${unknown}: unknown variable; allowed are ${[...known].join(', ')}`);
}

const ENGINE_OPTIONS: readonly OptionName[] = [
  ...names.filter((name) => options[name].group === 'Model and engine' && name !== 'served_model_name'),
  ...names.filter((name) => options[name].group === 'Budgets' && name !== 'disk_bytes'),
  ...(['bind', 'advertise', 'join', 'cluster_token', 'name', 'drain_timeout_ms', 'step_timeout_ms'] as const),
  ...(['lose_device_after_steps', 'hang_after_steps', 'log_level'] as const),
];

/** What means something to a role; `up` and `config` know all. */
const ofRole: Readonly<Record<string, readonly OptionName[]>> = {
  router: [
    ...(['model', 'served_model_name', 'max_model_len', 'bind', 'advertise', 'cluster_token'] as const),
    ...names.filter((name) => options[name].group === 'Router'),
    ...(['name', 'drain_timeout_ms', 'log_level'] as const),
  ],
  prefill: ENGINE_OPTIONS,
  decode: ENGINE_OPTIONS,
  store: [
    ...(['dram_bytes', 'disk_bytes', 'bind', 'advertise', 'join', 'cluster_token'] as const),
    ...(['data_dir', 'name', 'drain_timeout_ms', 'log_level'] as const),
  ],
};

/** The options as text for a person, 100 columns; those of one role, or all. */
export function optionsHelp(role?: string): string {
  const shownNames = names.filter((name) => role === undefined || (ofRole[role] ?? names).includes(name));
  const groups = [...new Set(shownNames.map((name) => options[name].group))];
  const describe = (name: OptionName): string => {
    const { value, help, default: fallback } = options[name];
    const hasDefault = fallback !== '' && value !== '' && name !== 'model' && name !== 'data_dir';
    return `  ${`${flagOf(name)} ${value}`.padEnd(30)} ${help}${hasDefault ? ` [${fallback}]` : ''}`;
  };
  const ofGroup = (group: string): OptionName[] => shownNames.filter((name) => options[name].group === group);
  return groups.map((group) => [`${group}:`, ...ofGroup(group).map(describe)].join('\n')).join('\n\n');
}

/** `''` or HOST: loopback or not. */
export function isLoopback(bind: string): boolean {
  const host = bind.slice(0, bind.lastIndexOf(':'));
  return /^127\.|^localhost$|^\[::1\]$/.test(host);
}
