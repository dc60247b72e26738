/**
 * Messages of a data channel: a socket that carries records and nothing else. Fetch calls announce which records can be had and when. A
 * data channel is opened once, with a token from an OpenChannel reply.
 *
 *   asker → holder   token (CHANNEL_TOKEN_BYTES), then asks: [stream u32][index u32], of records, or of frames of them (frameIdOf)
 *   holder → asker   a welcome, then records, each after a head: [stream u32][index u32][bytes u32][magic u32][place f64]
 *
 * All values are little-endian. A welcome is a head with 0 bytes. Where both ends share memory (host_memory.ts), a record is not sent:
 * its head carries its offset there, and the asker repeats the ask, with READ set in its stream, when the record has been read. Before
 * that, an ask of stream MEMORY_STREAM reports that the asker has the memory open. An ask is answered once the record has been offered.
 * An ask of a stream that is over is not answered; the Fetch call reports the reason.
 */
export const CHANNEL_TOKEN_BYTES = 32;
/** Bytes of an ask, as laid out above. */
export const ASK_BYTES = 8;
/** Bytes of a record head, as laid out above. */
export const HEAD_BYTES = 24;
const MAGIC = 0x334c4b50;
/** Value of `place` in the head of a record that follows on the socket. */
const NO_OFFSET = -1;
/** Stream number of the ask which reports that the asker has the shared memory open. */
export const MEMORY_STREAM = 0;
/** Bit in the stream number of an ask which reports that the record has been read. */
export const READ = 0x8000_0000;

/** Head of a record that follows on the socket, or that lies in shared memory. */
export interface RecordHead {
  readonly stream: number;
  readonly index: number;
  readonly bytes: number;
  /** Byte offset of the record in the holder's shared memory; undefined when the record follows on the socket. */
  readonly offset?: number | undefined;
}

/** Encodes a record head of HEAD_BYTES. */
export function headOf({ stream, index, bytes, offset = NO_OFFSET }: RecordHead): Buffer {
  const head = Buffer.allocUnsafe(HEAD_BYTES);
  head.writeUInt32LE(stream, 0);
  head.writeUInt32LE(index, 4);
  head.writeUInt32LE(bytes, 8);
  head.writeUInt32LE(MAGIC, 12);
  head.writeDoubleLE(offset, 16);
  return head;
}

/** Decodes a record head of HEAD_BYTES; undefined when the magic number or `place` is invalid. */
export function readHead(head: Buffer): RecordHead | undefined {
  if (head.readUInt32LE(12) !== MAGIC) return undefined;
  const offset = head.readDoubleLE(16);
  if (offset !== NO_OFFSET && !(Number.isSafeInteger(offset) && offset >= 0)) return undefined;
  return {
    stream: head.readUInt32LE(0),
    index: head.readUInt32LE(4),
    bytes: head.readUInt32LE(8),
    offset: offset === NO_OFFSET ? undefined : offset,
  };
}

/** Encodes one ask per index, ASK_BYTES each. */
export function asksOf(stream: number, indices: readonly number[]): Buffer {
  const asks = Buffer.allocUnsafe(ASK_BYTES * indices.length);
  indices.forEach((index, i) => {
    asks.writeUInt32LE(stream, ASK_BYTES * i);
    asks.writeUInt32LE(index, ASK_BYTES * i + 4);
  });
  return asks;
}

/** Decodes one ask of ASK_BYTES. */
export function readAsk(ask: Buffer): { readonly stream: number; readonly index: number } {
  return { stream: ask.readUInt32LE(0), index: ask.readUInt32LE(4) };
}

const MAX_INDEX = 2 ** 20;

/** Most blocks of a run whose frames can be asked for. */
const MAX_FRAMED = 2 ** 16;

/**
 * Returns the number by which a frame of record `index` is asked for. A complete record (`frame` undefined) has its own index as its
 * number.
 */
export function frameIdOf(index: number, frame: number | undefined): number {
  return frame === undefined ? index : index + (1 + frame) * MAX_FRAMED;
}

/** Returns a map key for a stream and a record or frame number. */
export function itemKeyOf(stream: number, index: number): number {
  return stream * MAX_INDEX + index;
}

/** Returns the stream of a key made by itemKeyOf. */
export function streamOf(offset: number): number {
  return Math.floor(offset / MAX_INDEX);
}
