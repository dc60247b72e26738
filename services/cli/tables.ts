/** The tables of all services. Services meet on the wire only, so a role's is loaded by address, as the role is. */
import type { CommandLine, ConfigOf, OptionTable } from '../../shared/base/options.ts';
import type { EngineConfig } from '../../shared/node/options.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { clusterOptions } from './cluster_options.ts';

export const roles = ['router', 'prefill', 'decode', 'store'] as const satisfies readonly Role[];

/** What `up` reads of its own options; the others it hands to its processes. */
export type ClusterConfig = ConfigOf<typeof clusterOptions> & EngineConfig & { readonly served_model_name: string };

/** What `up` was told. */
export type ClusterLine = Omit<CommandLine<OptionTable>, 'config'> & { readonly config: ClusterConfig };

export type RoleTables = Readonly<Record<Role, OptionTable>>;

export async function loadTables(): Promise<RoleTables> {
  const load = async (role: Role): Promise<[Role, OptionTable]> => {
    const module = new URL(`../${role}/options.js`, import.meta.url).href;
    return [role, ((await import(module)) as { options: OptionTable }).options];
  };
  return Object.fromEntries(await Promise.all(roles.map(load))) as RoleTables;
}

/** Of `up` and `config`: everything. */
function clusterTable(tables: RoleTables): OptionTable {
  return Object.assign({}, ...Object.values(tables), clusterOptions) as OptionTable;
}

/** Of a command; one that starts nothing takes everything. */
export function tableOf(command: string, tables: RoleTables): OptionTable {
  return Object.hasOwn(tables, command) ? tables[command as Role] : clusterTable(tables);
}
