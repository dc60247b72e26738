/**
 * Reads a list of strings from a GGUF file's metadata byte for byte. The library strips a byte order mark from the start of each
 * string, but vocabularies have tokens that begin with one.
 */
import type { FileHandle } from 'node:fs/promises';
import { readFully } from '../read_fully.ts';

const [STRING, ARRAY] = [8, 9];

/**
 * Returns the strings of key `key`, which lies in the first `headerBytes` bytes of the file. @throws Error when it is not a list of
 * strings there.
 */
export async function readStrings(file: FileHandle, path: string, headerBytes: number, key: string): Promise<string[]> {
  const header = Buffer.alloc(headerBytes);
  await readFully(file, header, 0, path);
  const name = Buffer.from(key);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(name.length));
  const head = Buffer.alloc(8);
  head.writeUInt32LE(ARRAY);
  head.writeUInt32LE(STRING, 4);
  const pattern = Buffer.concat([length, name, head]);
  const found = header.indexOf(pattern);
  if (found < 0) throw new Error(`${key} is no list of strings`);
  let at = found + pattern.length;
  const count = Number(header.readBigUInt64LE(at));
  at += 8;
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  const strings: string[] = [];
  for (let i = 0; i < count; i++) {
    const size = Number(header.readBigUInt64LE(at));
    const end = at + 8 + size;
    if (!(end <= header.length)) throw new Error(`${key} is longer than the header`);
    strings.push(decoder.decode(header.subarray(at + 8, end)));
    at = end;
  }
  return strings;
}
