/**
 * A record: what a request leaves behind for others at one block, in one format for staging, wire, DRAM and disk: a preamble, then frames,
 * one per range of layers. All little-endian.
 *
 *   offset
 *   [0, 4)    magic "PKV4"             [48, 64)  chain digest
 *   [4, 8)    preamble bytes           [64, 72)  numerics class, XXH64 of its name
 *   [8, 12)   bytes after it           [72, 74)  layers
 *   [12, 16)  kind: 0 block, 1 state   [74, 76)  frames
 *   [16, 32)  format digest            [76, 80)  tokens
 *   [32, 40)  key                      [80, 96)  tenant: TenantId, 0 for blocks that are shared
 *   [40, 48)  parent key               [96, 104) XXH64 of [0, 96)
 *   [104, 104 + 32·frames)  frame headers (frame_header.ts), then 0 up to a multiple of 256
 *
 * Frames lie one after the other. A *block record* holds the KV of a full block: the raw bytes of its frames are
 * [layer][plane][token][value]. A *state record* holds the recurrent state of a hybrid model at the end of a full block, and is named by
 * {@link stateHashOf} that block. There are no token ids in it, but whoever has the weights can compute them from the values of the first layer:
 * records are as private as prompts, and so are the files that hold them.
 */
import { createHash } from 'node:crypto';
import { xxh64 } from '../base/xxh64.ts';
import { SHARED, type BlockHash, type BlockKey, type Digest, type TenantId } from './block_key.ts';
import { decodeFrameHeader, encodeFrameHeader, headerFault, type FrameHeader } from './frame_header.ts';
import { FRAME_HEADER_BYTES, IDENTITY_BYTES, preambleBytesFor, type KvSpec, type RecordShape } from './kv_spec.ts';

const MAGIC = 0x34564b50;
/** Least bytes of a preamble; the record's whole identity lies within them. */
const MIN_PREAMBLE_BYTES = 256;

/** Kind of a record: the KV of a block, or the recurrent state at a block's end. The number in the preamble is the index in `kinds`. */
export type RecordKind = 'block' | 'state';
const kinds: readonly RecordKind[] = ['block', 'state'];

/** Returns the kind of record that the hash names. */
export function kindOf({ kind }: BlockHash): RecordKind {
  return kind ?? 'block';
}

/** Properties that all records of one engine share. */
export interface RecordLayout {
  readonly format: Digest;
  readonly numericsClass: string;
  readonly spec: KvSpec;
}

/** Returns frames and sizes of the records of a kind. @throws Error when the model has none of that kind. */
export function recordShapeOf(spec: KvSpec, kind: RecordKind = 'block'): RecordShape {
  if (kind === 'block') return spec;
  if (!spec.state) throw new Error('the model has no recurrent state');
  return spec.state;
}

/**
 * Returns the hash that names the state at the end of a block. K1, K2 and K3 hold for states as for blocks; key and digest differ from
 * the block's.
 */
export function stateHashOf({ key, digest, tenant }: BlockHash): BlockHash {
  const named = Buffer.concat([Buffer.from(digest, 'hex'), STATE]);
  const own = createHash('sha256').update(named).digest('hex').slice(0, 32) as Digest;
  const hash = { key: xxh64(Buffer.from(own, 'hex')) as BlockKey, parent: key, digest: own, kind: 'state' } as const;
  return tenant === undefined ? hash : { ...hash, tenant };
}

const STATE = Buffer.from('state');

/** Identity of a record, as its preamble has it. */
export interface RecordHeader extends Omit<BlockHash, 'kind' | 'tenant'> {
  readonly kind: RecordKind;
  /** The tenant whose block it is; {@link SHARED} for a block that is shared. */
  readonly tenant: TenantId;
  readonly format: Digest;
  /** XXH64 of the numerics class's name. */
  readonly numerics: bigint;
  readonly numLayers: number;
  readonly numFrames: number;
  readonly numTokens: number;
  readonly preambleBytes: number;
  readonly storedBytes: number;
}

/** Zeros that the padding after the frame headers must equal; the padding is always shorter than this. */
const ZEROS = Buffer.alloc(MIN_PREAMBLE_BYTES);

/** Returns the number of a numerics class in records and offers: XXH64 of its name. */
export function numericsId(numericsClass: string): bigint {
  return xxh64(Buffer.from(numericsClass));
}

/**
 * Writes the preamble in front of a payload that is already in place. Computes the header of every frame i, unless `headers[i]`
 * has it, encoded by {@link encodeFrameHeader}.
 * @returns the record's content hash; see {@link contentHashOf}
 */
