/** Copies blocks that the device's pool holds into host memory. */
import type { Executable } from '../../kernels/device.ts';
import type { BlockHash } from '../kv/block_key.ts';
import type { BlockPool } from './block_pool.ts';

/** A block that is asked for by its hash, and the buffer for its KV. */
export interface WantedBlock {
  readonly hash: BlockHash;
  readonly out: Uint8Array;
}

/** Copies the KV of the wanted blocks into their `out` buffers; returns for each whether the pool held the block. */
export async function exportHeld(
  pool: BlockPool,
  executable: Executable,
  wanted: readonly WantedBlock[],
): Promise<boolean[]> {
  const found = wanted.map(({ hash, out }) => ({ block: pool.find(hash), out }));
  const held = found.flatMap(({ block, out }) => (block === undefined ? [] : [{ block, out }]));
  const blocks = held.map(({ block }) => block);
  for (const block of blocks) pool.reference(block);
  if (held.length > 0) {
    await executable.exportBlocks(
      blocks,
      held.map(({ out }) => out),
    );
  }
  pool.release(blocks);
  return found.map(({ block }) => block !== undefined);
}
