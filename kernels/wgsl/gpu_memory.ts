/** Allocates the device's memory, every buffer in an error scope so that messages can name it, and finds out how much memory is left. */
import { execFile } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { freemem, totalmem } from 'node:os';
import { DeviceError } from '../device.ts';
import type { MemoryRoom } from '../memory_needs.ts';
import { openAdapter, type AdapterListing } from './adapters.ts';
import { polled } from './polling.ts';

const MIB = 1 << 20;
/** Share of the remaining memory that stays free, for the driver's own allocations and other users of the card. */
const MARGIN = 0.1;
/** A software adapter's memory is the machine's own; it may have as much for KV as the wasm device takes. */
const SOFTWARE_KV_BYTES = 512 * MIB;
const MAX_PROBE_BYTES = 1_024 * MIB;
const MIN_PROBE_BYTES = 16 * MIB;
/** Limit of a probe: no GPU has more memory, and a driver that promises what it does not have would make the probe endless. */
const MOST_BYTES = 2 ** 40;
/** A driver's tool answers within this, or counts as not there. */
const QUERY_MS = 5_000;
const DRM = '/sys/class/drm';

/** Returns a byte count in MiB with one decimal, for messages. */
export function formatMiB(bytes: number): string {
  return `${(bytes / MIB).toFixed(1)} MiB`;
}

/** Allocates the device's buffers, and counts their bytes by kind. Every allocation runs in an error scope. */
export class GpuMemory {
  readonly #device: GPUDevice;
  readonly #sizes = new Map<string, number>();
  readonly #buffers: GPUBuffer[] = [];
  /** Bytes that one binding, and so one buffer here, may have. */
  readonly maxBytes: number;
  /** Maximum bytes of a weight slice. */
  readonly sliceBytes: number;
  totalBytes = 0;

  constructor(device: GPUDevice, maxSliceBytes = Infinity) {
    this.#device = device;
    const { maxStorageBufferBindingSize, maxBufferSize } = device.limits;
    this.maxBytes = Math.min(maxStorageBufferBindingSize, maxBufferSize);
    this.sliceBytes = Math.min(this.maxBytes, maxSliceBytes);
  }

