/**
 * The header of one frame of a record, bound to the record's block: a frame can leave before the last layer is computed, and is verified
 * alone. All little-endian.
 *
 *   [0, 2) first layer   [2, 4) layers   [4, 6) codec   [6, 8) 0   [8, 12) raw bytes   [12, 16) stored bytes
 *   [16, 24) XXH64 of the raw bytes      [24, 32) XXH64 of the chain digest and [0, 24)
 */
import { xxh64 } from '../base/xxh64.ts';
import type { Digest } from './block_key.ts';
import { codecNamed, codecOf } from './codec.ts';
import { FRAME_HEADER_BYTES, type FrameSpec } from './kv_spec.ts';

/** A decoded frame header. Only values that were compared with expected ones can be trusted. */
export interface FrameHeader {
  readonly firstLayer: number;
  readonly numLayers: number;
  readonly codec: number;
  readonly rawBytes: number;
  readonly storedBytes: number;
  /** XXH64 of the raw bytes. */
  readonly checksum: bigint;
  /** Whether the header is undamaged and belongs to the block whose digest it was decoded with. */
  readonly isValid: boolean;
}

/** Layers and sizes that a frame must have to be accepted. */
export type WantedFrame = Pick<FrameSpec, 'firstLayer' | 'numLayers' | 'rawBytes' | 'maxStoredBytes'>;

/** Returns the header (FRAME_HEADER_BYTES) of a frame of the block with chain digest `digest`. `raw` holds the frame's raw bytes. */
export function encodeFrameHeader(
  raw: Uint8Array,
  { firstLayer, numLayers, codec }: Pick<FrameSpec, 'firstLayer' | 'numLayers' | 'codec'>,
  digest: Digest,
): Buffer {
  const header = Buffer.alloc(FRAME_HEADER_BYTES);
  header.writeUInt16LE(firstLayer, 0);
  header.writeUInt16LE(numLayers, 2);
  header.writeUInt16LE(codecNamed(codec).id, 4);
  header.writeUInt32LE(raw.length, 8);
  header.writeUInt32LE(raw.length, 12);
  header.writeBigUInt64LE(xxh64(raw), 16);
  header.writeBigUInt64LE(headerChecksum(header, Buffer.from(digest, 'hex')), 24);
  return header;
}

/** Decodes a header of a frame of the block with chain digest `digest` (16 bytes). */
export function decodeFrameHeader(header: Buffer, digest: Uint8Array): FrameHeader {
  // DataView is used because Buffer assembles 64-bit numbers from smaller ones, which takes longer than the rest of this function.
  const view = new DataView(header.buffer, header.byteOffset, FRAME_HEADER_BYTES);
  return {
    firstLayer: view.getUint16(0, true),
    numLayers: view.getUint16(2, true),
    codec: view.getUint16(4, true),
    rawBytes: view.getUint32(8, true),
    storedBytes: view.getUint32(12, true),
    checksum: view.getBigUint64(16, true),
    isValid: view.getBigUint64(24, true) === headerChecksum(header, digest),
  };
}

const checked = new Uint8Array(40);

function headerChecksum(header: Uint8Array, digest: Uint8Array): bigint {
  checked.fill(0, 0, 16);
  checked.set(digest, 0);
  checked.set(header.subarray(0, 24), 16);
  return xxh64(checked);
}

/** Returns why a frame with this header, expected to begin at layer `layer`, cannot be read; undefined when it can. */
export function headerFault(header: FrameHeader, layer: number): string | undefined {
  const { isValid, codec: id, firstLayer, rawBytes, storedBytes } = header;
  if (!isValid) return `the header of the frame at layer ${layer} is damaged, or another block's`;
  const codec = codecOf(id);
  if (!codec) return `layer ${firstLayer} has codec ${id}, which is not known here`;
  const fault = codec.sizeFault(rawBytes, storedBytes);
  return fault === undefined ? undefined : `its frame at layer ${firstLayer} has a wrong size: ${fault}`;
}

/** Verifies a single frame (K2) that arrives before its record is complete. */
export class FrameVerifier {
  readonly #raw: Uint8Array;
  readonly #header: Buffer;
  readonly #want: WantedFrame & { readonly digest: Digest };
  #fault: string | undefined;

  /** `raw` is the memory that receives the frame's bytes, `header` the header as it arrived, encoded by {@link encodeFrameHeader}. */
  constructor(raw: Uint8Array, header: Uint8Array, want: WantedFrame & { readonly digest: Digest }) {
    this.#raw = raw;
    this.#header = Buffer.from(header);
    this.#want = want;
  }

  /** The first `numBytes` of the frame have arrived. */
  received(numBytes: number): void {
    if (numBytes === this.#raw.byteLength) this.#fault = this.#verify();
  }

  /** Why the frame cannot be used, once all of it has arrived; undefined when it is undamaged and the wanted one. */
  get fault(): string | undefined {
    return this.#fault;
  }

  #verify(): string | undefined {
    const { firstLayer, numLayers, rawBytes, maxStoredBytes, digest } = this.#want;
    if (this.#header.length !== FRAME_HEADER_BYTES) return 'the frame has no header';
    const header = decodeFrameHeader(this.#header, Buffer.from(digest, 'hex'));
    const fault = headerFault(header, firstLayer);
    if (fault !== undefined) return fault;
    const isOther = header.firstLayer !== firstLayer || header.numLayers !== numLayers;
    if (isOther || header.rawBytes !== rawBytes || header.storedBytes > maxStoredBytes)
      return `it is not of layer ${firstLayer}, or has other layers or sizes than expected`;
    const last = firstLayer + numLayers - 1;
    return xxh64(this.#raw) === header.checksum ? undefined : `the checksum of layers ${firstLayer} to ${last} differs`;
  }
}
