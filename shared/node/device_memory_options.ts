/** Options of engines for what lies in a device's memory next to the weights. */
import { z } from 'zod';
import { integer, option } from '../base/options.ts';

/** KV blocks, slots for recurrent states of hybrid models, and how often a state of a prompt is saved. */
export const deviceMemoryOptions = {
  kv_blocks: option(
    'Budgets',
    'N',
    integer(z.int().min(0).max(16_777_216)),
    0,
    'KV blocks in the device; 0: on wasm about as many as 512 MiB hold, on webgpu as many as fit next to the weights',
  ),
  state_slots: option(
    'Budgets',
    'N',
    integer(z.int().min(0).max(65_536)),
    0,
    'slots in the device for recurrent states of a hybrid model, of running sequences and saved ones; 0: half of the automatic KV memory on wasm, 1 GiB on webgpu',
  ),
  state_interval: option(
    'Budgets',
    'BLOCKS',
    integer(z.int().min(0).max(65_536)),
    0,
    'blocks of a prompt between two saved recurrent states; 0: a quarter of the blocks that take the bytes of a state, 1 to 16',
  ),
};
