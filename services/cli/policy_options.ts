/** Command line of `penstock policy`. */
import {
  address,
  ConfigError,
  option,
  readCommandLine,
  type CommandLine,
  type OptionTable,
} from '../../shared/base/options.ts';
import { processOptions } from '../../shared/node/options.ts';

const { cluster_token, cluster_token_file, tls_cert, tls_key, tls_ca } = processOptions;

/** Options of `penstock policy`. */
export const policyOptions = {
  router: option('Network', 'HOST:PORT', address, '127.0.0.1:8001', "a router's hub, its --hub-bind"),
  cluster_token,
  cluster_token_file,
  tls_cert,
  tls_key,
  tls_ca,
} as const;

/** Parsed command line of `penstock policy`; the name is empty where the policy is only shown. */
export type PolicyLine = CommandLine<typeof policyOptions> & { readonly name: string };

/**
 * Reads the arguments of `penstock policy [NAME] [options]`; `tables` are those of all commands. @throws ConfigError for several
 * names, or options that are not allowed.
 */
export function readPolicyLine(
  args: readonly string[],
  tables: Readonly<Record<string, OptionTable>>,
  environment: Readonly<Record<string, string | undefined>>,
): PolicyLine {
  const [first = ''] = args;
  const name = first.startsWith('-') ? '' : first;
  const rest = name === '' ? args : args.slice(1);
  const [second = ''] = rest;
  if (name !== '' && second !== '' && !second.startsWith('-'))
    throw new ConfigError(`penstock policy takes one name, not also ${second}`);
  return { ...readCommandLine(policyOptions, { command: 'policy', tables }, rest, environment), name };
}
