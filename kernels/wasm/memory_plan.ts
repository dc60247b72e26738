/** Where everything lies in the one shared memory: a bump allocator that only plans. Offsets are bytes, ranges half-open. */
import { DeviceError } from '../device.ts';

const PAGE_BYTES = 65_536;
/** A 32-bit memory ends here; a larger one (memory64) checks every access and would slow every model; int4 holds 7 billion weights and nothing else. */
const MAX_BYTES = 65_536 * PAGE_BYTES;

export class MemoryPlan {
  // Offset 0 stays unused, so that 0 can mean "none".
  #end = 64;
  readonly #bytes = new Map<string, number>();

  /** Reserves `bytes`, aligned to 64, and returns the offset; `what` sums up in messages. */
  reserve(what: string, bytes: number): number {
    const offset = this.#end;
    this.#end = Math.ceil((offset + bytes) / 64) * 64;
    this.#bytes.set(what, (this.#bytes.get(what) ?? 0) + this.#end - offset);
    return offset;
  }

  get totalBytes(): number {
    return this.#end;
  }

  /** @throws DeviceError when it does not fit, with the sizes. */
  allocate(): WebAssembly.Memory {
    const largest = [...this.#bytes].filter(([, bytes]) => bytes > 1 << 20).sort(([, a], [, b]) => b - a);
    const sizes = `${formatMiB(this.#end)} needed (${largest.map(([what, bytes]) => `${what} ${formatMiB(bytes)}`).join(', ')})`;
    if (this.#end > MAX_BYTES) {
      throw new DeviceError(
        `the wasm device addresses at most ${formatMiB(MAX_BYTES)}, ${sizes}: ` +
          'use a smaller --weights format (int4 is the smallest), fewer --kv-blocks, smaller --chunk-tokens, a smaller model or a GPU',
      );
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
