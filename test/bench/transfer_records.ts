/** Definitions that both ends of the transfer benchmark share. */
import { chainOf, type BlockHash, type Digest } from '../../shared/kv/block_key.ts';
import type { RecordLayout } from '../../shared/kv/record.ts';
import { evenSpec } from '../support/kv.ts';
import type { KvSpec } from '../../shared/kv/kv_spec.ts';

export interface TransferEnds {
  readonly address: string;
  readonly port: number;
}

const NUM_LAYERS = 16;
const BLOCK_SIZE = 32;
const format = 'cd'.repeat(16) as Digest;

export function layoutOf(recordKiB: number): RecordLayout {
  // Records of this size, or a little less: layers have whole values of every token.
  const unit = 2 * NUM_LAYERS * BLOCK_SIZE;
  const of = (payloadBytes: number): KvSpec => evenSpec({ numLayers: NUM_LAYERS, blockSize: BLOCK_SIZE, payloadBytes });
  const { preambleBytes } = of(Math.floor((recordKiB * 1_024) / unit) * unit);
  const spec = of(Math.floor((recordKiB * 1_024 - preambleBytes) / unit) * unit);
  return { format, numericsClass: 'none', spec };
}

export function recordsOf(
  layout: RecordLayout,
  count: number,
): { readonly bytes: number; readonly hashes: readonly BlockHash[] } {
  const tokens = Array.from({ length: count * BLOCK_SIZE }, (_, i) => i);
  return { bytes: layout.spec.slotBytes, hashes: chainOf(format, BLOCK_SIZE, tokens) };
}
