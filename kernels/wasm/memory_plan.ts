/** Where everything lies in the one shared memory: a bump allocator that only plans. Offsets are bytes, ranges half-open. */
import { DeviceError } from '../device.ts';

const PAGE_BYTES = 65_536;
/** A 32-bit memory ends here; larger models need several memories, which this device does not have yet. */
const MAX_BYTES = 65_536 * PAGE_BYTES;

export class MemoryPlan {
  // Offset 0 stays unused, so that 0 can mean "none".
  #end = 64;
  readonly #lines: string[] = [];

  /** Reserves `bytes`, aligned to 64, and returns the offset. */
  reserve(what: string, bytes: number): number {
    const offset = this.#end;
    this.#end = Math.ceil((offset + bytes) / 64) * 64;
    if (bytes > 1 << 20) this.#lines.push(`${what} ${formatMiB(bytes)}`);
    return offset;
  }

  get totalBytes(): number {
    return this.#end;
  }

  /** @throws DeviceError when it does not fit, with the sizes. */
  allocate(): WebAssembly.Memory {
    const tooLarge = `the wasm device addresses at most ${formatMiB(MAX_BYTES)}`;
    const sizes = `${formatMiB(this.#end)} needed (${this.#lines.join(', ')})`;
    if (this.#end > MAX_BYTES) {
      throw new DeviceError(`${tooLarge}, ${sizes}: use a smaller model, fewer --kv-blocks or smaller --chunk-tokens`);
    }
    const pages = Math.ceil(this.#end / PAGE_BYTES);
    try {
      return new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
    } catch (cause) {
      throw new DeviceError(`this machine has no room for the model: ${sizes}`, { cause });
    }
  }
}

function formatMiB(bytes: number): string {
  return `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}
