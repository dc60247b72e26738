/**
 * What goes over a data channel: a socket that carries records and nothing else. What they are, whether they can be had and when, is said by Fetch
 * calls; a data channel is opened with a token from an OpenChannel answer, once.
 *
 *   asker → holder   token (CHANNEL_TOKEN_BYTES), then asks: [stream u32][index u32], of records, or of frames of them (frameIdOf)
 *   holder → asker   a welcome, then records, each behind a head: [stream u32][index u32][bytes u32][magic u32][place f64]
 *
 * Little-endian. A welcome is a head without bytes. Where both share memory (host_memory.ts), a record is not sent: its head says where it
 * lies, and its asker says the same ask again, with READ in its stream, when it has read it. It says first that it has the memory open, with
 * an ask of stream 0. An ask is answered when the record has been offered; one of a stream that is over is not answered, and its Fetch call
 * says why.
 */
export const CHANNEL_TOKEN_BYTES = 32;
export const ASK_BYTES = 8;
export const HEAD_BYTES = 24;
const MAGIC = 0x334c4b50;
/** Of a head: the record is behind it. */
const NO_PLACE = -1;
/** The stream of the ask that says that the memory is open. */
export const MEMORY_STREAM = 0;
/** In the stream of an ask: the record has been read. */
export const READ = 0x8000_0000;

export interface RecordHead {
  readonly stream: number;
  readonly index: number;
  readonly bytes: number;
  /** Where it lies in shared memory; undefined: it comes behind. */
  readonly place?: number | undefined;
}

export function headOf({ stream, index, bytes, place = NO_PLACE }: RecordHead): Buffer {
  const head = Buffer.allocUnsafe(HEAD_BYTES);
  head.writeUInt32LE(stream, 0);
  head.writeUInt32LE(index, 4);
  head.writeUInt32LE(bytes, 8);
  head.writeUInt32LE(MAGIC, 12);
  head.writeDoubleLE(place, 16);
  return head;
}

/** Undefined when it is none. */
export function readHead(head: Buffer): RecordHead | undefined {
  if (head.readUInt32LE(12) !== MAGIC) return undefined;
  const place = head.readDoubleLE(16);
  if (place !== NO_PLACE && !(Number.isSafeInteger(place) && place >= 0)) return undefined;
  return {
    ...{ stream: head.readUInt32LE(0), index: head.readUInt32LE(4), bytes: head.readUInt32LE(8) },
    place: place === NO_PLACE ? undefined : place,
  };
}

export function asksOf(stream: number, indices: readonly number[]): Buffer {
  const asks = Buffer.allocUnsafe(ASK_BYTES * indices.length);
  indices.forEach((index, i) => {
    asks.writeUInt32LE(stream, ASK_BYTES * i);
    asks.writeUInt32LE(index, ASK_BYTES * i + 4);
  });
  return asks;
}

export function readAsk(ask: Buffer): { readonly stream: number; readonly index: number } {
  return { stream: ask.readUInt32LE(0), index: ask.readUInt32LE(4) };
}

const MAX_INDEX = 2 ** 20;

/** Blocks of a run that frames can be asked for of. */
const MAX_FRAMED = 2 ** 16;

/** What a record's frame is asked for as; a whole record is asked for by its own index. */
export function frameIdOf(index: number, frame: number | undefined): number {
  return frame === undefined ? index : index + (1 + frame) * MAX_FRAMED;
}

/** Stands for a stream and an index in a map. */
export function placeOf(stream: number, index: number): number {
  return stream * MAX_INDEX + index;
}

export function streamOf(place: number): number {
  return Math.floor(place / MAX_INDEX);
}
