/**
 * XXH64, loaded per thread when the module is imported. The native library, where this machine has a binary, reads bytes in place;
 * xxhash-wasm first copies them into its own memory, which costs more than the hash.
 */
import { createRequire } from 'node:module';
import type { xxh64 as hashInPlace } from '@node-rs/xxhash';
import xxhash, { type XXHash } from 'xxhash-wasm';

const hasher = await xxhash();
/** Inputs shorter than this go to xxhash-wasm: a native call costs more than the copy. */
const MIN_NATIVE_BYTES = 512;
/**
 * The native hash, loaded at the first input of MIN_NATIVE_BYTES or more. Loading costs some ten milliseconds, which threads that only
 * hash keys avoid.
 */
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

/** Returns the XXH64 of `bytes`, with seed 0. */
export function xxh64(bytes: Uint8Array): bigint {
  if (bytes.length < MIN_NATIVE_BYTES) return hasher.h64Raw(bytes);
  native ??= loadNative();
  return native.hash?.(bytes) ?? hasher.h64Raw(bytes);
}

/** Returns an XXH64 for input that arrives in parts; more parts may follow after a digest. */
export function xxh64Stream(): XXHash<bigint> {
  return hasher.create64();
}
