/** Command line of `penstock tenant`. */
import { ConfigError, readCommandLine, type CommandLine, type OptionTable } from '../../shared/base/options.ts';
import { policyOptions } from './policy_options.ts';

/** Options of `penstock tenant`: the router, and how it is reached. */
export const tenantOptions = policyOptions;

/** Parsed command line of `penstock tenant forget NAME`. */
export type TenantLine = CommandLine<typeof tenantOptions> & { readonly name: string };

/**
 * Reads the arguments of `penstock tenant forget NAME [options]`; `tables` are those of all commands. @throws ConfigError for another action,
 * a name that is missing or empty, or options that are not allowed.
 */
export function readTenantLine(
  args: readonly string[],
  tables: Readonly<Record<string, OptionTable>>,
  environment: Readonly<Record<string, string | undefined>>,
): TenantLine {
  const isHelp = args.includes('--help') || args.includes('-h');
  const [action, name = '', ...rest] = isHelp ? ['forget', '', '--help'] : args;
  const usage = 'penstock tenant forget NAME [--router HOST:PORT] [--json]';
  if (action !== 'forget') throw new ConfigError(`penstock tenant has one action, forget: ${usage}`);
  if (!isHelp && (name === '' || name.startsWith('-')))
    throw new ConfigError(`name the tenant whose blocks are to be deleted: ${usage}`);
  const [second] = rest;
  if (second !== undefined && !second.startsWith('-'))
    throw new ConfigError(
      `penstock tenant forget takes one name, not also ${second}; put a name with spaces in quotes`,
    );
  return { ...readCommandLine(tenantOptions, { command: 'tenant', tables }, rest, environment), name };
}
