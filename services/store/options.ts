/** Options of a store. */
import { z } from 'zod';
import { dataHome } from '../../shared/base/data_home.ts';
import { bytes, option, type ConfigOf } from '../../shared/base/options.ts';
import { memberOptions } from '../../shared/node/options.ts';

/** Option table of a store: its own options and those of every cluster member. */
export const options = {
  disk_bytes: option(
    'Budgets',
    'SIZE',
    bytes,
    4 * 2 ** 30,
    "size of a store's disk tier; 0: no disk tier. With records of several sizes the file may be a quarter larger",
  ),
  disk_writes: option(
    'Budgets',
    'KIND',
    z.enum(['behind', 'through']),
    'behind',
    'a store answers an offer before (behind) or after (through) it commits the blocks to disk; the answer counts those committed',
  ),
  disk_key: option(
    'Budgets',
    'FILE',
    z.string(),
    '',
    "file with the key under which a store's records on disk are encrypted: 32 random bytes, as `openssl rand -hex 32` prints them. Records in clear from before are overwritten and deleted; under another key the store does not start",
    { isPath: true },
  ),
  ...memberOptions,
  data_dir: option(
    'Process',
    'DIR',
    z.string().min(1),
    dataHome,
    'where a store keeps its LMDB environment, in a folder of its name',
    { isPath: true },
  ),
} as const;

/** Configuration of a store, as its option table yields. */
export type StoreConfig = ConfigOf<typeof options>;