export function sealRecord(
  record: Uint8Array,
  { spec, format, numericsClass }: RecordLayout,
  hash: BlockHash,
  headers: readonly Uint8Array[] = [],
  kind = kindOf(hash),
): bigint {
  const { frames, preambleBytes } = recordShapeOf(spec, kind);
  const preamble = Buffer.alloc(preambleBytes);
  preamble.writeUInt32LE(MAGIC, 0);
  preamble.writeUInt32LE(preambleBytes, 4);
  preamble.writeUInt32LE(record.length - preambleBytes, 8);
  preamble.writeUInt32LE(kinds.indexOf(kind), 12);
  preamble.write(format, 16, 'hex');
  preamble.writeBigUInt64LE(hash.key, 32);
  preamble.writeBigUInt64LE(hash.parent, 40);
  preamble.write(hash.digest, 48, 'hex');
  preamble.writeBigUInt64LE(numericsId(numericsClass), 64);
  preamble.writeUInt16LE(spec.numLayers, 72);
  preamble.writeUInt16LE(frames.length, 74);
  preamble.writeUInt32LE(spec.blockSize, 76);
  preamble.write(hash.tenant ?? SHARED, 80, 'hex');
  preamble.writeBigUInt64LE(xxh64(preamble.subarray(0, 96)), 96);
  frames.forEach((frame, i) => {
    const raw = record.subarray(frame.slotOffset, frame.slotOffset + frame.rawBytes);
    preamble.set(headers[i] ?? encodeFrameHeader(raw, frame, hash.digest), headerAt(i));
  });
  record.set(preamble);
  return contentHashOf(preamble);
}

/** Returns the byte offset of frame `i`'s header in a preamble. */
function headerAt(i: number): number {
  return IDENTITY_BYTES + FRAME_HEADER_BYTES * i;
}

/** Returns the identity in a record's preamble, or why the preamble is invalid. Does not check the frame headers. */
export function readHeader(record: Uint8Array): RecordHeader | { readonly fault: string } {
  if (record.byteLength < MIN_PREAMBLE_BYTES)
    return { fault: `a record has at least ${MIN_PREAMBLE_BYTES} bytes, not ${record.byteLength}` };
  const first = Buffer.from(record.buffer, record.byteOffset, MIN_PREAMBLE_BYTES);
  const view = new DataView(record.buffer, record.byteOffset, MIN_PREAMBLE_BYTES);
  if (first.readUInt32LE(0) !== MAGIC) return { fault: 'no record magic' };
  const [preambleBytes, storedBytes, numFrames] = [
    first.readUInt32LE(4),
    first.readUInt32LE(8),
    first.readUInt16LE(74),
  ];
  if (preambleBytes !== preambleBytesFor(numFrames) || preambleBytes + storedBytes !== record.byteLength) {
    return {
      fault: `lengths disagree: preamble ${preambleBytes}, payload ${storedBytes}, record ${record.byteLength}`,
    };
  }
  if (xxh64(first.subarray(0, 96)) !== view.getBigUint64(96, true))
    return { fault: 'the checksum of its head differs' };
  const kind = kinds[first.readUInt32LE(12)];
  if (kind === undefined) return { fault: `it is of kind ${first.readUInt32LE(12)}, which is not known here` };
  return {
    kind,
    format: first.toString('hex', 16, 32) as Digest,
    key: view.getBigUint64(32, true) as BlockKey,
    parent: view.getBigUint64(40, true) as BlockKey,
    digest: first.toString('hex', 48, 64) as Digest,
    numerics: view.getBigUint64(64, true),
    numLayers: first.readUInt16LE(72),
    numFrames,
    numTokens: first.readUInt32LE(76),
    tenant: tenantIn(first),
    preambleBytes,
    storedBytes,
  };
}

/** Returns whether a sealed record holds a recurrent state. */
export function isStateRecord(record: Uint8Array): boolean {
  const view = new DataView(record.buffer, record.byteOffset, record.byteLength);
  return view.byteLength >= MIN_PREAMBLE_BYTES && view.getUint32(0, true) === MAGIC && view.getUint32(12, true) === 1;
}

/** Returns each frame of a sealed record: its byte offset in the record, its stored bytes, and its header. */
export function framesIn(
  record: Uint8Array,
): { readonly offset: number; readonly storedBytes: number; readonly header: Buffer }[] {
  const view = Buffer.from(record.buffer, record.byteOffset, record.byteLength);
  const digest = view.subarray(48, 64);
  let offset = view.readUInt32LE(4);
  return Array.from({ length: view.readUInt16LE(74) }, (_, i) => {
    const header = Buffer.from(view.subarray(headerAt(i), headerAt(i + 1)));
    const { storedBytes } = decodeFrameHeader(header, digest);
    offset += storedBytes;
    return { offset: offset - storedBytes, storedBytes, header };
  });
}

/** Returns the content hash of a sealed record: XXH64 of its frames' checksums. */
export function contentHashOf(record: Uint8Array): bigint {
  const view = Buffer.from(record.buffer, record.byteOffset, record.byteLength);
  const numFrames = view.readUInt16LE(74);
  const checksums = Buffer.alloc(8 * numFrames);
  for (let i = 0; i < numFrames; i++) view.copy(checksums, 8 * i, headerAt(i) + 16, headerAt(i) + 24);
  return xxh64(checksums);
}

