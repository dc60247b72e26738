/**
 * Messages of one sender, sealed by AES-256-GCM so that only the cluster can read, make or change them.
 *
 *   sealed   [sender's epoch, 16 bytes][counter, u64][ciphertext, as long as the message][tag, 16 bytes]
 *   key      HKDF-SHA256(secret: a cluster token, salt: the epoch, info: the cluster's name), 32 bytes
 *   nonce    [0, 4 bytes][counter, u64]; numbers are big-endian
 *
 * A nonce must never come twice under a key. Each epoch has a key of its own, its sender counts every message, whatever its subject, and the
 * epoch is 128 random bits: two senders with one epoch do not happen, unless a running process is copied, as a snapshot of its machine does.
 * The subject (for an answer: that of the answer, and the head of its request) is additional data: sealed for one, a message opens as no other.
 *
 * An empty token makes no secret key. It is allowed on the loopback only, where it still keeps clusters and subjects apart.
 */
import { createCipheriv, createDecipheriv, createSecretKey, hkdfSync, type KeyObject } from 'node:crypto';
import { takenTokens } from '../../base/cluster_tokens.ts';
import type { Current } from '../../base/current.ts';

const ALGORITHM = 'aes-256-gcm';
/** Part of each key's derivation: a later layout gets other keys. */
const LAYOUT = 'penstock bus 1';
const KEY_BYTES = 32;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
/** Bytes of a sender's epoch. */
export const EPOCH_BYTES = 16;
/** Bytes of a sealed message before its ciphertext: epoch and counter, which together name the message. */
export const HEAD_BYTES = EPOCH_BYTES + 8;

const tagLength = { authTagLength: TAG_BYTES } as const;

/** A token of the cluster, and the key that a sender's epoch and it make. */
interface TokenKey {
  readonly token: string;
  readonly key: KeyObject;
}

/** Keys of one sender: of the token that is sent first, then of the others that are taken. */
class SenderKeys {
  readonly #tokens: Current<string>;
  readonly #epoch: Buffer;
  readonly #info: string;
  #text: string | undefined;
  #keys: TokenKey[] = [];

  constructor({ tokens, cluster }: ClusterSecret, epoch: Uint8Array) {
    this.#tokens = tokens;
    this.#info = `${LAYOUT} ${cluster}`;
    // A copy: the message that the epoch came with is not kept.
    this.#epoch = Buffer.from(epoch);
  }

