/** Command line of `penstock doctor`: its own options, and those of the processes whose ports, folders and budgets it checks. */
import { address, option, type OptionTable } from '../../../shared/base/options.ts';
import { processOptions } from '../../../shared/node/options.ts';
import type { RoleTables } from '../tables.ts';

const { bind, bus, cluster_token, tls_cert, tls_key, tls_ca } = processOptions;

/** Options that name a router by its addresses. */
export const routerOptions = {
  router: option('Network', 'HOST:PORT', address, '127.0.0.1:8001', "a router's hub, its --hub-bind"),
  api: option('Network', 'HOST:PORT', address, '127.0.0.1:8000', "a router's HTTP address, its --bind"),
} as const;

/** Values of the options of `penstock doctor`. */
export interface DoctorConfig {
  readonly router: string;
  readonly api: string;
  readonly bind: string;
  readonly hub_bind: string;
  readonly bulk_port: number;
  readonly bus: string;
  readonly cluster_token: string;
  readonly tls_cert: string;
  readonly tls_key: string;
  readonly tls_ca: string;
  readonly data_dir: string;
  readonly disk_bytes: number;
  readonly dram_bytes: number;
  readonly max_connections: number;
}

/** Returns the options of `penstock doctor`; those of roles come from `tables`. */
export function doctorOptions({ router, store }: RoleTables): OptionTable {
  const pick = (table: OptionTable, names: readonly (keyof DoctorConfig)[]): OptionTable =>
    Object.fromEntries(Object.entries(table).filter(([name]) => (names as readonly string[]).includes(name)));
  return {
    ...routerOptions,
    ...{ bind, cluster_token, bus, tls_cert, tls_key, tls_ca },
    ...pick(router, ['hub_bind', 'max_connections']),
    ...pick(store, ['bulk_port', 'data_dir', 'disk_bytes', 'dram_bytes']),
  };
}
