/**
 * A block record: one format for staging, wire, DRAM and disk: a preamble, then frames, one per range of layers.
 *
 *   offset
 *   [0, 4)    magic "PKV2"             [48, 64)  chain digest
 *   [4, 8)    preamble bytes           [64, 72)  numerics class, XXH64 of its name
 *   [8, 12)   bytes behind it          [72, 74)  layers
 *   [12, 16)  reserved, 0              [74, 76)  frames
 *   [16, 32)  format digest            [76, 80)  tokens
 *   [32, 40)  key                      [80, 88)  XXH64 of [0, 80)
 *   [40, 48)  parent key               [88, 88 + 32·frames)  what each frame is, then 0 up to a multiple of 256
 *
 *   a frame:  [0, 2) first layer   [2, 4) layers   [4, 6) codec   [6, 8) 0   [8, 12) raw bytes   [12, 16) stored bytes
 *             [16, 24) XXH64 of the raw bytes      [24, 32) XXH64 of the chain digest and [0, 24)
 *
 * All little-endian. Frames lie one behind the other, the raw bytes of all are [layer][plane k, v][token][kv_head][head_dim]. What is
 * said of a frame is bound to its block, so a frame can leave before the last layer is computed, and is verified alone. Codec 0 is none;
 * there is no other yet. No token ids: the disk tier is no log of prompts.
 */
import type { BlockHash, BlockKey, Digest } from './block_key.ts';
import { xxh64 } from '../base/xxh64.ts';
import { aligned } from './stretches.ts';

const MAGIC = 0x32564b50;
const IDENTITY_BYTES = 88;
/** What is said of one frame. */
export const FRAME_BYTES = 32;
const ALIGNMENT = 256;
const MAX_FRAMES = 8;
const NO_CODEC = 0;

/** A smaller frame costs more in calls than it gains in time. */
let minFrameBytes = 64 << 10;

/** For drills: records of a few hundred bytes have several frames too. */
export function narrowFrames(bytes: number): void {
  minFrameBytes = bytes;
}

/** What all records of one format have in common. */
export interface RecordLayout {
  readonly format: Digest;
  readonly numericsClass: string;
  readonly numLayers: number;
  readonly blockSize: number;
  readonly payloadBytes: number;
}

/** A range of layers in a record of some layout. */
export interface FrameRange {
  readonly firstLayer: number;
  readonly numLayers: number;
  /** Of its raw bytes, in the payload. */
  readonly offset: number;
  readonly bytes: number;
}

/** What a record says of one of its frames. */
interface Frame extends FrameRange {
  readonly codec: number;
  readonly rawBytes: number;
  readonly checksum: bigint;
  /** Its description is whole and this block's. */
  readonly isSound: boolean;
}

export interface RecordHeader extends BlockHash {
  readonly format: Digest;
  /** XXH64 of the numerics class's name. */
  readonly numerics: bigint;
  readonly numLayers: number;
  readonly numFrames: number;
  readonly numTokens: number;
  readonly preambleBytes: number;
  readonly storedBytes: number;
}

type Shape = Pick<RecordLayout, 'numLayers' | 'payloadBytes'>;

/** What lies between a preamble and its payload is less. */
const ZEROS = Buffer.alloc(ALIGNMENT);

/** The frames of records of this shape: equal ranges of layers, the last one the rest. */
export function framesOf({ numLayers, payloadBytes }: Shape): FrameRange[] {
  const most = Math.min(MAX_FRAMES, numLayers, Math.max(1, Math.floor(payloadBytes / minFrameBytes)));
  const layersEach = Math.ceil(numLayers / most);
  const layerBytes = payloadBytes / numLayers;
  return Array.from({ length: Math.ceil(numLayers / layersEach) }, (_, i) => {
    const firstLayer = i * layersEach;
    const count = Math.min(layersEach, numLayers - firstLayer);
    return { firstLayer, numLayers: count, offset: firstLayer * layerBytes, bytes: count * layerBytes };
  });
}

function paddedPreamble(numFrames: number): number {
  return aligned(IDENTITY_BYTES + FRAME_BYTES * numFrames, ALIGNMENT);
}

/** Where the payload starts. */
export function preambleBytes(shape: Shape): number {
  return paddedPreamble(framesOf(shape).length);
}