/** Returns the tenant whose block a sealed record holds; {@link SHARED} for a block that is shared. */
export function tenantOf(record: Uint8Array): TenantId {
  return tenantIn(Buffer.from(record.buffer, record.byteOffset, IDENTITY_BYTES));
}

function tenantIn(identity: Buffer): TenantId {
  return identity.toString('hex', 80, 96) as TenantId;
}

/** Returns the number of the numerics class that computed a sealed record; see {@link numericsId}. */
export function numericsOf(record: Uint8Array): bigint {
  return Buffer.from(record.buffer, record.byteOffset, IDENTITY_BYTES).readBigUInt64LE(64);
}

interface Wanted {
  readonly format: Digest;
  readonly digest: Digest;
}

/**
 * Verifies a record while it arrives (K2): each frame as soon as it is complete, while the processor's cache still has it. Nothing is
 * verified twice. The preamble is copied when it arrives, so later changes of the memory have no effect on the checks.
 */
export class RecordVerifier {
  readonly #record: Uint8Array;
  readonly #want: Wanted | undefined;
  #header: RecordHeader | undefined;
  #frames: readonly FrameHeader[] = [];
  #numVerified = 0;
  /** First layer of the frame that is verified next, and its byte offset after the preamble. */
  #next = { layer: 0, offset: 0 };
  #fault: string | undefined;

  /** Without `want`, only the record's own integrity is verified. */
  constructor(record: Uint8Array, want?: Wanted) {
    this.#record = record;
    this.#want = want;
  }

  /** The first `numBytes` of the record have arrived. */
  received(numBytes: number): void {
    if (this.#fault !== undefined) return;
    this.#fault = this.#verify(numBytes);
  }

  /**
   * Why the record cannot be used, as soon as a fault is found; undefined once all of it has arrived undamaged and is the wanted
   * block.
   */
  get fault(): string | undefined {
    return this.#fault;
  }

  #verify(numBytes: number): string | undefined {
    const isWhole = numBytes === this.#record.byteLength;
    if (!this.#header) {
      if (numBytes < MIN_PREAMBLE_BYTES && !isWhole) return undefined;
      const header = readHeader(this.#record);
      if ('fault' in header) return header.fault;
      if (numBytes < header.preambleBytes) return undefined;
      const fault = this.#readPreamble(header);
      if (fault !== undefined) return fault;
      this.#header = header;
    }
    const { preambleBytes, storedBytes, numLayers } = this.#header;
    for (let frame = this.#frames[this.#numVerified]; frame; frame = this.#frames[this.#numVerified]) {
      const start = preambleBytes + this.#next.offset;
      if (start + frame.storedBytes > numBytes && !isWhole) return undefined;
      const fault = this.#verifyFrame(frame, start);
      if (fault !== undefined) return fault;
      this.#numVerified++;
    }
    const { layer, offset } = this.#next;
    if (layer !== numLayers) return `it has ${layer} of ${numLayers} layers`;
    return offset === storedBytes ? undefined : 'the record is longer than its frames';
  }

  #readPreamble(header: RecordHeader): string | undefined {
    if (this.#want && header.format !== this.#want.format) return 'it belongs to another format';
    if (this.#want && header.digest !== this.#want.digest) return 'its chain digest is another: the keys collide';
    const preamble = Buffer.from(this.#record.slice(0, header.preambleBytes));
    const digest = preamble.subarray(48, 64);
    this.#frames = Array.from({ length: header.numFrames }, (_, i) =>
      decodeFrameHeader(preamble.subarray(headerAt(i), headerAt(i + 1)), digest),
    );
    const padding = preamble.subarray(headerAt(header.numFrames));
    const isZero = padding.equals(ZEROS.subarray(0, padding.length));
    return isZero ? undefined : 'the padding between its preamble and its payload is not zero';
  }

  #verifyFrame(frame: FrameHeader, start: number): string | undefined {
    const { layer } = this.#next;
    const fault = headerFault(frame, layer);
    if (fault !== undefined) return fault;
    const { firstLayer, numLayers, storedBytes } = frame;
    const end = start + storedBytes;
    if (firstLayer !== layer || numLayers === 0 || end > this.#record.byteLength)
      return `its frames do not follow one another at layer ${layer}`;
    this.#next = { layer: layer + numLayers, offset: this.#next.offset + storedBytes };
    return xxh64(this.#record.subarray(start, end)) === frame.checksum
      ? undefined
      : `the checksum of layers ${firstLayer} to ${this.#next.layer - 1} differs`;
  }
}

/** Returns why a complete record cannot be used, or undefined when it can. */
export function verifyRecord(record: Uint8Array, want?: Wanted): string | undefined {
  const verifier = new RecordVerifier(record, want);
  verifier.received(record.byteLength);
  return verifier.fault;
}
