/** How a frame's raw bytes are stored in a record: on the wire, in DRAM and on disk. One codec exists, which stores them as they are. */

/** One way to store a frame's bytes. */
export interface Codec {
  /** The number that a frame header names it by. */
  readonly id: number;
  readonly name: string;
  /** Bytes that a frame of `rawBytes` takes at most when it is stored; slots and messages reserve so many. */
  maxStoredBytes(rawBytes: number): number;
  /** Why a frame cannot have these sizes under this codec; undefined: it can. Both sizes come from a frame header, and may be anything. */
  sizeFault(rawBytes: number, storedBytes: number): string | undefined;
}

const identity: Codec = {
  id: 0,
  name: 'identity',
  maxStoredBytes: (rawBytes) => rawBytes,
  sizeFault: (rawBytes, storedBytes) =>
    storedBytes === rawBytes
      ? undefined
      : `${storedBytes} bytes are stored of ${rawBytes}, which are stored as they are`,
};

const codecs: readonly Codec[] = [identity];

/** The codec with that number, or undefined when this version does not know it. */
export function codecOf(id: number): Codec | undefined {
  return codecs.find((codec) => codec.id === id);
}

/** Names of the codecs that exist. */
export type CodecName = 'identity';

/** Returns the codec of that name. @throws Error when there is none. */
export function codecNamed(name: CodecName): Codec {
  const codec = codecs.find((one) => one.name === name);
  if (!codec) throw new Error(`there is no codec ${name}`);
  return codec;
}