export function recordBytes(shape: Shape): number {
  return preambleBytes(shape) + shape.payloadBytes;
}

/** Stands for a numerics class in records and offers. */
export function numericsId(numericsClass: string): bigint {
  return xxh64(Buffer.from(numericsClass));
}

/** What a record of this block says of a frame: FRAME_BYTES, which may go ahead of the others. `raw`: its bytes. */
export function describeFrame(raw: Uint8Array, { firstLayer, numLayers, bytes }: FrameRange, digest: Digest): Buffer {
  const said = Buffer.alloc(FRAME_BYTES);
  said.writeUInt16LE(firstLayer, 0);
  said.writeUInt16LE(numLayers, 2);
  said.writeUInt16LE(NO_CODEC, 4);
  said.writeUInt32LE(bytes, 8);
  said.writeUInt32LE(bytes, 12);
  said.writeBigUInt64LE(xxh64(raw), 16);
  said.writeBigUInt64LE(frameCheck(said, Buffer.from(digest, 'hex')), 24);
  return said;
}

/**
 * Writes the preamble in front of a payload that is already in place; computes every checksum, but of frames that were `described` before.
 * @returns what {@link contentOf} does.
 */
export function sealRecord(
  record: Uint8Array,
  layout: RecordLayout,
  hash: BlockHash,
  described: readonly Uint8Array[] = [],
): bigint {
  const { numLayers, payloadBytes } = layout;
  const frames = framesOf(layout);
  const size = paddedPreamble(frames.length);
  const preamble = Buffer.alloc(size);
  preamble.writeUInt32LE(MAGIC, 0);
  preamble.writeUInt32LE(size, 4);
  preamble.writeUInt32LE(payloadBytes, 8);
  preamble.write(layout.format, 16, 'hex');
  preamble.writeBigUInt64LE(hash.key, 32);
  preamble.writeBigUInt64LE(hash.parent, 40);
  preamble.write(hash.digest, 48, 'hex');
  preamble.writeBigUInt64LE(numericsId(layout.numericsClass), 64);
  preamble.writeUInt16LE(numLayers, 72);
  preamble.writeUInt16LE(frames.length, 74);
  preamble.writeUInt32LE(layout.blockSize, 76);
  preamble.writeBigUInt64LE(xxh64(preamble.subarray(0, 80)), 80);
  frames.forEach((frame, i) => {
    const start = size + frame.offset;
    const said = described[i] ?? describeFrame(record.subarray(start, start + frame.bytes), frame, hash.digest);
    preamble.set(said, IDENTITY_BYTES + FRAME_BYTES * i);
  });
  record.set(preamble);
  return contentOf(preamble);
}

/** Of what is said of a frame, bound to the block. */
function frameCheck(said: Uint8Array, digest: Uint8Array): bigint {
  checked.fill(0, 0, 16);
  checked.set(digest, 0);
  checked.set(said.subarray(0, 24), 16);
  return xxh64(checked);
}

const checked = new Uint8Array(40);

/** The preamble's identity, or why it is none. Looks at the preamble only, and not at its frames. */
export function readHeader(record: Uint8Array): RecordHeader | { readonly fault: string } {
  if (record.byteLength < ALIGNMENT)
    return { fault: `a record has at least ${ALIGNMENT} bytes, not ${record.byteLength}` };
  const first = Buffer.from(record.buffer, record.byteOffset, ALIGNMENT);
  const view = new DataView(record.buffer, record.byteOffset, ALIGNMENT);
  if (first.readUInt32LE(0) !== MAGIC) return { fault: 'no record magic' };
  const [size, storedBytes, numFrames] = [first.readUInt32LE(4), first.readUInt32LE(8), first.readUInt16LE(74)];
  if (size !== paddedPreamble(numFrames) || size + storedBytes !== record.byteLength) {
    return { fault: `lengths disagree: preamble ${size}, payload ${storedBytes}, record ${record.byteLength}` };
  }
  if (xxh64(first.subarray(0, 80)) !== view.getBigUint64(80, true))
    return { fault: 'the checksum of its head differs' };
  return {
    format: first.toString('hex', 16, 32) as Digest,
    key: view.getBigUint64(32, true) as BlockKey,
    parent: view.getBigUint64(40, true) as BlockKey,
    digest: first.toString('hex', 48, 64) as Digest,
    numerics: view.getBigUint64(64, true),
    numLayers: first.readUInt16LE(72),
    numFrames,
    numTokens: first.readUInt32LE(76),
    preambleBytes: size,
    storedBytes,
  };
}

