/** Checks that a program fits on a device: weights before anything is read, then KV blocks in the memory that is left. */
import { DeviceError, type LoadOptions } from '../device.ts';
import type { KvLayout } from '../kv_layout.ts';
import type { StateLayout } from '../state_layout.ts';
import type { WeightSpec } from '../program.ts';
import type { WeightFormat } from '../weights/weight_format.ts';
import type { AdapterListing } from './adapters.ts';
import { transferBytes } from './block_transfer.ts';
import { formatMiB, knownLimit, memoryLeft, type GpuMemory } from './gpu_memory.ts';
import { weightBytes } from './gpu_weights.ts';

/** Memory that a program must fit into. */
export interface Room {
  readonly listing: AdapterListing;
  /** Bytes that the program may use; 0 to find out how much is free. */
  readonly budgetBytes: number;
  /** Number of engines that share the device's memory. */
  readonly numSharing: number;
}

/**
 * Returns how many KV blocks fit in the memory left, at most `max`; `otherBytes` of that memory are reserved for buffers still to be
 * made. @throws DeviceError with the sizes when fewer than `min` fit.
 */
export async function numBlocksFor(
  { min, max }: LoadOptions['numBlocks'],
  memory: GpuMemory,
  { layers, blockBytes }: Pick<KvLayout, 'layers' | 'blockBytes'>,
  otherBytes: number,
  { listing, budgetBytes, numSharing }: Room,
): Promise<number> {
  const perLayer = Math.floor(memory.maxBytes / Math.max(...layers.map(({ bytes }) => bytes)));
  // Buffers made after the KV blocks count as taken already.
  const takenBytes = memory.totalBytes + transferBytes(blockBytes) + otherBytes;
  // A fixed number of blocks is only checked against the known limit; to fill the rest of the memory, its size must be found out.
  const left =
    min === max
      ? Math.max(0, knownLimit(listing, budgetBytes) - (budgetBytes > 0 ? takenBytes : 0))
      : await memoryLeft({ listing, takenBytes, numSharing, budgetBytes, wantedBytes: max * blockBytes });
  const numBlocks = Math.min(max, perLayer, Math.floor(left / blockBytes));
  if (numBlocks >= min) return numBlocks;
  const why =
    numBlocks === perLayer
      ? `one layer's buffer holds at most ${perLayer} (a buffer on this adapter has at most ${formatMiB(memory.maxBytes)})`
      : `${formatMiB(left)} are left, enough for ${numBlocks}`;
  throw new DeviceError(
    `${min} KV blocks of ${formatMiB(blockBytes)} do not fit: ${why}; already allocated are ${memory.summary()}. ` +
      'Use a smaller --weights format, a smaller --max-model-len, fewer --kv-blocks or another device',
  );
}

/**
 * Checks that the slots for recurrent states can fit after the weights. @throws DeviceError, with the bytes that they need, when they
 * do not.
 */
export function refuseStatesThatCannotFit(
  { slotBytes, layers }: StateLayout,
  numSlots: number,
  memory: Pick<GpuMemory, 'maxBytes' | 'totalBytes' | 'summary'>,
  { listing, budgetBytes }: Room,
): void {
  const needed = `${numSlots} state slots of ${formatMiB(slotBytes)} need ${formatMiB(numSlots * slotBytes)}`;
  const widest = numSlots * Math.max(0, ...layers.map(({ bytes }) => bytes));
  if (widest > memory.maxBytes)
    throw new DeviceError(
      `${needed}, ${formatMiB(widest)} of them for one layer, but a buffer on this adapter has at most ${formatMiB(memory.maxBytes)}: use a smaller --max-num-seqs`,
    );
  const left = knownLimit(listing, budgetBytes) - (budgetBytes > 0 ? memory.totalBytes : 0);
  if (numSlots * slotBytes <= left) return;
  throw new DeviceError(
    `${needed}, and ${formatMiB(Math.max(0, left))} are left; already allocated are ${memory.summary()}: use a smaller --weights format, a smaller --max-num-seqs or another device`,
  );
}

/**
 * Checks that the weights can fit, before anything is read. @throws DeviceError when the weights alone are larger than the known
 * limit.
 */
export function refuseWhatCannotFit(
  entries: readonly (readonly [string, WeightSpec])[],
  format: WeightFormat,
  { listing, budgetBytes }: Room,
): void {
  const bytes = entries.reduce((sum, [, spec]) => sum + weightBytes(spec, format), 0);
  const there = knownLimit(listing, budgetBytes);
  if (bytes <= there) return;
  const whose = budgetBytes > 0 ? '--device-memory allows' : 'this machine has free';
  throw new DeviceError(
    `the weights take ${formatMiB(bytes)} in their storage format, but ${whose} ${formatMiB(there)}: use a smaller --weights format or another device`,
  );
}
