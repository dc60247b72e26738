/** Options of a local cluster alone. `penstock up` also accepts every option of the processes that it starts. */
import { z } from 'zod';
import { integer, option } from '../../shared/base/options.ts';

const count = integer(z.int().min(0).max(256));

/** Option table of a local cluster: the number of instances of each role, and the devices of its engines. */
export const clusterOptions = {
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
