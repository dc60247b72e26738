/**
 * XXH64, ready when the module is: every thread that imports this has its own instance. Bytes are read where they lie by the native library,
 * where there is one for this machine; xxhash-wasm copies them into its memory first, which costs more than the hash.
 */
import xxhash, { type XXHash } from 'xxhash-wasm';

const hasher = await xxhash();
const native = await loadNative();
/** Below this a call out of JavaScript costs more than the copy. */
const MIN_NATIVE_BYTES = 512;

async function loadNative(): Promise<((bytes: Uint8Array) => bigint) | undefined> {
  try {
    const { xxh64: hash } = await import('@node-rs/xxhash');
    return hash;
  } catch {
    // No binary for this machine.
    return undefined;
  }
}

export function xxh64(bytes: Uint8Array): bigint {
  return native && bytes.length >= MIN_NATIVE_BYTES ? native(bytes) : hasher.h64Raw(bytes);
}

/** Of what comes in parts; a digest does not end it. */
export function xxh64Stream(): XXHash<bigint> {
  return hasher.create64();
}
