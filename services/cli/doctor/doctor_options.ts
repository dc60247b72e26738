/** Command line of `penstock doctor`: its own options, and those of the processes whose ports, folders and budgets it checks. */
import { address, option, type OptionTable } from '../../../shared/base/options.ts';
import { processOptions } from '../../../shared/node/options.ts';
import { apiOption } from '../api_option.ts';
import type { RoleTables } from '../tables.ts';

const { bind, bus, cluster_token, cluster_token_file, tls_cert, tls_key, tls_ca } = processOptions;

const router = option('Network', 'HOST:PORT', address, '127.0.0.1:8001', "a router's hub, its --hub-bind");

/** Values of the options of `penstock doctor`. */
export interface DoctorConfig {
  readonly router: string;
  readonly api: string;
  readonly api_key: string;
  readonly bind: string;
  readonly hub_bind: string;
  readonly bulk_port: number;
  readonly bus: string;
  readonly cluster_token: string;
  readonly cluster_token_file: string;
  readonly tls_cert: string;
  readonly tls_key: string;
  readonly tls_ca: string;
  readonly data_dir: string;
  readonly disk_bytes: number;
  readonly dram_bytes: number;
  readonly max_connections: number;
}

/** Returns the options of `penstock doctor`; those of roles come from `tables`. */
export function doctorOptions(tables: RoleTables): OptionTable {
  const pick = (table: OptionTable, names: readonly (keyof DoctorConfig)[]): OptionTable =>
    Object.fromEntries(Object.entries(table).filter(([name]) => (names as readonly string[]).includes(name)));
  return {
    router,
    ...apiOption,
    bind,
    cluster_token,
    cluster_token_file,
    bus,
    tls_cert,
    tls_key,
    tls_ca,
    ...pick(tables.router, ['hub_bind', 'max_connections']),
    ...pick(tables.store, ['bulk_port', 'data_dir', 'disk_bytes', 'dram_bytes']),
  };
}