  /**
   * Allocates a buffer of at least `bytes`, counted under `kind`. @throws DeviceError when the buffer is too large for a binding, or
   * the device is full.
   */
  async allocate(kind: string, label: string, bytes: number, usage: number): Promise<GPUBuffer> {
    // A binding may not be empty, and vectors of 16 bytes are read from it.
    const size = Math.max(16, Math.ceil(bytes / 16) * 16);
    if (size > this.maxBytes) {
      throw new DeviceError(
        `${label} takes ${formatMiB(size)}, but a buffer on this adapter has at most ${formatMiB(this.maxBytes)}: ` +
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
        `the device has no memory left for ${label}: it needs ${formatMiB(size)}, already allocated are ${this.summary()}${detail ? ` (${detail})` : ''}. ` +
          'Use a smaller --weights format or --max-model-len, or stop other programs that use the device',
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
 * Returns the bytes that are known without querying the GPU: the stated budget, or the machine's free memory for a software adapter;
 * else Infinity.
 */
export function knownLimit({ isSoftware }: AdapterListing, budgetBytes: number): number {
  if (budgetBytes > 0) return budgetBytes;
  return isSoftware ? freemem() : Infinity;
}

/** Inputs of {@link memoryLeft}. */
export interface MemoryQuestion {
  readonly listing: AdapterListing;
  /** Bytes that this engine has allocated already. */
  readonly takenBytes: number;
  /** Bytes that the engine may use in all; 0 to find out what the device has. */
  readonly budgetBytes: number;
  /** Engines that this adapter is divided among. */
  readonly numSharing: number;
  /** Bytes that the engine wants; a probe stops there. */
  readonly wantedBytes: number;
}

/**
 * Returns the bytes that this engine may still allocate. WebGPU does not report how much memory a card has. A stated budget wins; a
 * software or unified adapter shares the machine's memory; a card's driver is asked; at last, and only for an engine that has the
 * card to itself, a second device is filled until it is full (the first one must not meet an out-of-memory error: after one, Dawn
 * validates every call).
 *
 * @throws DeviceError when several engines share a card whose memory size cannot be found out.
 */
export async function memoryLeft(question: MemoryQuestion): Promise<number> {
  const { listing, takenBytes, budgetBytes, numSharing, wantedBytes } = question;
  if (budgetBytes > 0) return Math.max(0, budgetBytes - takenBytes);
  if (listing.isSoftware) return Math.min(SOFTWARE_KV_BYTES, freemem() * (1 - MARGIN));
  const card = await cardMemory(listing);
  if (card) {
    const share = shareOf(card, numSharing) - takenBytes;
    return Math.max(0, Math.min(share, card.freeBytes * (1 - MARGIN)));
  }
  refuseUnknownShare(listing, numSharing);
  return (await probe(listing, wantedBytes)) * (1 - MARGIN);
}

/** @throws DeviceError when several engines share a card whose memory size cannot be found out. */
function refuseUnknownShare({ name }: AdapterListing, numSharing: number): void {
  if (numSharing > 1) {
    throw new DeviceError(
      `${numSharing} engines share ${name}, and its memory size cannot be found out: set each engine's share with --device-memory`,
    );
  }
}

/** Returns the bytes of a card that each of the engines on it may take. */
function shareOf({ totalBytes }: CardMemory, numSharing: number): number {
  return (totalBytes * (1 - MARGIN)) / numSharing;
}

/** Returns the memory of a GPU; undefined where only filling it would tell. A GPU that shares the machine's memory may take half. */
async function cardMemory(listing: AdapterListing): Promise<CardMemory | undefined> {
  if (isUnified(listing)) return { totalBytes: totalmem() / 2, freeBytes: Infinity };
  return (await nvidiaMemory(listing)) ?? amdMemory(listing);
}

/** Tells what a card has: the operating system, and the memory that its driver states (undefined where it states none). */
interface CardQuery {
  readonly platform: NodeJS.Platform;
  readonly memoryOf: (listing: AdapterListing) => Promise<CardMemory | undefined>;
}

/** Inputs of {@link memoryRoom}. */
interface RoomQuestion {
  /** Bytes that the engine may use in all; 0 to find out what the device has. */
  readonly budgetBytes: number;
  /** Engines that this adapter is divided among. */
  readonly numSharing: number;
  /** Replaced in tests, which have no such cards. */
  readonly cards?: CardQuery;
}

/**
 * Returns the room for a program whose KV blocks fill what the weights leave (`isFilling`), or are a fixed number. Never less than
 * {@link memoryLeft} finds after the weights are loaded; a fixed number of blocks may take a card's memory to the last byte, and more
 * where its driver spills into the machine's memory.
 *
 * @throws DeviceError when several engines share a card whose memory size cannot be found out.
 */
export async function memoryRoom(
  listing: AdapterListing,
  { budgetBytes, numSharing, cards = { platform: process.platform, memoryOf: cardMemory } }: RoomQuestion,
  isFilling: boolean,
): Promise<MemoryRoom> {
  if (budgetBytes > 0) {
    // Engines that state their parts may share a card whose size is unknown, so it is asked for as a whole.
    const unbounded = async (): Promise<MemoryRoom> => {
      const whole = await memoryRoom(listing, { budgetBytes: 0, numSharing: 1, cards }, isFilling);
      return { ...whole, total: whole.total / numSharing };
    };
    return { total: budgetBytes, free: Infinity, kv: Infinity, whose: '--device-memory allows', unbounded };
  }
  if (listing.isSoftware) {
    const kv = isFilling ? SOFTWARE_KV_BYTES : Infinity;
    return { total: totalmem(), free: freemem(), kv, whose: 'this machine has' };
  }
  const card = isFilling || !maySpill(listing, cards.platform) ? await cards.memoryOf(listing) : undefined;
  if (card && isFilling) {
    const whose =
      numSharing > 1 ? `each of ${numSharing} engines on ${listing.name} may take` : `${listing.name} leaves`;
    return { total: shareOf(card, numSharing), free: card.freeBytes, kv: Infinity, whose };
  }
  if (card) {
    const total = isUnified(listing) ? totalmem() : card.totalBytes;
    return { total, free: Infinity, kv: Infinity, whose: `${listing.name} has` };
  }
  if (isFilling) refuseUnknownShare(listing, numSharing);
  return { total: Infinity, free: Infinity, kv: Infinity, whose: `${listing.name} has` };
}

/** Whether the GPU shares the machine's memory, judged by its name. */
function isUnified({ name }: AdapterListing): boolean {
  return /apple|adreno|mali|intel(?!.*\barc\b)/i.test(name);
}

/**
 * Whether a buffer may lie in the machine's memory when the card is full, so that the card's size is no limit: everywhere but on Linux
 * with NVIDIA's own driver. AMD's cards in processors also state only the small part of the memory that is set aside for them.
 */
function maySpill(listing: AdapterListing, platform: NodeJS.Platform): boolean {
  if (isUnified(listing)) return false;
  return platform !== 'linux' || !isNvidia(listing) || /direct3d/i.test(listing.name);
}

/** Whether the GPU is one of NVIDIA's, judged by its name. */
function isNvidia({ name }: AdapterListing): boolean {
  return /nvidia|geforce|quadro|tesla|rtx/i.test(name);
}

interface CardMemory {
  readonly totalBytes: number;
  readonly freeBytes: number;
}

/** Reads the card's memory from nvidia-smi; undefined where the tool is missing or lists no card of this name. */
async function nvidiaMemory(listing: AdapterListing): Promise<CardMemory | undefined> {
  if (!isNvidia(listing)) return undefined;
  const query = ['--query-gpu=name,memory.total,memory.free', '--format=csv,noheader,nounits'];
  const text = await new Promise<string>((resolve) => {
    execFile('nvidia-smi', query, { timeout: QUERY_MS }, (error, stdout) => {
      resolve(error ? '' : stdout);
    });
  });
  return parseNvidiaMemory(text, listing.name);
}

/**
 * Parses lines of `NAME, TOTAL MiB, FREE MiB`. Returns the memory of the first card of this name; without one, of the card whose name
 * is part of it, or has it as a part, and is the nearest in length; undefined when there is none.
 */
export function parseNvidiaMemory(text: string, name: string): CardMemory | undefined {
  const cards = text
    .split('\n')
    .map((line) => line.split(',').map((part) => part.trim()))
    .filter(([cardName = '']) => cardName !== '' && (name.includes(cardName) || cardName.includes(name)))
    .map(([cardName = '', total, free]) => ({
      distance: Math.abs(cardName.length - name.length),
      memory: { totalBytes: Number(total) * MIB, freeBytes: Number(free) * MIB },
    }))
    .filter(({ memory }) => Number.isFinite(memory.totalBytes) && Number.isFinite(memory.freeBytes))
    .sort((a, b) => a.distance - b.distance);
  return cards[0]?.memory;
}

/**
 * Reads an AMD card's memory from sysfs; undefined unless there is exactly one card, since several cannot be told apart by the
 * adapter's name.
 */
function amdMemory({ name }: AdapterListing): CardMemory | undefined {
  if (!/amd|radeon|instinct/i.test(name) || !existsSync(DRM)) return undefined;
  const read = (card: string, file: string): number => Number(readFileSync(`${DRM}/${card}/device/${file}`, 'utf8'));
  const [card, another] = readdirSync(DRM).filter(
    (entry) => /^card\d+$/.test(entry) && existsSync(`${DRM}/${entry}/device/mem_info_vram_total`),
  );
  if (card === undefined || another !== undefined) return undefined;
  const totalBytes = read(card, 'mem_info_vram_total');
  return { totalBytes, freeBytes: totalBytes - read(card, 'mem_info_vram_used') };
}

/**
 * Measures the free memory by filling a separate device with buffers, which halve in size when one no longer fits. Returns the bytes
 * that fitted.
 */
async function probe(listing: AdapterListing, wantedBytes: number): Promise<number> {
  const { adapter } = await openAdapter(listing);
  const { maxBufferSize, maxStorageBufferBindingSize } = adapter.limits;
  const device = await polled(
    adapter.requestDevice({ requiredLimits: { maxBufferSize, maxStorageBufferBindingSize } }),
  );
  const memory = new GpuMemory(device);
  for (let size = Math.min(memory.maxBytes, MAX_PROBE_BYTES); size >= MIN_PROBE_BYTES;) {
    if (memory.totalBytes > wantedBytes || memory.totalBytes > MOST_BYTES) break;
    try {
      await memory.allocate('probe', 'probe', size, GPUBufferUsage.COPY_DST);
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      size = Math.floor(size / 2 / 16) * 16;
    }
  }
  memory.destroy();
  device.destroy();
  return memory.totalBytes;
}
