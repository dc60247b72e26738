/**
 * XXH64, ready when the module is: every thread that imports this has its own instance. Bytes are read where they lie by the native library,
 * where there is one for this machine; xxhash-wasm copies them into its memory first, which costs more than the hash.
 */
import { createRequire } from 'node:module';
import type { xxh64 as hashInPlace } from '@node-rs/xxhash';
import xxhash, { type XXHash } from 'xxhash-wasm';

const hasher = await xxhash();
/** Below this a call out of JavaScript costs more than the copy. */
const MIN_NATIVE_BYTES = 512;
/** Of a thread that hashes as much: to load it takes some ten milliseconds, which those that make keys alone need not wait for. */
let native: { readonly hash: typeof hashInPlace | undefined } | undefined;

function loadNative(): { readonly hash: typeof hashInPlace | undefined } {
  try {
    const { xxh64: hash } = createRequire(import.meta.url)('@node-rs/xxhash') as { xxh64: typeof hashInPlace };
    return { hash };
  } catch {
    // No binary for this machine.
    return { hash: undefined };
  }
}

export function xxh64(bytes: Uint8Array): bigint {
  if (bytes.length < MIN_NATIVE_BYTES) return hasher.h64Raw(bytes);
  native ??= loadNative();
  return native.hash?.(bytes) ?? hasher.h64Raw(bytes);
}

/** Of what comes in parts; a digest does not end it. */
export function xxh64Stream(): XXHash<bigint> {
  return hasher.create64();
}
