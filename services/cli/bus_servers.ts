/** The NATS servers of --bus, with the account that the other options of the bus name. */
import { systemClock } from '../../shared/base/clock.ts';
import type { Log } from '../../shared/base/log.ts';
import { ConfigError } from '../../shared/base/options.ts';
import type { OpenBus } from '../../shared/bus/bus.ts';
import type { NatsServers } from '../../shared/bus/nats/nats_options.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { busPasswordOf } from './bus_password.ts';
import { textOf } from './option_files.ts';

/**
 * Returns a function that opens the bus of `--bus`; undefined when the option is not set. @throws ConfigError for an invalid URL or an
 * unreadable file.
 */
export async function openBusOf(role: Role, config: ProcessConfig, log: Log): Promise<OpenBus | undefined> {
  if (config.bus === '') return undefined;
  const servers = busServersOf(config);
  servers();
  const name = `penstock ${config.cluster} ${config.name || role}`;
  // Loaded here, since a cluster without NATS need not load its client.
  const { NatsBus } = await import('../../shared/bus/nats/nats_bus.ts');
  return (listener) => new NatsBus({ servers, name, clock: systemClock, log }, listener);
}

/** Connects to one of the servers of `--bus`, and disconnects. @throws ConfigError as {@link openBusOf}; Error when none takes the connection */
export async function reachBus(config: ProcessConfig, name: string): Promise<void> {
  const servers = busServersOf(config)();
  const { reachNats } = await import('../../shared/bus/nats/reach_nats.ts');
  await reachNats(servers, name);
}

/**
 * Returns the function that reads the servers of `--bus`, called at each connection: secrets are renewed in their files. @throws ConfigError for an
 * invalid URL, or two accounts; the function for an unreadable file.
 */
function busServersOf(config: ProcessConfig): () => NatsServers {
  const urls = config.bus.split(',');
  const bad = urls.find((url) => !URL.canParse(url));
  if (bad !== undefined)
    throw new ConfigError('--bus has an entry that is no URL: use nats://HOST:PORT or tls://HOST:PORT');
  refuseTwoAccounts(config, urls);
  /** Returns one field of NatsServers with the text of a file; no field when no file is named. */
  const part = <Key extends string>(key: Key, flag: string, file: string): Partial<Record<Key, string>> =>
    file === '' ? {} : ({ [key]: textOf(flag, file) } as Record<Key, string>);
  return () => ({
    urls,
    user: config.bus_user,
    password: busPasswordOf(config),
    token: config.bus_token,
    ...part('nkeySeed', '--bus-nkey', config.bus_nkey),
    ...part('credentials', '--bus-credentials', config.bus_credentials),
    ...part('ca', '--bus-ca', config.bus_ca),
    ...part('cert', '--bus-cert', config.bus_cert),
    ...part('key', '--bus-key', config.bus_key),
  });
}

/** @throws ConfigError where the options name more than one account at the NATS servers: only one of them could be used. */
function refuseTwoAccounts(config: ProcessConfig, urls: readonly string[]): void {
  const isNamed = urls.some((url) => new URL(url).username !== '');
  const accounts = [
    ...(isNamed ? ['the user or token in --bus'] : []),
    ...(config.bus_user === '' ? [] : ['--bus-user']),
    ...(config.bus_token === '' ? [] : ['--bus-token']),
    ...(config.bus_nkey === '' ? [] : ['--bus-nkey']),
    ...(config.bus_credentials === '' ? [] : ['--bus-credentials']),
  ];
  if (accounts.length > 1)
    throw new ConfigError(`${accounts.join(' and ')} exclude one another: name one account at the NATS servers`);
  const given = config.bus_password_file === '' ? '--bus-password' : '--bus-password-file';
  if ((config.bus_password || config.bus_password_file) !== '' && config.bus_user === '' && !isNamed)
    throw new ConfigError(`${given} needs --bus-user`);
}
