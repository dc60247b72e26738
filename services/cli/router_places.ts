/** Names and addresses of the routers of a local cluster. */
import { ConfigError } from '../../shared/base/options.ts';
import { listenError } from './port_trial.ts';
import type { ClusterConfig } from './tables.ts';

const HTTP = '127.0.0.1:8000';
/** Port at which commands and members look for a hub by default: no API of a further router is there. */
const HUB_PORT = 8_001;
const MAX_PORT = 65_535;

/** One router, and where it listens. */
export interface RouterPlace {
  readonly name: string;
  /** Addresses of its API and of its hub; empty where its options say them. */
  readonly httpBind: string;
  readonly hubAddress: string;
}

/** Whether a process may listen at HOST:PORT. */
type IsFree = (address: string) => Promise<boolean>;

/** Options that say where routers listen, and how many there are. */
type PlacesConfig = Pick<ClusterConfig, 'router' | 'bind' | 'hub_bind' | 'metrics_bind'>;

/**
 * Returns the places of all routers: a single one has those of its options, several have the ports of --bind (and of --hub-bind, where it is set) and
 * the next free ones. The ports of --metrics-bind, of `numProcesses` processes, are left to them. @throws ConfigError when there are too few ports
 */
export async function routerPlaces(
  config: PlacesConfig,
  numProcesses: number,
  isFree: IsFree = isPortFree,
): Promise<RouterPlace[]> {
  const { router: count, bind, hub_bind: hubBind, metrics_bind: metricsBind } = config;
  if (count === 1) return [{ name: 'router', httpBind: '', hubAddress: '' }];
  const metricsPort = portOf(metricsBind);
  const ofMetrics = metricsPort === 0 ? [] : Array.from({ length: numProcesses }, (_, i) => metricsPort + i);
  const taken = new Set([...ofMetrics, portOf(bind || HTTP), portOf(hubBind), HUB_PORT]);
  const https = await rowFrom('--bind', bind || HTTP, { count, taken, isFree });
  const hubs = await rowFrom('--hub-bind', hubBind, { count, taken, isFree });
  return https.map((httpBind, i) => ({ name: `router-${i + 1}`, httpBind, hubAddress: hubs[i] ?? '' }));
}

/**
 * Returns `count` addresses: `bind`, whose port the first router finds free or refuses, and those with the next free ports, which become taken. An
 * empty one, and a port that the system picks, stay as they are.
 */
async function rowFrom(
  flag: string,
  bind: string,
  { count, taken, isFree }: { readonly count: number; readonly taken: Set<number>; readonly isFree: IsFree },
): Promise<string[]> {
  const host = bind.slice(0, bind.lastIndexOf(':'));
  const first = portOf(bind);
  if (first === 0) return Array.from({ length: count }, () => bind);
  const row = [bind];
  for (let port = first + 1; row.length < count; port++) {
    if (port > MAX_PORT)
      throw new ConfigError(`${flag} ${bind}: ${count} routers find no free ports from there on: name a lower one`);
    const address = `${host}:${port}`;
    if (taken.has(port) || !(await isFree(address))) continue;
    taken.add(port);
    row.push(address);
  }
  return row;
}

/** Returns the port of HOST:PORT; 0 for an empty address. */
function portOf(address: string): number {
  return Number(address.slice(address.lastIndexOf(':') + 1));
}

/** Whether a port can be listened at. Any other trouble with the address is reported by the router that gets it. */
async function isPortFree(address: string): Promise<boolean> {
  const code = await listenError(address);
  return code !== 'EADDRINUSE' && code !== 'EACCES';
}
