/** `penstock key`: makes a key of a client, shows it once, and the entry of a router's --keys file that takes it. */
import { appendFileSync, statSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { CLIENT_NAME, CLIENT_NAME_TEXT, keyDigest, keyTextOf } from '../../shared/base/client_keys.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { ConfigError } from '../../shared/base/options.ts';

const USAGE = `penstock key NAME --tenant TENANT: makes an API key, and its entry for the file of a router's --keys

  --tenant TENANT    whose blocks, limits and share of the engines requests with the key have
  --admin            the key may use /metrics, /api/* and the dashboard, too
  --model NAME       a model that the key may use; repeated for several; default: all
  --append FILE      append the entry to this file, which only its owner may read, and print the key alone
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
 * Runs the command. `random`: 32 random bytes; `print` gets the text for standard output. @throws ConfigError for arguments that are not
 * allowed, and for a file that cannot be written
 */
export function runKeyCommand(args: readonly string[], random: Buffer, print: (text: string) => void): void {
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
  if (append !== undefined) appendTo(append, yamlOf(entry));
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

function appendTo(file: string, text: string): void {
  try {
    const size = statSync(file, { throwIfNoEntry: false })?.size ?? 0;
    appendFileSync(file, `${size > 0 ? '\n' : ''}${text}`, { mode: 0o600 });
  } catch (error) {
    throw new ConfigError(`--append ${file}: ${messageOf(error)}`);
  }
}
