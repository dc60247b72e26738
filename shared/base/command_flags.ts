/** Flags of a command that reads its arguments itself: one table for parsing, checks and help. */
import { parseArgs } from 'node:util';
import { messageOf } from './failure.ts';
import { ConfigError } from './options.ts';

/** A flag: how its value is shown, empty where it has none, and what it does. */
export interface FlagHelp {
  readonly value: string;
  readonly help: string;
}

/** Returns an entry of a table of flags. */
export const flag = (value: string, help: string): FlagHelp => ({ value, help });

/** Returns the table as lines of a help text. */
export function flagHelp(flags: Readonly<Record<string, FlagHelp>>): string {
  const lines = Object.entries(flags).map(([name, { value, help }]) => `  ${`--${name} ${value}`.padEnd(34)} ${help}`);
  return lines.join('\n');
}

/**
 * Reads arguments by a table of flags; those in `repeatable` may be given several times, and are joined by commas. Returns the flags and
 * the other words. @throws ConfigError for an unknown flag, one without its value, or one that is given twice.
 */
export function parseFlags<Name extends string>(
  command: string,
  flags: Readonly<Record<Name, FlagHelp>>,
  args: readonly string[],
  repeatable: readonly NoInfer<Name>[] = [],
): { readonly given: GivenFlags<Name>; readonly words: readonly string[] } {
  const options = Object.fromEntries(
    Object.entries<FlagHelp>(flags).map(([name, { value }]) => [
      name,
      {
        type: value === '' ? ('boolean' as const) : ('string' as const),
        multiple: true,
        ...(name === 'help' ? { short: 'h' } : {}),
      },
    ]),
  );
  try {
    const { values, positionals } = parseArgs({ args: [...args], options, strict: true, allowPositionals: true });
    const given = new Map<Name, string | true>();
    for (const [name, list = []] of Object.entries(values as Record<string, (string | boolean)[] | undefined>)) {
      if (list.length > 1 && !repeatable.includes(name as Name))
        throw new Error(`Option '--${name}' is given ${list.length} times`);
      const [value = ''] = list;
      given.set(name as Name, typeof value === 'string' ? list.join(',') : true);
    }
    return { given: new GivenFlags(flags, given), words: positionals };
  } catch (error) {
    throw new ConfigError(`${faultOf(messageOf(error))}\nSee \`penstock ${command} --help\` for all options.`);
  }
}

/** Returns what Node says of a command line, without its advice, which is for other command lines than these. */
function faultOf(message: string): string {
  const [, name] = /^Option '(?:-\w, )?(--[\w-]+).*' argument is ambiguous/.exec(message) ?? [];
  if (name !== undefined) return `${name} needs a value; one that begins with a dash is written ${name}=VALUE`;
  return message.replace(/ To specify a positional argument .*$/s, '');
}

/** Flags of a command line, checked as they are read. */
export class GivenFlags<Name extends string> {
  readonly #flags: Readonly<Record<Name, FlagHelp>>;
  readonly #given: ReadonlyMap<Name, string | true>;

  constructor(flags: Readonly<Record<Name, FlagHelp>>, given: ReadonlyMap<Name, string | true>) {
    this.#flags = flags;
    this.#given = given;
  }

  /** Names of the flags that are there. */
  get names(): readonly Name[] {
    return [...this.#given.keys()];
  }

  /** Whether a flag without a value is there. */
  isSet(name: Name): boolean {
    return this.#given.get(name) === true;
  }

  /** Whether a flag is there, whatever its value. */
  isGiven(name: Name): boolean {
    return this.#given.has(name);
  }

  /** Returns the value as it was written, which may be empty. */
  value(name: Name): string | undefined {
    const value = this.#given.get(name);
    return value === true ? undefined : value;
  }

  /** Returns a text that is not empty. @throws ConfigError */
  text(name: Name): string | undefined {
    const value = this.value(name);
    if (value === '') throw new ConfigError(`--${name} needs a value: ${this.#flags[name].value}`);
    return value;
  }

  /** Returns a number in [min, max]. @throws ConfigError */
  number(name: Name, min: number, max: number): number | undefined {
    const text = this.text(name);
    if (text === undefined) return undefined;
    const value = /^\d*\.?\d+(e[+-]?\d+)?$/i.test(text) ? Number(text) : NaN;
    if (!(value >= min && value <= max))
      throw new ConfigError(
        `--${name}: ${JSON.stringify(text)} is not allowed: a number from ${min} to ${max} (${this.#flags[name].help})`,
      );
    return value;
  }

  /** Returns an integer in [min, max]. @throws ConfigError */
  whole(name: Name, max: number, min = 1): number | undefined {
    const text = this.text(name);
    if (text === undefined) return undefined;
    const value = /^\d+$/.test(text) ? Number(text) : NaN;
    if (!(value >= min && value <= max))
      throw new ConfigError(
        `--${name}: ${JSON.stringify(text)} is not allowed: a whole number from ${min} to ${max} (${this.#flags[name].help})`,
      );
    return value;
  }
}
