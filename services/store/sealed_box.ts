/**
 * Authenticated encryption of what a store keeps on disk: AES-256-GCM.
 *
 *   sealed   salt (16) ‖ nonce (12) ‖ tag (16) ‖ ciphertext, as long as the clear text
 *
 * Salt and nonce are random, and every text is sealed under a key of its own: SHA-256 of the given key and the salt. So a key may seal any
 * number of texts (two of 2^48 meet with a chance under 2^-120), nothing has to be counted, and a crash or an overwritten place repeats nothing.
 */
import { createCipheriv, createDecipheriv, hash, randomBytes, type CipherGCM, type DecipherGCM } from 'node:crypto';

/** Bytes of a key: AES-256. */
export const KEY_BYTES = 32;
const SALT_BYTES = 16;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
/** Bytes in front of the ciphertext. */
export const SEAL_BYTES = SALT_BYTES + NONCE_BYTES + TAG_BYTES;
const ALGORITHM = 'aes-256-gcm';

/** Returns the key of one text. All inputs have fixed lengths. */
function keyOfText(key: Uint8Array, salt: Uint8Array): Buffer {
  return hash('sha256', Buffer.concat([key, salt]), 'buffer');
}

/** Seals one text, given in parts. `aad` is authenticated with it. */
export class Sealer {
  readonly #head = randomBytes(SEAL_BYTES);
  readonly #cipher: CipherGCM;

  constructor(key: Uint8Array, aad: Uint8Array) {
    const nonce = this.#head.subarray(SALT_BYTES, SALT_BYTES + NONCE_BYTES);
    this.#cipher = createCipheriv(ALGORITHM, keyOfText(key, this.#head.subarray(0, SALT_BYTES)), nonce);
    this.#cipher.setAAD(aad);
  }

  /** Returns the ciphertext of the next part, as long as the part. */
  update(part: Uint8Array): Buffer {
    return this.#cipher.update(part);
  }

  /** Returns the SEAL_BYTES in front of the ciphertext, after the last part. */
  end(): Buffer {
    this.#cipher.final();
    this.#head.set(this.#cipher.getAuthTag(), SALT_BYTES + NONCE_BYTES);
    return this.#head;
  }
}

/** Opens one text, given in parts. No part may be used before {@link isTrue} has said that all of them are authentic. */
export class Opener {
  readonly #decipher: DecipherGCM;

  /** `head` has the first SEAL_BYTES of the sealed text. */
  constructor(key: Uint8Array, head: Uint8Array, aad: Uint8Array) {
    const nonce = head.subarray(SALT_BYTES, SALT_BYTES + NONCE_BYTES);
    this.#decipher = createDecipheriv(ALGORITHM, keyOfText(key, head.subarray(0, SALT_BYTES)), nonce);
    this.#decipher.setAAD(aad);
    this.#decipher.setAuthTag(head.subarray(SALT_BYTES + NONCE_BYTES, SEAL_BYTES));
  }

  /** Returns the clear text of the next part, as long as the part. */
  update(part: Uint8Array): Buffer {
    return this.#decipher.update(part);
  }

  /** Returns, after the last part, whether the text was sealed under this key with this `aad`, and is unchanged. */
  isTrue(): boolean {
    try {
      this.#decipher.final();
      return true;
    } catch {
      return false;
    }
  }
}

/** Seals a short text. */
export function seal(key: Uint8Array, aad: Uint8Array, text: Uint8Array): Buffer {
  const sealer = new Sealer(key, aad);
  const ciphertext = sealer.update(text);
  return Buffer.concat([sealer.end(), ciphertext]);
}

/** Returns the text that {@link seal} sealed; undefined when the key or `aad` is another, or a bit differs. */
export function unseal(key: Uint8Array, aad: Uint8Array, sealed: Uint8Array): Buffer | undefined {
  if (sealed.length < SEAL_BYTES) return undefined;
  const opener = new Opener(key, sealed.subarray(0, SEAL_BYTES), aad);
  const text = opener.update(sealed.subarray(SEAL_BYTES));
  return opener.isTrue() ? text : undefined;
}
