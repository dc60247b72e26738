/**
 * Configuration: one table of options yields the YAML schema, the environment variables, the flags and the help, so that they always
 * agree. Precedence: flag, environment, file, default. Each service has its own table, but a variable or a key of the file may belong
 * to another service, because a machine has one environment and a cluster one file.
 */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { parseArgs } from 'node:util';
import type * as Yaml from 'yaml';
import { z } from 'zod';
import { messageOf } from './failure.ts';
import { isServiceVariable } from './service_variables.ts';

/** The configuration is refused; the message names the place and what is allowed there. */
export class ConfigError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'ConfigError';
  }
}

const units: Record<string, number> = { '': 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };

/** Bytes: a number, or text such as 512MiB or 2GiB. */
export const bytes = z.preprocess((value) => {
  const match = typeof value === 'string' ? /^(\d+(?:\.\d+)?) ?(KiB|MiB|GiB|TiB|)$/.exec(value) : null;
  return match ? Math.floor(Number(match[1]) * (units[match[2] ?? ''] ?? 1)) : value;
}, z.int('a size in bytes, or with KiB, MiB, GiB or TiB').nonnegative());

/** Returns a schema that also accepts the number as text, as flags and the environment have it. */
export const integer = (schema: z.ZodInt): z.ZodType<number> =>
  z.preprocess((value) => (typeof value === 'string' && /^-?\d+$/.test(value) ? Number(value) : value), schema);

/** A number from 0 to 1; text from a flag or the environment becomes a number. */
export const fraction: z.ZodType<number> = z.preprocess(
  (value) => (typeof value === 'string' && /^\d*\.?\d+$/.test(value) ? Number(value) : value),
  z.number().min(0).max(1),
);

const ADDRESS = 'HOST:PORT, for instance 127.0.0.1:8000';

