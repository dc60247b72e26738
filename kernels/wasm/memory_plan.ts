/** A bump allocator that plans where every region of a memory shard lies in its shared memory. Offsets are bytes, ranges half-open. */
import { readFileSync } from 'node:fs';
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

  /**
   * Reserves `bytes`, aligned to 64, and returns the offset. Error messages list the sizes by `what`; regions of one name are added
   * up.
   */
  reserve(what: string, bytes: number): number {
    const offset = this.#end;
    this.#end = Math.ceil((offset + bytes) / 64) * 64;
    this.#bytes.set(what, (this.#bytes.get(what) ?? 0) + this.#end - offset);
    return offset;
  }

  get fits(): boolean {
    return this.#end <= this.#maxBytes;
  }

  /** Clause that says why there can be no such memory; undefined when there can. */
  get obstacle(): string | undefined {
    return this.fits
      ? undefined
      : `a memory of the wasm device has at most ${formatMiB(this.#maxBytes)}, and a part of this model that cannot be split is larger: ${sizesOf([this])}`;
  }

  /** Creates the memory. @throws DeviceError, with the sizes, when the plan exceeds the largest memory or the allocation fails. */
  allocate(): WebAssembly.Memory {
    const sizes = sizesOf([this]);
    if (!this.fits) throw new DeviceError(`${this.obstacle}: ${SMALLER}`);
    const pages = Math.ceil(this.#end / PAGE_BYTES);
    try {
      return new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
    } catch (cause) {
      throw new DeviceError(
        `this machine could not allocate the memory for the model: ${sizes}; free some memory, or use a smaller --weights format or fewer --kv-blocks`,
        { cause },
      );
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
 * Creates the memories of one program. @throws DeviceError when they exceed `machineBytes` together, or one of them exceeds what 32
 * bits can address.
 */
export function allocateAll(plans: readonly MemoryPlan[], machineBytes: number): WebAssembly.Memory[] {
  const needed = plans.reduce((sum, { totalBytes }) => sum + totalBytes, 0);
  // The operating system assigns pages when they are touched: a process that exceeds the memory would then be killed without a message.
  if (needed > machineBytes)
    throw new DeviceError(`this engine may have ${formatMiB(machineBytes)} of memory: ${sizesOf(plans)}: ${SMALLER}`);
  return plans.map((plan) => plan.allocate());
}

/** Returns the bytes of memory that a process may use here: the machine's, or the container's limit when lower. */
export function machineMemory(): number {
  return Math.min(totalmem(), process.constrainedMemory() || Infinity);
}

/**
 * Returns the bytes that the processes of this machine leave: all memory and swap, less what no other use gives up (pages of processes
 * and of file systems in memory). Files that the system keeps in memory do not count, for it drops them. `memInfo` is the text of
 * /proc/meminfo. Infinity where the system does not say, or where its counts cannot be true (a container may be told wrong ones).
 */
export function freeMemory(memInfo: string | undefined): number {
  const kib = new Map(
    Array.from((memInfo ?? '').matchAll(/^(\w+):\s*(\d+) kB$/gm), ([, name = '', count]) => [name, Number(count)]),
  );
  const of = (name: string): number => kib.get(name) ?? 0;
  if (!kib.has('MemTotal') || !kib.has('AnonPages')) return Infinity;
  const used = of('AnonPages') + of('Shmem');
  if (used > of('MemTotal')) return Infinity;
  // A page that was read back from swap counts as used, and keeps its place in swap for a while: one of the two can be given up.
  return 1_024 * (of('MemTotal') + of('SwapFree') + of('SwapCached') - used);
}

/** Returns the text of /proc/meminfo; undefined on a machine without. */
export function readMemInfo(): string | undefined {
  try {
    return readFileSync('/proc/meminfo', 'utf8');
  } catch {
    return undefined;
  }
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
