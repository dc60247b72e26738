#!/usr/bin/env node
/** The `penstock` command. */
// Imported first, because the module records the parent of this process when it is loaded.
import './npm_parent.ts';
import {
  ConfigError,
  optionsHelp,
  readCommandLine,
  type CommandLine,
  type OptionTable,
} from '../../shared/base/options.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { beginStart } from '../../shared/base/start_heap.ts';
import { softwareVersion } from '../../shared/base/version.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { doctorOptions } from './doctor/doctor_options.ts';
import { policyOptions, readPolicyLine } from './policy_options.ts';
import { loadStart } from './role_modules.ts';
import { withTokenFile } from './token_file.ts';
import { loadTables, roles, tableOf, type ClusterConfig } from './tables.ts';
import { readTenantLine, tenantOptions } from './tenant_options.ts';
import { topOptions } from './top/top_options.ts';

const HELP = `penstock: large language model serving, prefill and decode on separate machines

Usage: penstock COMMAND [options]

  up        a local cluster: router, prefill, decode and store as separate processes
  router    OpenAI API, placement, dashboard; the hub that the others join
  prefill   turns prompts into KV blocks
  decode    turns KV blocks into tokens
  store     keeps KV blocks in DRAM and on SSD
  devices   lists what can compute here, and what \`auto\` would pick and why
  model     pull ORG/NAME[@REVISION][:FILE.gguf] | list [--json] | remove ORG/NAME: models of a hub, in its cache
  key       NAME --tenant TENANT: an API key of a client, and its entry for --keys; penstock key --help
  replay    TRACE.jsonl [options]: a trace through a simulated cluster; penstock replay --help
  plan      TRACE.jsonl [options]: the cheapest cluster that meets targets with a trace; penstock plan --help
  bench     serve [options]: load on a running server, and its figures | report RUN.json... --html FILE
  policy    [NAME] [--router HOST:PORT] [--json]: shows or sets the placement policy of a running cluster
  tenant    forget NAME [--router HOST:PORT] [--json]: deletes the blocks of a tenant, and its key at stores with --disk-key
  doctor    [--api HOST:PORT|URL] [--router HOST:PORT] [--json]: checks this machine and a running cluster, with a cure per fault
  top       [--api HOST:PORT|URL] [--once] [--json]: a view of a running cluster, each second
  config    prints the effective configuration

Every option is a flag, a variable (--block-size is PENSTOCK_BLOCK_SIZE) and a key of the YAML file
that --config FILE names (block_size). A flag wins over a variable, a variable over the file.

  --config FILE                  YAML file with any of the options below
  --version                      the version of this software
  --json                         up: one line of JSON when ready, nothing else on standard output;
                                 config, devices, policy, tenant, doctor, top: JSON
  -h, --help                     this text
`;

/** First line of `penstock ROLE --help`, by role. */
const roleHelp: Record<string, string> = {
  router: 'penstock router: OpenAI API, placement, dashboard; the hub that the others join',
  prefill: 'penstock prefill: turns prompts into KV blocks',
  decode: 'penstock decode: turns KV blocks into tokens',
  store: 'penstock store: keeps KV blocks in DRAM and on SSD',
};

const EXIT_USAGE = 2;

async function main(): Promise<void> {
  const [command, ...args] = process.argv.slice(2);
  if (command === '--version' || command === 'version') {
    process.stdout.write(`penstock ${softwareVersion}\n`);
    process.exit(0);
  }
  if (command !== undefined && (await ranWithoutTables(command, args))) return;
  if (command === 'up' || roles.some((role) => role === command)) beginStart();
  const tables = await loadTables();
  if (command === undefined || ['help', '--help', '-h'].includes(command)) {
    process.stdout.write(`${HELP}\n${optionsHelp(tableOf('up', tables))}\n`);
    process.exit(command === undefined ? EXIT_USAGE : 0);
  }
  if (![...roles, 'up', 'devices', 'config', 'policy', 'tenant', 'doctor', 'top'].includes(command)) {
    throw new ConfigError(`there is no command ${JSON.stringify(command)}; see \`penstock --help\``);
  }
  const doctor = doctorOptions(tables);
  const owners = {
    ...tables,
    up: tableOf('up', tables),
    policy: policyOptions,
    tenant: tenantOptions,
    doctor,
    top: topOptions,
  };
  if (await ranAtCluster(command, args, owners)) return;
  const table = tableOf(command, tables);
  const line = readCommandLine(table, { command, tables: owners }, args, process.env);
  warnOfServiceVariables(line.serviceVariables);
  if (line.isHelp) {
    const head = roleHelp[command];
    const hint = 'Each is a flag, a variable (PENSTOCK_BIND for --bind) and a key of the file of --config FILE (bind).';
    process.stdout.write(`${head ? `${head}\n\n${hint}\n` : HELP}\n${optionsHelp(table)}\n`);
  } else if (command === 'config') {
    const shown = withoutSecrets(line.config, table);
    const { stringify } = await import('yaml');
    process.stdout.write(line.isJson ? `${JSON.stringify(shown)}\n` : stringify(shown));
  } else if (command === 'devices') {
    const { printDevices } = await import('./devices.ts');
    await printDevices(line.isJson);
  } else if (command === 'up') {
    const [{ LocalCluster }, { systemClock }] = await Promise.all([
      import('./local_cluster.ts'),
      import('../../shared/base/clock.ts'),
    ]);
    const own = withTokenFile(line);
    const config = await withModel(own.config as unknown as ClusterConfig);
    // Child processes get the folder of the model, so that only this process asks the hub.
    const flags = { ...line.flags, model: config.model };
    await new LocalCluster({ ...own, flags, config }, tables, systemClock).run();
  } else {
    const role = command as Role;
    const [start, { runRole }] = await Promise.all([loadStart(role), import('./role_process.ts')]);
    await runRole(role, await withModel(await withToken(withTokenFile(line))), start);
  }
}

