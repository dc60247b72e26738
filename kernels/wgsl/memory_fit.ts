/** Checks that a program fits on a device: weights before anything is read, then KV blocks in the memory that is left. */
import { DeviceError, type LoadOptions } from '../device.ts';
import type { KvLayout } from '../kv_layout.ts';
import type { WeightSpec } from '../program.ts';
import type { WeightFormat } from '../weights/weight_format.ts';
import type { AdapterListing } from './adapters.ts';
import { transferBytes } from './block_transfer.ts';
import { formatMiB, knownLimit, memoryLeft, type GpuMemory } from './gpu_memory.ts';
import { weightBytes } from './gpu_weights.ts';

/** Memory that a program must fit into. */
export interface Room {
  readonly listing: AdapterListing;
  /** 0: what there is. */
  readonly budgetBytes: number;
  /** Engines that divide it. */
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
  // A stated number is only held against what is known; to fill what is left, it must be found out.
  const left =
    min === max
      ? Math.max(0, knownLimit(listing, budgetBytes) - (budgetBytes > 0 ? takenBytes : 0))
      : await memoryLeft({ listing, takenBytes, numSharing, budgetBytes, wantedBytes: max * blockBytes });
  const numBlocks = Math.min(max, perLayer, Math.floor(left / blockBytes));
  if (numBlocks >= min) return numBlocks;
  const why =
    numBlocks === perLayer
      ? `one layer's buffer holds at most ${perLayer} (a binding has ${formatMiB(memory.maxBytes)} here)`
      : `${formatMiB(left)} are left for ${numBlocks}`;
  throw new DeviceError(
    `${min} KV blocks of ${formatMiB(blockBytes)} do not fit: ${why}; ${memory.summary()} are taken. ` +
      'Use a smaller --weights format, a smaller --max-model-len, fewer --kv-blocks or another device',
  );
}

/** @throws DeviceError, before anything is read, when the weights alone are too large for what is known of the memory. */
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
    `the weights take ${formatMiB(bytes)} as they are held, ${whose} ${formatMiB(there)}: use a smaller --weights format or another device`,
  );
}
