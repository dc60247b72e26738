/** Options of a store. */
import { homedir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { bytes, option, type ConfigOf } from '../../shared/base/options.ts';
import { memberOptions } from '../../shared/node/options.ts';

const defaultData = join(process.env['XDG_DATA_HOME'] ?? join(homedir(), '.local', 'share'), 'penstock');

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
  ...memberOptions,
  data_dir: option(
    'Process',
    'DIR',
    z.string().min(1),
    defaultData,
    'where a store keeps its LMDB environment, in a folder of its name',
    { isPath: true },
  ),
} as const;

/** Configuration of a store, as its option table yields. */
export type StoreConfig = ConfigOf<typeof options>;
