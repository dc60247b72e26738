/** What both ends of the transfer benchmark know. */
import { chainOf, type BlockHash, type Digest } from '../../shared/kv/block_key.ts';
import { preambleBytes, recordBytes, type RecordLayout } from '../../shared/kv/record.ts';

export interface TransferEnds {
  readonly address: string;
  readonly port: number;
}

const NUM_LAYERS = 16;
const BLOCK_SIZE = 32;
const format = 'cd'.repeat(16) as Digest;

export function layoutOf(recordKiB: number): RecordLayout {
  const all = { numLayers: NUM_LAYERS, payloadBytes: recordKiB * 1_024 };
  const payloadBytes = Math.floor((all.payloadBytes - preambleBytes(all)) / NUM_LAYERS / 4) * NUM_LAYERS * 4;
  return { format, numericsClass: 'none', numLayers: NUM_LAYERS, blockSize: BLOCK_SIZE, payloadBytes };
}

export function recordsOf(
  layout: RecordLayout,
  count: number,
): { readonly bytes: number; readonly hashes: readonly BlockHash[] } {
  const tokens = Array.from({ length: count * BLOCK_SIZE }, (_, i) => i);
  return { bytes: recordBytes(layout), hashes: chainOf(format, BLOCK_SIZE, tokens) };
}
