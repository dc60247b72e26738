/** Options of a local cluster alone. `penstock up` also accepts every option of the processes that it starts. */
import { z } from 'zod';
import { integer, option, positive } from '../../shared/base/options.ts';

/** Most routers: members know 64 (P1), and one that was started again counts twice until the one before is forgotten. */
const MAX_ROUTERS = 32;
const count = integer(z.int().min(0).max(256));

/** Option table of a local cluster: the number of processes of each role, and the devices of its engines. */
export const clusterOptions = {
  router: option(
    'Local cluster (up)',
    'N',
    positive(MAX_ROUTERS),
    1,
    "routers; several listen at --bind's port and the next free ones, and meet over --bus, or else over a nats-server of the PATH that `up` starts on 127.0.0.1",
  ),
  prefill: option('Local cluster (up)', 'N', count, 1, 'prefill instances'),
  decode: option('Local cluster (up)', 'N', integer(z.int().min(1).max(256)), 1, 'decode instances'),
  store: option('Local cluster (up)', 'N', count, 1, 'stores'),
  prefill_device: option(
    'Local cluster (up)',
    'NAME',
    z.string(),
    '',
    "the prefill instances' device; default: --device",
  ),
  decode_device: option(
    'Local cluster (up)',
    'NAME',
    z.string(),
    '',
    "the decode instances' device; default: --device",
  ),
} as const;
