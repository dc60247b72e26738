/** Ports beyond this machine, which need a cluster token, and at which prompts can be read on the way unless they are encrypted. */
import { takenTokens } from '../../shared/base/cluster_tokens.ts';
import { ConfigError, isLoopback, withoutAccounts } from '../../shared/base/options.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { MAKE_TOKEN, MIN_TOKEN } from './token_file.ts';

type PortConfig = ProcessConfig & { readonly hub_bind?: string; readonly https_cert?: string };

/** Whether an address of a configuration is beyond this machine. */
function isOpen(address: string): boolean {
  return address !== '' && !isLoopback(address);
}

/** Returns the first bus server beyond this machine. */
function busBeyond(bus: string): string | undefined {
  return bus.split(',').find((server) => URL.canParse(server) && !isLoopback(new URL(server).host));
}

/**
 * Returns what a process says at its start of prompts that cross the network in clear, and what to do; undefined where none do. The bus is sealed in
 * any case (ClusterBus); a bus server beyond this machine means that other processes are there too.
 */
export function clearTextWarning(role: Role, config: PortConfig): string | undefined {
  const { bind, hub_bind: hubBind = '', bus, tls_cert: cert, https_cert: clientCert = '' } = config;
  const isClustered = (role === 'router' ? isOpen(hubBind) : isOpen(bind)) || busBeyond(bus) !== undefined;
  const parts = [
    ...(isClustered && cert === ''
      ? [
          'between the processes: give each of them --tls-cert, --tls-key and --tls-ca, or let the network encrypt (WireGuard, a service mesh)',
        ]
      : []),
    ...(role === 'router' && isOpen(bind) && clientCert === ''
      ? [
          `between clients and ${bind}: give the router --https-cert and --https-key, or put a proxy that speaks HTTPS in front of it`,
        ]
      : []),
  ];
  return parts.length === 0 ? undefined : `prompts and answers cross the network in clear ${parts.join('; and ')}`;
}

/**
 * Checks that a process without a cluster token, or with a short one, neither listens beyond this machine nor uses a bus server beyond it. @throws
 * ConfigError otherwise.
 */
export function refuseOpenPorts(config: PortConfig): void {
  const { bind, hub_bind: hubBind = '', bus, cluster_token: token } = config;
  const open = [bind, hubBind].find(isOpen);
  const set = `set PENSTOCK_CLUSTER_TOKEN or --cluster-token-file, the same for every process, to a token that ${MAKE_TOKEN} makes`;
  const short = takenTokens(token).some(({ length }) => length < MIN_TOKEN);
  if (!short) return;
  const lack =
    token === ''
      ? 'without a cluster token'
      : `with a cluster token of fewer than ${MIN_TOKEN} characters, which can be guessed`;
  if (open !== undefined) throw new ConfigError(`refusing to listen on ${open} ${lack}: ${set}`);
  const away = busBeyond(bus);
  if (away !== undefined) throw new ConfigError(`refusing to use a bus on ${withoutAccounts(away)} ${lack}: ${set}`);
}
