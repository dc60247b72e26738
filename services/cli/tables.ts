/** Option tables of all services. */
import type { CommandLine, ConfigOf, OptionTable } from '../../shared/base/options.ts';
import type { EngineConfig } from '../../shared/node/options.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { clusterOptions } from './cluster_options.ts';
import { loadOptions } from './role_modules.ts';

/** Roles that a process can have; each is a command of `penstock`. */
export const roles = ['router', 'prefill', 'decode', 'store'] as const satisfies readonly Role[];

/** Configuration that `up` reads itself. All other options go to the processes that it starts. */
export type ClusterConfig = ConfigOf<typeof clusterOptions> &
  EngineConfig &
  Readonly<Record<'served_model_name' | 'keys' | 'hub_bind' | 'audit_log', string>>;

/** Parsed command line of `penstock up`. */
export type ClusterLine = Omit<CommandLine<OptionTable>, 'config'> & { readonly config: ClusterConfig };

/** Option table of each role. */
export type RoleTables = Readonly<Record<Role, OptionTable>>;

/** Loads the option tables of all roles. @throws Error when a module cannot be loaded. */
export async function loadTables(): Promise<RoleTables> {
  const load = async (role: Role): Promise<[Role, OptionTable]> => [role, await loadOptions(role)];
  return Object.fromEntries(await Promise.all(roles.map(load))) as RoleTables;
}

/** Returns the option table of `up` and `config`: the options of every role and those of a local cluster. */
function clusterTable(tables: RoleTables): OptionTable {
  return Object.assign({}, ...Object.values(tables), clusterOptions) as OptionTable;
}

/** Returns the option table of a command: the role's own for a role, all options for any other command. */
export function tableOf(command: string, tables: RoleTables): OptionTable {
  return Object.hasOwn(tables, command) ? tables[command as Role] : clusterTable(tables);
}
