/** Copies blocks, or recurrent states, that a pool of the device holds into host memory. */
import type { BlockHash } from '../kv/block_key.ts';
import type { BlockPool } from './block_pool.ts';

/** A block or a state that is asked for by its hash, and the buffer for its bytes. */
export interface WantedBlock {
  readonly hash: BlockHash;
  readonly out: Uint8Array;
}

/**
 * Copies the wanted blocks into their `out` buffers with `copy`, and references them meanwhile; returns for each whether the pool held
 * the block.
 */
export async function exportHeld(
  pool: BlockPool,
  copy: (blocks: readonly number[], outs: readonly Uint8Array[]) => Promise<void>,
  wanted: readonly WantedBlock[],
): Promise<boolean[]> {
  const found = wanted.map(({ hash, out }) => ({ block: pool.find(hash), out }));
  const held = found.flatMap(({ block, out }) => (block === undefined ? [] : [{ block, out }]));
  const blocks = held.map(({ block }) => block);
  for (const block of blocks) pool.reference(block);
  if (held.length > 0) {
    await copy(
      blocks,
      held.map(({ out }) => out),
    );
  }
  pool.release(blocks);
  return found.map(({ block }) => block !== undefined);
}
