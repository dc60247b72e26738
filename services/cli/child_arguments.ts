/** Command lines of the processes of a local cluster. */
import { flagsFor } from '../../shared/base/options.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import type { EngineDivision } from './engine_division.ts';
import { metricsFlags } from './metrics_port.ts';
import type { ClusterLine, RoleTables } from './tables.ts';

/** One process of a local cluster, and where it listens and joins. */
export interface ChildPlace {
  readonly role: Role;
  readonly name: string;
  /** Index among all processes of the cluster, the router's being 0. */
  readonly index: number;
  /** Address of the router's hub; empty before the router has chosen it. */
  readonly hubAddress: string;
  /** Address of the router's API; empty before the router has chosen it. */
  readonly httpBind: string;
}

/** Returns the arguments of `penstock ROLE` for one process of the cluster that `line` describes. */
export function childArguments(
  { config, flags, file, isSet }: ClusterLine,
  tables: RoleTables,
  division: EngineDivision,
  { role, name, index, hubAddress, httpBind }: ChildPlace,
): string[] {
  const isEngine = role === 'prefill' || role === 'decode';
  const own = isEngine ? { ...flags, model: division.modelOf(role, name) } : flags;
  const ofRouter = [...(httpBind ? ['--bind', httpBind] : []), ...(hubAddress ? ['--hub-bind', hubAddress] : [])];
  const ofEngine = isEngine ? division.flagsOf(role, name) : [];
  return [
    ...flagsFor(tables[role], own),
    ...(file === undefined ? [] : ['--config', file]),
    ...['--name', name, '--log-level', isSet.has('log_level') ? config.log_level : 'warn'],
    ...(role === 'router' ? ofRouter : ['--bind', '127.0.0.1:0', '--join', hubAddress, ...ofEngine]),
    ...metricsFlags(config.metrics_bind, index),
  ];
}

/** Returns the roles and names of all processes but the router. Each model has its own engines; a store holds blocks of every model. */
export function membersOf(config: ClusterLine['config'], numModels: number): { role: Role; name: string }[] {
  return (['store', 'prefill', 'decode'] as const).flatMap((role) =>
    Array.from({ length: config[role] * (role === 'store' ? 1 : numModels) }, (_, i) => ({
      role,
      name: `${role}-${i + 1}`,
    })),
  );
}
