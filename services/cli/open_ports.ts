/** Ports beyond this machine, which need a cluster token. */
import { takenTokens } from '../../shared/base/cluster_tokens.ts';
import { ConfigError, isLoopback, withoutAccounts } from '../../shared/base/options.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import { MAKE_TOKEN, MIN_TOKEN } from './token_file.ts';

/**
 * Checks that a process without a cluster token, or with a short one, neither listens beyond this machine nor uses a bus server beyond it. @throws
 * ConfigError otherwise.
 */
export function refuseOpenPorts(config: ProcessConfig & { readonly hub_bind?: string }): void {
  const { bind, hub_bind: hubBind = '', bus, cluster_token: token } = config;
  const open = [bind, hubBind].find((address) => address !== '' && !isLoopback(address));
  const set = `set PENSTOCK_CLUSTER_TOKEN or --cluster-token-file, the same for every process, to a token that ${MAKE_TOKEN} makes`;
  const short = takenTokens(token).some(({ length }) => length < MIN_TOKEN);
  if (!short) return;
  const lack =
    token === ''
      ? 'without a cluster token'
      : `with a cluster token of fewer than ${MIN_TOKEN} characters, which can be guessed`;
  if (open !== undefined) throw new ConfigError(`refusing to listen on ${open} ${lack}: ${set}`);
  const away = bus.split(',').find((server) => URL.canParse(server) && !isLoopback(new URL(server).host));
  if (away !== undefined) throw new ConfigError(`refusing to use a bus on ${withoutAccounts(away)} ${lack}: ${set}`);
}
