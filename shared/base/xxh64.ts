/** XXH64 (xxhash-wasm), ready when the module is: every thread that imports this has its own instance. */
import xxhash from 'xxhash-wasm';

const hasher = await xxhash();

export function xxh64(bytes: Uint8Array): bigint {
  return hasher.h64Raw(bytes);
}
