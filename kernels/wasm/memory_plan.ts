/** A bump allocator that plans where every region of a memory shard lies in its shared memory. Offsets are bytes, ranges half-open. */
import { totalmem } from 'node:os';
import { DeviceError } from '../device.ts';

const PAGE_BYTES = 65_536;
/** A 32-bit memory ends here; a larger one (memory64) checks every access and would slow every model. */
const MAX_MEMORY_BYTES = 65_536 * PAGE_BYTES;

/** Offsets of the regions of one shared memory, reserved one after the other; {@link MemoryPlan.allocate} then creates the memory. */
export class MemoryPlan {
  // Offset 0 stays unused, so that 0 can mean "none".
  #end = 64;
  readonly #bytes = new Map<string, number>();
  readonly #maxBytes: number;

  constructor(maxBytes = MAX_MEMORY_BYTES) {
    this.#maxBytes = maxBytes;
  }

  /** Reserves `bytes`, aligned to 64, and returns the offset; `what` sums up in messages. */
  reserve(what: string, bytes: number): number {
    const offset = this.#end;
    this.#end = Math.ceil((offset + bytes) / 64) * 64;
    this.#bytes.set(what, (this.#bytes.get(what) ?? 0) + this.#end - offset);
    return offset;
  }

  get fits(): boolean {
    return this.#end <= this.#maxBytes;
  }

  /** @throws DeviceError when it does not fit, with the sizes. */
  allocate(): WebAssembly.Memory {
    const sizes = sizesOf([this]);
    if (!this.fits) {
      throw new DeviceError(
        `a memory of the wasm device has at most ${formatMiB(this.#maxBytes)}, and what cannot be parted is larger: ${sizes}: ` +
          SMALLER,
      );
    }
    const pages = Math.ceil(this.#end / PAGE_BYTES);
    try {
      return new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
    } catch (cause) {
      throw new DeviceError(`this machine has no room for the model: ${sizes}`, { cause });
    }
  }

  get totalBytes(): number {
    return this.#end;
  }

  get parts(): ReadonlyMap<string, number> {
    return this.#bytes;
  }
}

const SMALLER =
  'use a smaller --weights format (int4 is the smallest), fewer --kv-blocks, smaller --chunk-tokens, a smaller model or a GPU';

/**
 * Memories of one program. @throws DeviceError when they are more than its share of the machine, or one of them more than can be
 * addressed.
 */
export function allocateAll(plans: readonly MemoryPlan[], machineBytes: number): WebAssembly.Memory[] {
  const needed = plans.reduce((sum, { totalBytes }) => sum + totalBytes, 0);
  // Memory is given when it is touched: a process that takes too much is killed then, without a word.
  if (needed > machineBytes)
    throw new DeviceError(`this engine may have ${formatMiB(machineBytes)} of memory: ${sizesOf(plans)}: ${SMALLER}`);
  return plans.map((plan) => plan.allocate());
}

/** Returns the bytes of memory that a process may use here: the machine's, or the container's limit when lower. */
export function machineMemory(): number {
  return Math.min(totalmem(), process.constrainedMemory() || Infinity);
}

function sizesOf(plans: readonly MemoryPlan[]): string {
  const all = new Map<string, number>();
  for (const { parts } of plans) for (const [what, bytes] of parts) all.set(what, (all.get(what) ?? 0) + bytes);
  const largest = [...all].filter(([, bytes]) => bytes > 1 << 20).sort(([, a], [, b]) => b - a);
  const needed = plans.reduce((sum, { totalBytes }) => sum + totalBytes, 0);
  return `${formatMiB(needed)} needed (${largest.map(([what, bytes]) => `${what} ${formatMiB(bytes)}`).join(', ')})`;
}

function formatMiB(bytes: number): string {
  return `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}
