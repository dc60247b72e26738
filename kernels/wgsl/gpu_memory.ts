/**
 * The device's memory: every allocation in an error scope, with a message that says for what, and how much there is left.
 */
import { freemem } from 'node:os';
import { DeviceError } from '../device.ts';
import { openAdapter, type AdapterListing } from './adapters.ts';
import { polled } from './polling.ts';

const MIB = 1 << 20;
/** Of what is left, this share stays free: the driver's own allocations, and others on the same card. */
const MARGIN = 0.1;
/** A software adapter's memory is the machine's own; it may have as much for KV as the wasm device takes. */
const SOFTWARE_KV_BYTES = 512 * MIB;
const PROBE_BYTES = 1_024 * MIB;
/** No card has more; an endless probe would mean a driver that promises what it does not have. */
const MAX_PROBES = 512;

export function formatMiB(bytes: number): string {
  return `${(bytes / MIB).toFixed(1)} MiB`;
}

export class GpuMemory {
  readonly #device: GPUDevice;
  readonly #sizes = new Map<string, number>();
  readonly #buffers: GPUBuffer[] = [];
  /** Bytes that one binding, and so one buffer here, may have. */
  readonly maxBytes: number;
  /** Weights are split into pieces of this. */
  readonly sliceBytes: number;
  totalBytes = 0;

  constructor(device: GPUDevice, maxSliceBytes = Infinity) {
    this.#device = device;
    const { maxStorageBufferBindingSize, maxBufferSize } = device.limits;
    this.maxBytes = Math.min(maxStorageBufferBindingSize, maxBufferSize);
    this.sliceBytes = Math.min(this.maxBytes, maxSliceBytes);
  }

  /** @throws DeviceError when it is too large for a binding, or the device is full. */
  async allocate(kind: string, label: string, bytes: number, usage: number): Promise<GPUBuffer> {
    // A binding may not be empty, and vectors of 16 bytes are read from it.
    const size = Math.max(16, Math.ceil(bytes / 16) * 16);
    if (size > this.maxBytes) {
      throw new DeviceError(
        `${label} takes ${formatMiB(size)}, this adapter binds at most ${formatMiB(this.maxBytes)}: ` +
          'use fewer --kv-blocks, a smaller --chunk-tokens or a smaller weight format',
      );
    }
    const device = this.#device;
    device.pushErrorScope('out-of-memory');
    device.pushErrorScope('validation');
    let buffer: GPUBuffer | undefined;
    let thrown: unknown;
    try {
      buffer = device.createBuffer({ label, size, usage });
    } catch (error) {
      thrown = error;
    }
    const [invalid, full] = await polled(Promise.all([device.popErrorScope(), device.popErrorScope()]));
    if (!buffer || invalid || full) {
      const why = full ?? invalid ?? thrown;
      const detail =
        why instanceof Error || (why && typeof why === 'object' && 'message' in why) ? String(why.message) : '';
      throw new DeviceError(
        `the device has no room for ${label}: ${formatMiB(size)} wanted, ${this.summary()} taken already${detail ? ` (${detail})` : ''}`,
      );
    }
    this.#buffers.push(buffer);
    this.totalBytes += size;
    this.#sizes.set(kind, (this.#sizes.get(kind) ?? 0) + size);
    return buffer;
  }

  storage(kind: string, label: string, bytes: number): Promise<GPUBuffer> {
    return this.allocate(
      kind,
      label,
      bytes,
      GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST,
    );
  }

  summary(): string {
    return [...this.#sizes].map(([kind, bytes]) => `${kind} ${formatMiB(bytes)}`).join(', ') || 'nothing';
  }

  destroy(): void {
    for (const buffer of this.#buffers) buffer.destroy();
  }
}

/**
 * Bytes that KV blocks may take now, the margin taken off. WebGPU does not say how much memory a card has: a stated budget wins;
 * a software or unified adapter shares the machine's memory; on a card, a second device is filled until it is full, so that the
 * first one never meets an out-of-memory error (after one, Dawn validates every call).
 */
export async function memoryLeft(listing: AdapterListing, memory: GpuMemory, budgetBytes: number): Promise<number> {
  if (budgetBytes > 0) return Math.max(0, budgetBytes - memory.totalBytes);
  if (listing.isSoftware) return Math.min(SOFTWARE_KV_BYTES, freemem() * (1 - MARGIN));
  const { adapter } = await openAdapter(listing);
  if (/apple|intel|qualcomm|arm/i.test(adapter.info.vendor)) return (freemem() / 2) * (1 - MARGIN);
  const maxBufferSize = Math.min(adapter.limits.maxBufferSize, PROBE_BYTES);
  const device = await polled(adapter.requestDevice({ requiredLimits: { maxBufferSize } }));
  const probe = new GpuMemory(device);
  try {
    for (let i = 0; i < MAX_PROBES; i++) {
      await probe.allocate('probe', 'probe', Math.min(maxBufferSize, probe.maxBytes), GPUBufferUsage.COPY_DST);
    }
  } catch (error) {
    if (!(error instanceof DeviceError)) throw error;
  } finally {
    probe.destroy();
    device.destroy();
  }
  return probe.totalBytes * (1 - MARGIN);
}
