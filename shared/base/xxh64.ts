/** XXH64 (xxhash-wasm), ready when the module is: every thread that imports this has its own instance. */
import xxhash, { type XXHash } from 'xxhash-wasm';

const hasher = await xxhash();

export function xxh64(bytes: Uint8Array): bigint {
  return hasher.h64Raw(bytes);
}

/** Of what comes in parts; a digest does not end it. */
export function xxh64Stream(): XXHash<bigint> {
  return hasher.create64();
}
