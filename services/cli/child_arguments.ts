/** Command lines of the processes of a local cluster. */
import { parse } from 'node:path';
import { flagsFor } from '../../shared/base/options.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import type { EngineDivision } from './engine_division.ts';
import { metricsFlags } from './metrics_port.ts';
import type { ClusterLine, RoleTables } from './tables.ts';

/** One process of a local cluster, and where it listens and joins. */
export interface ChildPlace {
  readonly role: Role;
  readonly name: string;
  /** Index among all processes of the cluster, routers first. */
  readonly index: number;
  /** Address of a router's hub: the one that this router serves, or that the process joins. Empty where the router's options say it. */
  readonly hubAddress: string;
  /** Address of the router's API; empty where its options say it. */
  readonly httpBind: string;
  /** URL of the nats-server that `up` has started; empty where it has started none. */
  readonly bus: string;
}

/** Returns the arguments of `penstock ROLE` for one process of the cluster that `line` describes. */
export function childArguments(
  { config, flags, file, isSet }: ClusterLine,
  tables: RoleTables,
  division: EngineDivision,
  { role, name, index, hubAddress, httpBind, bus }: ChildPlace,
): string[] {
  const isEngine = role === 'prefill' || role === 'decode';
  const own = isEngine ? { ...flags, model: division.modelOf(role, name) } : flags;
  const ofRouter = [
    ...(httpBind ? ['--bind', httpBind] : []),
    ...(hubAddress ? ['--hub-bind', hubAddress] : []),
    ...(config.router > 1 && config.audit_log !== '' ? ['--audit-log', fileOf(name, config.audit_log)] : []),
  ];
  const ofEngine = isEngine ? division.flagsOf(role, name) : [];
  return [
    ...flagsFor(tables[role], own),
    ...(file === undefined ? [] : ['--config', file]),
    ...['--name', name, '--log-level', isSet.has('log_level') ? config.log_level : 'warn'],
    ...(role === 'router' ? ofRouter : ['--bind', '127.0.0.1:0', '--join', hubAddress, ...ofEngine]),
    ...metricsFlags(config.metrics_bind, index),
    ...(bus ? ['--bus', bus] : []),
  ];
}

/** Returns the file of one of several routers, which would cut each other's lines off in a common one: its name stands before the ending. */
function fileOf(name: string, file: string): string {
  const { ext } = parse(file);
  return `${file.slice(0, file.length - ext.length)}.${name}${ext}`;
}

/** Returns the roles and names of all processes but the routers. Each model has its own engines; a store holds blocks of every model. */
export function membersOf(config: ClusterLine['config'], numModels: number): { role: Role; name: string }[] {
  return (['store', 'prefill', 'decode'] as const).flatMap((role) =>
    Array.from({ length: config[role] * (role === 'store' ? 1 : numModels) }, (_, i) => ({
      role,
      name: `${role}-${i + 1}`,
    })),
  );
}
