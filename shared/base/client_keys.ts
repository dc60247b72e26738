/** API keys of clients: 256 random bits each, of which a router's file has the SHA-256 only. */
import { hash } from 'node:crypto';

/** Random bytes of a key. */
export const KEY_BYTES = 32;

/** Keys of a router's file (P1). As many are parsed in about a third of a second, for which the router does nothing else. */
export const MAX_KEYS = 5_000;
/** Bytes of that file (P1): 800 for each key. */
export const MAX_KEYS_BYTES = 4_000_000;

/** Names of keys and tenants. */
export const CLIENT_NAME = /^[\w.@:-]{1,64}$/;
/** {@link CLIENT_NAME} in words. */
export const CLIENT_NAME_TEXT = 'letters, digits and . _ @ : -, at most 64';

/** Returns the key that has these random bytes. Its beginning tells searches for secrets whose it is. */
export function keyTextOf(bytes: Buffer): string {
  return `penstock_${bytes.toString('base64url')}`;
}

/** Returns the SHA-256 of a key, 32 bytes. */
export function keyDigest(key: string): Buffer {
  return hash('sha256', key, 'buffer');
}
