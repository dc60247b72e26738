/** `penstock policy`: shows or sets the placement policy of a running cluster, by a call at one of its routers. */
import { systemClock } from '../../shared/base/clock.ts';
import { asFailure } from '../../shared/base/failure.ts';
import { ConfigError, optionsHelp } from '../../shared/base/options.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { askOnce } from '../../shared/net/network.ts';
import type { PolicyReply } from '../../shared/protocol/messages.ts';
import { clusterTokens } from './lease_process.ts';
import { policyOptions, type PolicyLine } from './policy_options.ts';
import { tlsOf } from './tls_files.ts';

const HELP = 'penstock policy [NAME]: shows the placement policy of a running cluster, or sets that of all its routers';

/** Milliseconds that the router has to answer. */
const TIMEOUT_MS = 5_000;

/**
 * Runs `penstock policy`: sets the policy of the command line, unless it has none, and prints the policy in force. @throws ConfigError
 * for an unknown name or a wrong token, Error when no router answers.
 */
export async function runPolicyCommand({ name, config, isSet, isHelp, isJson }: PolicyLine): Promise<void> {
  if (isHelp) {
    process.stdout.write(`${HELP}\n\n${optionsHelp(policyOptions)}\n`);
    return;
  }
  const found = isSet.has('cluster_token') ? undefined : clusterTokens.find(config.router);
  const network = new GrpcNetwork(found?.token ?? config.cluster_token, systemClock, tlsOf(config));
  try {
    const options = { signal: new AbortController().signal, timeoutMs: TIMEOUT_MS };
    const reply = await askOnce(network, config.router, 'policy', { name }, options);
    process.stdout.write(`${isJson ? JSON.stringify(reply) : described(reply)}\n`);
  } catch (error) {
    const { code, message } = asFailure(error);
    const help = found?.isOver === true ? found.hint : 'name its --hub-bind with --router HOST:PORT';
    if (code === 'unauthenticated') throw new ConfigError(found ? `${message}; ${found.hint}` : message);
    if (code === 'invalid_request') throw new ConfigError(message);
    throw new Error(`the router at ${config.router} did not answer: ${message}; ${help}`, { cause: error });
  } finally {
    network.close();
  }
}

function described({ name, placesBy, sinceMs, setBy, names }: PolicyReply): string {
  const stands = placesBy === name ? '' : ` (${placesBy})`;
  const by = setBy === '' ? "by the router's option" : `set at ${setBy}`;
  return `${name}${stands}, since ${new Date(sinceMs).toISOString()}, ${by}\nto choose from: ${names.join(', ')}`;
}
