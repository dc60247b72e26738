/** `penstock tenant forget NAME`: has the blocks of a tenant deleted at every engine and store, by a call at one router. */
import { systemClock } from '../../shared/base/clock.ts';
import { asFailure } from '../../shared/base/failure.ts';
import { ConfigError, optionsHelp } from '../../shared/base/options.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { askOnce } from '../../shared/net/network.ts';
import type { ForgetOutcome } from '../../shared/protocol/messages.ts';
import { clusterTokens } from './lease_process.ts';
import { tenantOptions, type TenantLine } from './tenant_options.ts';
import { tlsOf } from './tls_files.ts';

const HELP =
  "penstock tenant forget NAME: deletes the blocks of a tenant, and at stores with --disk-key its key, so that backups without their list of keys cannot be read either. Take the tenant's keys from the routers first, or its next request is kept again";

/** Milliseconds that the router has to answer: it waits for each member. */
const TIMEOUT_MS = 150_000;

/**
 * Runs `penstock tenant`: prints what each member has deleted. @returns the exit status: 0 where all have deleted all, and at least one store
 * has. @throws ConfigError for a tenant that is refused or a wrong token, Error when no router answers.
 */
export async function runTenantCommand({ name, config, isSet, isHelp, isJson }: TenantLine): Promise<number> {
  if (isHelp) {
    process.stdout.write(`${HELP}\n\n${optionsHelp(tenantOptions)}\n`);
    return 0;
  }
  const found = isSet.has('cluster_token') ? undefined : clusterTokens.find(config.router);
  const network = new GrpcNetwork(found?.token ?? config.cluster_token, systemClock, tlsOf(config));
  try {
    const options = { signal: new AbortController().signal, timeoutMs: TIMEOUT_MS };
    const { outcomes } = await askOnce(network, config.router, 'forget', { tenant: name }, options);
    process.stdout.write(`${isJson ? JSON.stringify({ tenant: name, outcomes }) : described(outcomes)}\n`);
    const failed = outcomes.filter(({ error }) => error !== '').map(({ member }) => member);
    if (failed.length > 0)
      process.stderr.write(
        `penstock tenant: not deleted at ${failed.join(', ')}; run the command again, which is safe\n`,
      );
    const hasStore = outcomes.some(({ role }) => role === 'store');
    if (!hasStore)
      process.stderr.write('penstock tenant: no store is in the cluster now; run the command again when it is back\n');
    return failed.length > 0 || !hasStore ? 1 : 0;
  } catch (error) {
    const { code, message } = asFailure(error);
    if (code === 'unauthenticated') throw new ConfigError(found ? `${message}; ${found.hint}` : message);
    if (code === 'invalid_request') throw new ConfigError(message);
    const help = found?.isOver === true ? found.hint : 'name its --hub-bind with --router HOST:PORT';
    throw new Error(`the router at ${config.router} did not answer: ${message}; ${help}`, { cause: error });
  } finally {
    network.close();
  }
}

function described(outcomes: readonly ForgetOutcome[]): string {
  const lines = outcomes.map(({ member, role, blocks, bytes, inUse, isFinal, error }) => {
    if (error !== '') return `${role} ${member}: failed: ${error}`;
    const used = inUse > 0 ? `; ${inUse} are used by running requests and stay until those end` : '';
    const copies = isFinal ? '' : '; it has no --disk-key, so copies of its disk can still be read';
    return `${role} ${member}: ${blocks} blocks, ${(bytes / 2 ** 20).toFixed(1)} MiB deleted${used}${copies}`;
  });
  return lines.length > 0 ? lines.join('\n') : 'no engine and no store is in the cluster';
}
