/**
 * Fingerprints of token lists: hashes of a few consecutive tokens, kept where their upper bits are zero. Text that two lists share has
 * the same fingerprints in both, wherever it stands, so that it is found again although other text before it has changed.
 *
 * The hash shifts by 32 / length bits per token, so that a token has left it after `length` further ones. Equal fingerprints only
 * propose a match: the tokens themselves are compared then.
 */
import type { Clock } from '../../../shared/base/clock.ts';

/** Sizes of fingerprints; `length` divides 32. */
export interface FingerprintSizes {
  /** Tokens that a fingerprint is the hash of. */
  readonly length: number;
  /** A fingerprint is kept when this many upper bits of it are zero: one in 2^bits. */
  readonly droppedBits: number;
}

/** Fingerprints of a list in ascending order of position. */
export interface Fingerprints {
  readonly hashes: Int32Array;
  /** Index after the last token of each fingerprint. */
  readonly ends: Int32Array;
}

/** Fingerprints that recent sequences are found by: one in 32 tokens, which a block of shared text has about one of. */
const SPARSE: FingerprintSizes = { length: 16, droppedBits: 5 };

/** Times as many fingerprints as are expected that are kept of a list (P1): tokens can be chosen so that all would be. */
const MAX_SURPLUS = 4;
/** Tokens hashed before the thread yields to its other work; they take about a tenth of a millisecond. */
const SLICE_TOKENS = 32_768;
const BITS = 32;

/** Returns the fingerprints that end within tokens (from, to]. Tokens before `from` are part of the first ones. */
export function fingerprintsOf(
  tokens: Uint32Array,
  from: number,
  to: number,
  { length, droppedBits }: FingerprintSizes,
): Fingerprints {
  const shift = BITS / length;
  // A shift by 32 bits would be none.
  const keptBelow = droppedBits === 0 ? BITS : BITS - droppedBits;
  const hashes: number[] = [];
  const ends: number[] = [];
  const first = Math.max(0, from - length + 1);
  const firstEnd = Math.max(from + 1, first + length);
  const maxKept = Math.max(1, MAX_SURPLUS * ((to - first) >> droppedBits));
  let [hash, last] = [0, 0];
  for (let i = first; i < to && hashes.length < maxKept; i++) {
    const mixed = Math.imul((tokens[i] ?? 0) + 1, 0x9e3779b1);
    hash = ((hash << shift) + (mixed ^ (mixed >>> 15))) | 0;
    if (keptBelow < BITS && hash >>> keptBelow !== 0) continue;
    // A token that repeats has one fingerprint, not one per repetition.
    if (i + 1 < firstEnd || (hash === last && hashes.length > 0)) continue;
    last = hash;
    hashes.push(hash);
    ends.push(i + 1);
  }
  return { hashes: Int32Array.from(hashes), ends: Int32Array.from(ends) };
}

/** Returns the hashes of the sparse fingerprints after `from`. Yields to the thread between slices. */
export async function sparseHashes(tokens: Uint32Array, from: number, clock: Clock): Promise<Int32Array> {
  const hashes: number[] = [];
  for (let start = from; start < tokens.length; start += SLICE_TOKENS) {
    if (start > from) await clock.turn();
    hashes.push(...fingerprintsOf(tokens, start, Math.min(start + SLICE_TOKENS, tokens.length), SPARSE).hashes);
  }
  return Int32Array.from(hashes);
}