  /** Returns the keys of the tokens that hold now. */
  now(): readonly TokenKey[] {
    const text = this.#tokens.value;
    if (this.#text === text) return this.#keys;
    this.#text = text;
    this.#keys = takenTokens(text).map((token) => ({
      token,
      key: createSecretKey(Buffer.from(hkdfSync('sha256', token, this.#epoch, this.#info, KEY_BYTES))),
    }));
    return this.#keys;
  }

  /** Expects messages under this key: it is tried first from now on. */
  expect(one: TokenKey): void {
    if (this.#keys[0] !== one) this.#keys = [one, ...this.#keys.filter((other) => other !== one)];
  }
}

/** Tokens of a cluster (cluster_tokens.ts), and its name. */
export interface ClusterSecret {
  readonly tokens: Current<string>;
  readonly cluster: string;
}

/** Seals the messages of one sender and counts them. */
export class Sealer {
  readonly epoch: Buffer;
  readonly #keys: SenderKeys;
  /** Counter of the next message. */
  next = 0;

  /** `epoch`: EPOCH_BYTES that no other sender has. */
  constructor(secret: ClusterSecret, epoch: Buffer) {
    if (epoch.length !== EPOCH_BYTES) throw new RangeError(`an epoch has ${EPOCH_BYTES} bytes, not ${epoch.length}`);
    this.epoch = epoch;
    this.#keys = new SenderKeys(secret, epoch);
  }

  /**
   * Returns `payload` sealed for `subject`, which is the additional data, under `token` if it holds still, else under the one that is sent. Answers
   * name the token of the question, so that they are understood also while one token replaces another.
   */
  seal(subject: Uint8Array, payload: Uint8Array, token?: string): Buffer {
    const keys = this.#keys.now();
    const key = (keys.find((one) => one.token === token) ?? keys[0])?.key;
    if (!key) throw new RangeError('a cluster has one token at least, which may be empty');
    const counter = this.next++;
    const cipher = createCipheriv(ALGORITHM, key, nonceOf(counter), tagLength);
    cipher.setAAD(subject);
    const body = cipher.update(payload);
    cipher.final();
    const sealed = Buffer.allocUnsafe(HEAD_BYTES + body.length + TAG_BYTES);
    this.epoch.copy(sealed);
    writeCounter(sealed, EPOCH_BYTES, counter);
    body.copy(sealed, HEAD_BYTES);
    cipher.getAuthTag().copy(sealed, HEAD_BYTES + body.length);
    return sealed;
  }
}

/** Opens the messages of one sender. */
export class Opener {
  readonly #keys: SenderKeys;

  constructor(secret: ClusterSecret, epoch: Uint8Array) {
    this.#keys = new SenderKeys(secret, epoch);
  }

  /**
   * Returns the message in `sealed` and its token; undefined when it was sealed under no token that is taken now, for another subject, or changed.
   */
  open(subject: Uint8Array, sealed: Buffer): { readonly payload: Buffer; readonly token: string } | undefined {
    for (const one of this.#keys.now()) {
      const payload = opened(one.key, subject, sealed);
      if (!payload) continue;
      this.#keys.expect(one);
      return { payload, token: one.token };
    }
    return undefined;
  }
}

function opened(key: KeyObject, subject: Uint8Array, sealed: Buffer): Buffer | undefined {
  const end = sealed.length - TAG_BYTES;
  const decipher = createDecipheriv(ALGORITHM, key, nonceIn(sealed), tagLength);
  decipher.setAAD(subject);
  decipher.setAuthTag(sealed.subarray(end));
  const payload = decipher.update(sealed.subarray(HEAD_BYTES, end));
  try {
    decipher.final();
  } catch {
    return undefined;
  }
  return payload;
}

/** Whether a message is long enough to be a sealed one. */
export function canBeSealed(sealed: Uint8Array): boolean {
  return sealed.length >= HEAD_BYTES + TAG_BYTES;
}

/** Returns the name of the sender of a sealed message: its epoch as hexadecimal digits. */
export function senderOf(sealed: Buffer): string {
  return sealed.toString('hex', 0, EPOCH_BYTES);
}

/** Returns the counter of a sealed message. */
export function counterOf(sealed: Buffer): number {
  return readCounter(sealed, EPOCH_BYTES);
}

const WORD = 2 ** 32;

/** Writes a counter as u64, of which a number holds 53 bits: a million messages a second take 285 years. */
export function writeCounter(bytes: Buffer, at: number, counter: number): void {
  bytes.writeUInt32BE(Math.floor(counter / WORD), at);
  bytes.writeUInt32BE(counter % WORD, at + 4);
}

/** Reads a counter that {@link writeCounter} has written. */
export function readCounter(bytes: Buffer, at: number): number {
  return bytes.readUInt32BE(at) * WORD + bytes.readUInt32BE(at + 4);
}

/** A cipher copies its nonce when it is made, so one buffer serves all. */
const nonce = Buffer.alloc(NONCE_BYTES);

function nonceOf(counter: number): Buffer {
  writeCounter(nonce, NONCE_BYTES - 8, counter);
  return nonce;
}

/** Returns the nonce of a message by its bytes: anybody may have written them, and they need be no counter that a number holds. */
function nonceIn(sealed: Buffer): Buffer {
  sealed.copy(nonce, NONCE_BYTES - 8, EPOCH_BYTES, HEAD_BYTES);
  return nonce;
}