/** Of a record whose header was read. Offsets are those of stored bytes. */
function readFrames(preamble: Buffer, numFrames: number): Frame[] {
  let offset = 0;
  const digest = preamble.subarray(48, 64);
  return Array.from({ length: numFrames }, (_, i): Frame => {
    const at = IDENTITY_BYTES + FRAME_BYTES * i;
    const frame = readFrame(preamble.subarray(at, at + FRAME_BYTES), digest, offset);
    offset += frame.bytes;
    return frame;
  });
}

function readFrame(said: Buffer, digest: Buffer, offset: number): Frame {
  // A Buffer puts 64 bits together from numbers, which takes longer than the rest of this.
  const view = new DataView(said.buffer, said.byteOffset, FRAME_BYTES);
  return {
    firstLayer: view.getUint16(0, true),
    numLayers: view.getUint16(2, true),
    offset,
    bytes: view.getUint32(12, true),
    codec: view.getUint16(4, true),
    rawBytes: view.getUint32(8, true),
    checksum: view.getBigUint64(16, true),
    isSound: view.getBigUint64(24, true) === frameCheck(said, digest),
  };
}

/** Frames of a sealed record: where they lie in it, and what it says of each, as {@link describeFrame} makes it. */
export function framesIn(
  record: Uint8Array,
): { readonly offset: number; readonly bytes: number; readonly said: Buffer }[] {
  const view = Buffer.from(record.buffer, record.byteOffset, record.byteLength);
  const start = view.readUInt32LE(4);
  return readFrames(view, view.readUInt16LE(74)).map(({ offset, bytes }, i) => {
    const at = IDENTITY_BYTES + FRAME_BYTES * i;
    return { offset: start + offset, bytes, said: Buffer.from(view.subarray(at, at + FRAME_BYTES)) };
  });
}

/** One number for the raw bytes of a sealed record: XXH64 of its frames' checksums. */
export function contentOf(record: Uint8Array): bigint {
  const view = Buffer.from(record.buffer, record.byteOffset, record.byteLength);
  const numFrames = view.readUInt16LE(74);
  const checksums = Buffer.alloc(8 * numFrames);
  for (let i = 0; i < numFrames; i++)
    view.copy(checksums, 8 * i, IDENTITY_BYTES + FRAME_BYTES * i + 16, IDENTITY_BYTES + FRAME_BYTES * i + 24);
  return xxh64(checksums);
}

/** Of a sealed record: which numerics made it. */
export function numericsOf(record: Uint8Array): bigint {
  return Buffer.from(record.buffer, record.byteOffset, IDENTITY_BYTES).readBigUInt64LE(64);
}

interface Wanted {
  readonly format: Digest;
  readonly digest: Digest;
}

/**
 * K2, while a record comes: each frame is verified as soon as it is whole, in the processor's cache still. Nothing is judged twice, and
 * what is judged is what is used: the preamble is kept as it came.
 */
export class ArrivingRecord {
  readonly #record: Uint8Array;
  readonly #want: Wanted | undefined;
  #header: RecordHeader | undefined;
  #frames: readonly Frame[] = [];
  #numVerified = 0;
  #nextLayer = 0;
  #fault: string | undefined;

  /** Without `want`, only the record's own integrity is judged. */
  constructor(record: Uint8Array, want?: Wanted) {
    this.#record = record;
    this.#want = want;
  }