/** Returns a configuration as it is shown: secrets only as set or not. */
function withoutSecrets(config: Readonly<Record<string, unknown>>, table: OptionTable): Record<string, unknown> {
  const shownOf = (name: string, value: unknown): unknown => {
    if (typeof value !== 'string') return value;
    if (table[name]?.isSecret === true) return value === '' ? '' : '(set)';
    // A name without a password is a token.
    return value.replaceAll(/\/\/([^:,/@]*):[^,]*@/g, '//$1:(set)@').replaceAll(/\/\/[^:,/@]+@/g, '//(set)@');
  };
  return Object.fromEntries(Object.entries(config).map(([name, value]) => [name, shownOf(name, value)]));
}

/** Runs a command that reads its arguments itself. @returns false for any other command */
async function ranWithoutTables(command: string, args: readonly string[]): Promise<boolean> {
  if (command === 'model') {
    const { runModelCommand } = await import('./models.ts');
    const words = args.filter((word) => word !== '--json');
    await runModelCommand(words, words.length < args.length);
  } else if (command === 'key') {
    const [{ runKeyCommand }, { randomBytes }, { KEY_BYTES }] = await Promise.all([
      import('./key.ts'),
      import('node:crypto'),
      import('../../shared/base/client_keys.ts'),
    ]);
    runKeyCommand(
      args,
      randomBytes(KEY_BYTES),
      (text) => process.stdout.write(text),
      (line) => process.stderr.write(`penstock key: ${line}\n`),
    );
  } else if (command === 'replay' || command === 'plan') {
    const { runReplayCommand } = await import('./replay.ts');
    await runReplayCommand(command, args);
  } else if (command === 'bench') {
    const { runBenchCommand } = await import('./bench/bench_command.ts');
    process.exitCode = await runBenchCommand(args);
  } else {
    return false;
  }
  return true;
}

/** Runs a command that looks at a running cluster; `owners` are the option tables of all commands. @returns false for any other command */
async function ranAtCluster(
  command: string,
  args: readonly string[],
  owners: Readonly<Record<'doctor', OptionTable>> & Readonly<Record<string, OptionTable>>,
): Promise<boolean> {
  // Loaded for these commands alone, because they bring the network.
  if (command === 'policy') {
    const { runPolicyCommand } = await import('./policy.ts');
    await runPolicyCommand(withTokenFile(readPolicyLine(args, owners, process.env)));
  } else if (command === 'tenant') {
    const { runTenantCommand } = await import('./tenant.ts');
    process.exitCode = await runTenantCommand(withTokenFile(readTenantLine(args, owners, process.env)));
  } else if (command === 'top') {
    const { runTop } = await import('./top/top_command.ts');
    await runTop(readCommandLine(topOptions, { command, tables: owners }, args, process.env));
  } else if (command === 'doctor') {
    const { runDoctor } = await import('./doctor/doctor_command.ts');
    const { doctor } = owners;
    await runDoctor(withTokenFile(readCommandLine(doctor, { command, tables: owners }, args, process.env)), doctor);
  } else {
    return false;
  }
  return true;
}

/** Returns the configuration of a role, with the token of a cluster of `penstock up` on this machine where it joins one and has none. */
async function withToken({ config, isSet }: CommandLine<OptionTable>): Promise<ProcessConfig> {
  const own = config as unknown as ProcessConfig & { readonly join?: string };
  if (isSet.has('cluster_token') || own.join === undefined || own.bus !== '') return own;
  const { clusterTokens } = await import('./lease_process.ts');
  return { ...own, cluster_token: clusterTokens.find(own.join).token };
}

/** Variables named in one warning; a namespace may have many Services. */
const MAX_NAMED = 8;

/**
 * Warns about variables that Kubernetes set for a Service called penstock, which are not read as options, and removes them from the
 * environment of child processes.
 */
function warnOfServiceVariables(names: readonly string[]): void {
  if (names.length === 0) return;
  const more = names.length > MAX_NAMED ? ` and ${names.length - MAX_NAMED} more` : '';
  process.stderr.write(
    `penstock: not read as options: ${names.slice(0, MAX_NAMED).join(', ')}${more}, which Kubernetes made for a Service called penstock; ` +
      'rename the Service, or set enableServiceLinks: false in the pod\n',
  );
  for (const name of names) Reflect.deleteProperty(process.env, name);
}

/**
 * Returns the configuration with the local path of each model in `model`; the names of hub models are resolved and downloaded. A
 * configuration without `model` is returned as it is.
 */
async function withModel<Config extends object>(config: Config): Promise<Config> {
  if (!('model' in config) || typeof config.model !== 'string') return config;
  const { modelFolder } = await import('./models.ts');
  // One after the other, because two downloads would overwrite each other's progress line.
  const folders: string[] = [];
  for (const name of config.model.split(',')) folders.push(await modelFolder(name));
  return { ...config, model: folders.join(',') };
}

main().catch((error: unknown) => {
  process.stderr.write(`penstock: ${messageOf(error)}\n`);
  process.exit(error instanceof ConfigError ? EXIT_USAGE : 1);
});
