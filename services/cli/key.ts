/** `penstock key`: makes a key of a client, shows it once, and the entry of a router's --keys file that takes it. */
import { appendFileSync, readFileSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { parseArgs } from 'node:util';
import type * as Yaml from 'yaml';
import {
  CLIENT_NAME,
  CLIENT_NAME_TEXT,
  keyDigest,
  keyTextOf,
  MAX_KEYS,
  MAX_KEYS_BYTES,
} from '../../shared/base/client_keys.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { ConfigError } from '../../shared/base/options.ts';

const USAGE = `penstock key NAME --tenant TENANT: makes an API key, and its entry for the file of a router's --keys

  --tenant TENANT    whose blocks, limits and share of the engines requests with the key have
  --admin            the key may use /metrics, /api/* and the dashboard, too
  --model NAME       a model that the key may use; repeated for several; default: all
  --append FILE      append the entry to this file, and print the key alone; a new file is for its owner alone
  --json             one line of JSON: {"key", "entry"}

The key is shown once: the file has its SHA-256 only. Routers read the file again within two seconds.
`;

/** An entry of the file, as it is written. */
interface Entry {
  readonly name: string;
  readonly sha256: string;
  readonly tenant: string;
  readonly admin?: true;
  readonly models?: readonly string[];
}

/**
 * Runs the command. `random`: 32 random bytes; `print` gets the text for standard output, `warn` a line for standard error. @throws
 * ConfigError for arguments that are not allowed, and for a file that cannot be written, or that routers would refuse with the entry: it then
 * stays as it is
 */
export function runKeyCommand(
  args: readonly string[],
  random: Buffer,
  print: (text: string) => void,
  warn: (line: string) => void,
): void {
  const { values, positionals } = parsed(args);
  if (values.help === true) {
    print(USAGE);
    return;
  }
  const { tenant, model, append } = values;
  const [name, ...others] = positionals;
  if (name === undefined || others.length > 0 || tenant === undefined)
    throw new ConfigError(`give one name and a tenant: penstock key NAME --tenant TENANT\n\n${USAGE}`);
  for (const [what, text] of [
    ['NAME', name],
    ['--tenant', tenant],
  ] as const)
    if (!CLIENT_NAME.test(text))
      throw new ConfigError(`${what}: ${JSON.stringify(text)} is not allowed: ${CLIENT_NAME_TEXT}`);
  const key = keyTextOf(random);
  const entry: Entry = {
    name,
    sha256: keyDigest(key).toString('hex'),
    tenant,
    ...(values.admin === true ? { admin: true } : {}),
    ...(model ? { models: model } : {}),
  };
  if (append !== undefined) {
    appendTo(append, entry);
    warnOfMode(append, warn);
  }
  if (values.json === true) print(`${JSON.stringify({ key, entry })}\n`);
  else if (append !== undefined) print(`${key}\n`);
  else
    print(
      `# The key, shown once. Its client sends it as \`Authorization: Bearer KEY\` or \`x-api-key: KEY\`.\n${key}\n\n# Its entry in the file of --keys.\n${yamlOf(entry)}`,
    );
}

function parsed(args: readonly string[]): ReturnType<typeof parseKeyArgs> {
  try {
    return parseKeyArgs(args);
  } catch (error) {
    throw new ConfigError(`${messageOf(error)}\n\n${USAGE}`);
  }
}

const options = {
  tenant: { type: 'string' },
  admin: { type: 'boolean' },
  model: { type: 'string', multiple: true },
  append: { type: 'string' },
  json: { type: 'boolean' },
  help: { type: 'boolean', short: 'h' },
} as const;

/** Its flags. */
export const keyFlags = Object.keys(options).map((name) => `--${name}`);

function parseKeyArgs(args: readonly string[]) {
  return parseArgs({ args: [...args], allowPositionals: true, options });
}

/** Returns an entry in YAML. Texts are in JSON's quotes where they need some, which YAML reads too. */
function yamlOf({ name, sha256, tenant, admin, models }: Entry): string {
  const lines = [
    `- name: ${quoted(name)}`,
    `  sha256: ${quoted(sha256)}`,
    `  tenant: ${quoted(tenant)}`,
    ...(admin === true ? ['  admin: true'] : []),
    ...(models ? [`  models: [${models.map((one) => JSON.stringify(one)).join(', ')}]`] : []),
  ];
  return `${lines.join('\n')}\n`;
}

/** Digits, `true` and the like are numbers and booleans without quotes, and a digest may be 64 digits. */
function quoted(text: string): string {
  return /^[A-Za-z][\w.-]*$/.test(text) && !/^(true|false|null|yes|no|on|off|y|n)$/i.test(text)
    ? text
    : JSON.stringify(text);
}

function appendTo(file: string, entry: Entry): void {
  try {
    const found = statSync(file, { throwIfNoEntry: false });
    if (found && found.size > MAX_KEYS_BYTES)
      throw new Error(`it has ${found.size} bytes, and routers read no file of more than ${MAX_KEYS_BYTES}`);
    const text = `${found && found.size > 0 ? '\n' : ''}${yamlOf(entry)}`;
    if (found?.isFile() === true) refuseSpoiled(readFileSync(file, 'utf8'), text, entry.name);
    appendFileSync(file, text, { mode: 0o600 });
  } catch (error) {
    throw new ConfigError(`--append ${file}: ${messageOf(error)}`);
  }
}

/** @throws Error where a file of this text could not be used by routers with the `added` text of an entry, which is then not added */
function refuseSpoiled(text: string, added: string, name: string): void {
  const { parseDocument, isMap, isScalar, isSeq } = createRequire(import.meta.url)('yaml') as typeof Yaml;
  const before = parseDocument(text);
  const [fault] = before.errors;
  if (fault) throw new Error(`it is no YAML: ${fault.message.split('\n', 1)[0] ?? ''} Mend it first`);
  const { contents } = before;
  // Without entries it has nothing, or comments only.
  const isEmpty = contents === null || (isScalar(contents) && contents.value === null);
  if (!isEmpty && !isSeq(contents)) throw new Error('it is no list with an entry for each key, as --keys takes it');
  const items = isSeq(contents) ? contents.items : [];
  if (items.length >= MAX_KEYS) throw new Error(`it has ${items.length} keys, and routers take at most ${MAX_KEYS}`);
  if (items.some((item) => isMap(item) && (item.get('name') as unknown) === name))
    throw new Error(`it has a key of the name ${name} already: give this one another name, or remove that entry first`);
  const after = parseDocument(text + added);
  if (after.errors.length > 0 || !isSeq(after.contents) || after.contents.items.length !== items.length + 1)
    throw new Error(
      'an entry cannot be added at its end: write its entries as lines that begin with `- `, without indentation and brackets, as `penstock key` prints them',
    );
}

/** Warns of a file of keys that others of this machine may use: whoever can write it can add a key. */
function warnOfMode(file: string, warn: (line: string) => void): void {
  const found = statSync(file);
  const mode = found.mode & 0o777;
  if (!found.isFile() || (mode & 0o077) === 0) return;
  const rights = (mode & 0o022) === 0 ? 'read' : 'change';
  warn(
    `others on this machine may ${rights} ${file} (mode ${mode.toString(8).padStart(4, '0')}): chmod 600 it, as the user of the router`,
  );
}