  /** Bytes [0, numHere) are there. */
  took(numHere: number): void {
    if (this.#fault !== undefined) return;
    this.#fault = this.#judge(numHere);
  }

  /** When all of it is there: undefined when it is the wanted block and undamaged, else what is wrong with it. */
  get fault(): string | undefined {
    return this.#fault;
  }

  #judge(numHere: number): string | undefined {
    const isWhole = numHere === this.#record.byteLength;
    if (!this.#header) {
      if (numHere < ALIGNMENT && !isWhole) return undefined;
      const header = readHeader(this.#record);
      if ('fault' in header) return header.fault;
      if (numHere < header.preambleBytes) return undefined;
      if (this.#want && header.format !== this.#want.format) return 'it belongs to another format';
      if (this.#want && header.digest !== this.#want.digest) return 'its chain digest is another: the keys collide';
      const preamble = Buffer.from(this.#record.slice(0, header.preambleBytes));
      this.#header = header;
      this.#frames = readFrames(preamble, header.numFrames);
      const padding = preamble.subarray(IDENTITY_BYTES + FRAME_BYTES * header.numFrames);
      if (!padding.equals(ZEROS.subarray(0, padding.length)))
        return 'there is something between its preamble and its payload';
    }
    const { preambleBytes: start, storedBytes, numLayers } = this.#header;
    for (let frame = this.#frames[this.#numVerified]; frame; frame = this.#frames[this.#numVerified]) {
      if (start + frame.offset + frame.bytes > numHere && !isWhole) return undefined;
      const fault = this.#verify(frame, start, storedBytes);
      if (fault !== undefined) return fault;
      this.#numVerified++;
    }
    if (this.#nextLayer !== numLayers) return `it has ${this.#nextLayer} of ${numLayers} layers`;
    const last = this.#frames.at(-1);
    const end = last ? last.offset + last.bytes : 0;
    return end === storedBytes ? undefined : 'there is more of it than its frames';
  }

  #verify(frame: Frame, start: number, storedBytes: number): string | undefined {
    const { firstLayer, numLayers, offset, bytes, rawBytes } = frame;
    const isStrange = strangeness(frame, this.#nextLayer);
    if (isStrange !== undefined) return isStrange;
    const end = offset + bytes;
    if (firstLayer !== this.#nextLayer || numLayers === 0 || bytes !== rawBytes || end > storedBytes)
      return `its frames do not follow one another at layer ${this.#nextLayer}`;
    this.#nextLayer += numLayers;
    return xxh64(this.#record.subarray(start + offset, start + end)) === frame.checksum
      ? undefined
      : `the checksum of layers ${firstLayer} to ${this.#nextLayer - 1} differs`;
  }
}

/** Of a frame that should begin at `layer`; undefined: it can be read. */
function strangeness({ isSound, codec, firstLayer }: Frame, layer: number): string | undefined {
  if (!isSound) return `what it says of layer ${layer} is damaged, or another block's`;
  if (codec !== NO_CODEC) return `layer ${firstLayer} has codec ${codec}, which is not known here`;
  return undefined;
}

/** K2 of a frame that comes alone, before its record is whole. */
export class ArrivingFrame {
  readonly #raw: Uint8Array;
  readonly #said: Buffer;
  readonly #want: FrameRange & { readonly digest: Digest };
  #fault: string | undefined;

  /** `raw`: where its bytes come; `said`: what {@link describeFrame} makes, as it came. */
  constructor(raw: Uint8Array, said: Uint8Array, want: FrameRange & { readonly digest: Digest }) {
    this.#raw = raw;
    this.#said = Buffer.from(said);
    this.#want = want;
  }

  took(numHere: number): void {
    if (numHere === this.#raw.byteLength) this.#fault = this.#judge();
  }

  get fault(): string | undefined {
    return this.#fault;
  }

  #judge(): string | undefined {
    const { firstLayer, numLayers, bytes, offset, digest } = this.#want;
    if (this.#said.length !== FRAME_BYTES) return 'nothing is said of the frame';
    const frame = readFrame(this.#said, Buffer.from(digest, 'hex'), offset);
    const isStrange = strangeness(frame, firstLayer);
    if (isStrange !== undefined) return isStrange;
    const isOther = frame.firstLayer !== firstLayer || frame.numLayers !== numLayers;
    if (isOther || frame.bytes !== bytes || frame.rawBytes !== bytes) return `it is not of layer ${firstLayer}`;
    const last = firstLayer + numLayers - 1;
    return xxh64(this.#raw) === frame.checksum ? undefined : `the checksum of layers ${firstLayer} to ${last} differs`;
  }
}

/** The same of one that is all there. */
export function verifyRecord(record: Uint8Array, want?: Wanted): string | undefined {
  const arriving = new ArrivingRecord(record, want);
  arriving.took(record.byteLength);
  return arriving.fault;
}