/** Returns the address in a URL as people copy it, such as http://HOST:PORT/; anything else as it is. */
function ofUrl(value: unknown): unknown {
  const found = /^http:\/\/(?<host>\[[^\]]*\]|[^/:@?#]+)(?::(?<port>\d{1,5}))?\/?$/i.exec(String(value))?.groups;
  return found ? `${found['host'] ?? ''}:${found['port'] ?? '80'}` : value;
}

/** Schema of an address, HOST:PORT, also as a URL without a path. */
export const address = z.preprocess(ofUrl, z.string().regex(/^[^/]+:\d{1,5}$/, ADDRESS));
/** An address, or nothing: the default. */
export const addressOrNone = z.preprocess(ofUrl, z.string().regex(/^([^/]+:\d{1,5})?$/, ADDRESS));
/** An address whose host is 127.0.0.1 unless it is named, or nothing. */
export const localAddress = z.preprocess(
  ofUrl,
  z
    .string()
    .regex(/^((.+:)?\d{1,5})?$/, 'HOST:PORT, or a port of 127.0.0.1, for instance 9400')
    .transform((text) => (/^\d+$/.test(text) ? `127.0.0.1:${text}` : text)),
);
/** Returns the schema of an integer in [1, max]; text from a flag or the environment becomes a number. */
export const positive = (max: number): z.ZodType<number> => integer(z.int().min(1).max(max));

/** Schema of an option whose flag has no value; the environment and the file have `true` or `false`. */
export const onOrOff = z.preprocess(
  (value) => (value === 'true' || value === '1' ? true : value === 'false' || value === '0' ? false : value),
  z.boolean('true or false'),
);

/** One option of a service: its schema, its default, and how the help shows it. */
export interface Option<T> {
  readonly schema: z.ZodType<T>;
  readonly default: T;
  readonly help: string;
  /** How a flag's value is shown in the help. */
  readonly value: string;
  /** Whether the value is a path on this machine, so that the help leaves out the default. */
  readonly isPath: boolean;
  /** Whether the flag may be repeated: its values form a list, joined by commas. */
  readonly isList: boolean;
  /** Whether the value is a secret, which no message and no list of options shows. */
  readonly isSecret: boolean;
  /** Heading under which the help lists the option. */
  readonly group: string;
}

/** Returns an option. With an empty `value` the flag has no value: its presence means true. */
export function option<T>(
  group: string,
  value: string,
  schema: z.ZodType<T>,
  fallback: T,
  help: string,
  { isPath = false, isList = false, isSecret = false } = {},
): Option<T> {
  return { group, value, schema, default: fallback, help, isPath, isList, isSecret };
}

/** Options by name, spelt as in the configuration file (`block_size`). */
export type OptionTable = Readonly<Record<string, Option<never> | Option<string> | Option<number> | Option<boolean>>>;

/** The values of a table. */
export type ConfigOf<Table extends OptionTable> = {
  readonly [K in keyof Table]: Table[K] extends Option<infer T> ? T : never;
};

function flagOf(name: string): string {
  return `--${name.replaceAll('_', '-')}`;
}

/** Returns the option's name for a flag without its leading dashes: `block-size` becomes `block_size`. */
function nameOf(flag: string): string {
  return flag.replaceAll('-', '_');
}

const PREFIX = 'PENSTOCK_';

/** Returns the environment variable that sets the option `name`, for instance PENSTOCK_BLOCK_SIZE. */
export function environmentOf(name: string): string {
  return `${PREFIX}${name.toUpperCase()}`;
}

/** The environment without the variables of these names. */
function withoutVariables(
  environment: Readonly<Record<string, string | undefined>>,
  names: readonly string[],
): Record<string, string | undefined> {
  return Object.fromEntries(Object.entries(environment).filter(([name]) => !names.includes(name)));
}

/** Values of flags as they were on the command line, unchecked, by the names of their options. */
type Flags = Readonly<Record<string, string | boolean>>;

/** A command line that was read: the resulting configuration, and which values came from flags. */
export interface CommandLine<Table extends OptionTable> {
  readonly config: ConfigOf<Table>;
  /** Names of the options that a flag, the environment or the file has set. */
  readonly isSet: ReadonlySet<string>;
  /** Values of the flags, unchecked, by option name; without --config, --json and --help. */
  readonly flags: Flags;
  /** Path from the flag `--config`; undefined when that flag is absent, even if PENSTOCK_CONFIG names a file. */
  readonly file: string | undefined;
  /** Variables that Kubernetes made for a Service whose name begins with `penstock`: they are no options, and were not read. */
  readonly serviceVariables: readonly string[];
  readonly isJson: boolean;
  readonly isHelp: boolean;
}

/** The command that reads its options, for messages, and the option tables of all services by service name. */
export interface Reader {
  readonly command: string;
  readonly tables: Readonly<Record<string, OptionTable>>;
}

/** @throws ConfigError for an unknown flag, key or variable, a flag that means nothing here, or a value that is not allowed. */
export function readCommandLine<Table extends OptionTable>(
  table: Table,
  { command, tables }: Reader,
  args: readonly string[],
  allVariables: Readonly<Record<string, string | undefined>>,
): CommandLine<Table> {
  const serviceVariables = Object.keys(allVariables).filter(
    (name) => name.startsWith(PREFIX) && isServiceVariable(name, allVariables[name] ?? ''),
  );
  const environment = withoutVariables(allVariables, serviceVariables);
  const known = new Set(Object.values(tables).flatMap((one) => Object.keys(one)));
  refuseForeignFlags(table, command, tables, args);
  const { config, json, help, ...flags } = readFlags(table, args);
  const file = (config as string | undefined) ?? environment['PENSTOCK_CONFIG'];
  const fromFile = file === undefined ? {} : readFile(file, known);
  const values: Record<string, unknown> = {};
  const isSet = new Set<string>();
  for (const [name, one] of Object.entries(table)) {
    const [value, where] = pick(name, flags, environment, fromFile, file);
    const isRead = value !== undefined && (flags[name] !== undefined || !isOfAnother(tables, name, one, value));
    if (isRead) isSet.add(name);
    values[name] = isRead ? check(one, value, where) : one.default;
  }
  refuseUnknownVariables(known, environment);
  return {
    config: values as ConfigOf<Table>,
    isSet,
    flags,
    file: config as string | undefined,
    serviceVariables,
    isJson: json === true,
    isHelp: help === true,
  };
}

/** Returns the flags that belong to `table` as arguments for a child process. */
export function flagsFor(table: OptionTable, flags: Flags): readonly string[] {
  return (
    Object.entries(flags)
      .filter(([name]) => Object.hasOwn(table, name))
      // Flag and value are one argument, because a value may begin with a dash.
      .map(([name, value]) => (value === true ? flagOf(name) : `${flagOf(name)}=${String(value)}`))
  );
}

function refuseForeignFlags(
  table: OptionTable,
  command: string,
  tables: Reader['tables'],
  args: readonly string[],
): void {
  for (const arg of args) {
    const flag = /^--([a-z][a-z-]*)/.exec(arg)?.[1];
    const name = flag === undefined ? undefined : nameOf(flag);
    if (name === undefined || Object.hasOwn(table, name)) continue;
    const owners = Object.keys(tables).filter((owner) => Object.hasOwn(tables[owner] ?? {}, name));
    if (owners.length > 0)
      throw new ConfigError(`${flagOf(name)} means nothing to \`${command}\`: it is an option of ${owners.join(', ')}`);
  }
}

function readFlags(table: OptionTable, args: readonly string[]): Flags {
  const typeOf = ({ value }: OptionTable[string]): 'boolean' | 'string' => (value === '' ? 'boolean' : 'string');
  try {
    const { values } = parseArgs({
      args: [...args],
      options: {
        ...Object.fromEntries(
          Object.entries(table).map(([name, one]) => [
            flagOf(name).slice(2),
            { type: typeOf(one), multiple: one.isList },
          ]),
        ),
        config: { type: 'string' as const },
        json: { type: 'boolean' as const },
        help: { type: 'boolean' as const, short: 'h' },
      },
      strict: true,
      allowPositionals: false,
    });
    return Object.fromEntries(
      Object.entries(values).map(([flag, value]) => [nameOf(flag), Array.isArray(value) ? value.join(',') : value]),
    );
  } catch (error) {
    throw new ConfigError(`${messageOf(error)}\nSee \`penstock --help\` for all options.`);
  }
}

function readFile(path: string, known: ReadonlySet<string>): Record<string, unknown> {
  let parsed: unknown;
  try {
    // Loaded only when there is a file: every process starts with this module.
    const { parse } = createRequire(import.meta.url)('yaml') as typeof Yaml;
    parsed = parse(readFileSync(path, 'utf8')) ?? {};
  } catch (error) {
    throw new ConfigError(`cannot read the configuration file ${path}: ${messageOf(error)}`);
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    throw new ConfigError(`${path}: expected keys and values, for instance \`block_size: 32\``);
  }
  for (const key of Object.keys(parsed)) {
    if (!known.has(key)) throw new ConfigError(`${path}: ${key}: unknown key; allowed are ${[...known].join(', ')}`);
  }
  return parsed as Record<string, unknown>;
}

function pick(
  name: string,
  flags: Flags,
  environment: Readonly<Record<string, string | undefined>>,
  fromFile: Readonly<Record<string, unknown>>,
  file: string | undefined,
): [value: unknown, where: string] {
  if (flags[name] !== undefined) return [flags[name], flagOf(name)];
  const variable = environmentOf(name);
  if (environment[variable] !== undefined) return [environment[variable], variable];
  return [fromFile[name] ?? undefined, `${file ?? 'the file'}: ${name}`];
}

/**
 * Whether a variable or a key of the file sets the option of this name of another command, which has other values: `router` is a number for `up`, and
 * an address for `policy`.
 */
function isOfAnother(tables: Reader['tables'], name: string, own: OptionTable[string], value: unknown): boolean {
  const takes = ({ schema }: OptionTable[string]): boolean => schema.safeParse(value).success;
  const others = Object.values(tables).flatMap((table) => table[name] ?? []);
  return !takes(own) && others.some((one) => one !== own && takes(one));
}

/** Returns a text without the users, passwords and tokens of the URLs in it. */
export function withoutAccounts(text: string): string {
  return text.replaceAll(/\/\/[^/\s]*@/g, '//');
}

function check({ schema, help, isSecret }: OptionTable[string], value: unknown, where: string): unknown {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const allowed = result.error.issues.map(({ message }) => message).join('; ');
  // A secret with a flaw is a secret still.
  const shown = isSecret ? 'this value' : withoutAccounts(JSON.stringify(value));
  throw new ConfigError(`${where}: ${shown} is not allowed: ${allowed} (${help})`);
}

/** A misspelt variable would silently do nothing. @throws ConfigError */
function refuseUnknownVariables(
  known: ReadonlySet<string>,
  environment: Readonly<Record<string, string | undefined>>,
): void {
  const variables = new Set([...[...known].map(environmentOf), 'PENSTOCK_CONFIG']);
  const unknown = Object.keys(environment).find((name) => name.startsWith(PREFIX) && !variables.has(name));
  if (unknown) throw new ConfigError(`${unknown}: unknown variable; allowed are ${[...variables].join(', ')}`);
}

/** Returns the help text of a table, at most about 100 columns wide. */
export function optionsHelp(table: OptionTable): string {
  const entries = Object.entries(table);
  const groups = [...new Set(entries.map(([, { group }]) => group))];
  const describe = ([name, { value, help, default: fallback, isPath }]: (typeof entries)[number]): string => {
    const hasDefault = fallback !== '' && value !== '' && !isPath;
    return `  ${`${flagOf(name)} ${value}`.padEnd(30)} ${help}${hasDefault ? ` [${fallback}]` : ''}`;
  };
  return groups
    .map((group) => [`${group}:`, ...entries.filter(([, one]) => one.group === group).map(describe)].join('\n'))
    .join('\n\n');
}

/** Whether the host of a bind address HOST:PORT is a loopback address. */
export function isLoopback(bind: string): boolean {
  const host = bind.slice(0, bind.lastIndexOf(':'));
  return /^127\.|^localhost$|^\[::1\]$/.test(host);
}
