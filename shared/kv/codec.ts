/** Codecs: how the raw bytes of a frame are stored on the wire, in DRAM and on disk. The only codec stores them unchanged. */

/** One way to store a frame's bytes. */
export interface Codec {
  /** Number of the codec in frame headers. */
  readonly id: number;
  readonly name: string;
  /** Greatest stored size in bytes of a frame of `rawBytes`; slots and messages reserve this much. */
  maxStoredBytes(rawBytes: number): number;
  /**
   * Returns why a frame cannot have these sizes under this codec, or undefined when it can. Both sizes come from a frame header and
   * are untrusted.
   */
  sizeFault(rawBytes: number, storedBytes: number): string | undefined;
}

const identity: Codec = {
  id: 0,
  name: 'identity',
  maxStoredBytes: (rawBytes) => rawBytes,
  sizeFault: (rawBytes, storedBytes) =>
    storedBytes === rawBytes
      ? undefined
      : `${storedBytes} bytes are stored of ${rawBytes}, but the codec identity stores all of them`,
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
