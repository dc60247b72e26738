/**
 * Philox4x32-10: a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
 * The stream of a token is (seed, absolute position), so a token samples the same number on every instance.
 */
const M0 = 0xd2511f53;
const M1 = 0xcd9e8d57;
const W0 = 0x9e3779b9;
const W1 = 0xbb67ae85;

/** Four unsigned 32-bit words: a counter or an output of Philox. */
export type Words4 = [number, number, number, number];

/** Philox4x32-10: returns four random 32-bit words for this counter and this 64-bit key. */
export function philox4x32(counter: Readonly<Words4>, key: readonly [number, number]): Words4 {
  // This runs once per token; arrays inside the loop would be most of the heap allocation per token.
  let c0 = counter[0];
  let c1 = counter[1];
  let c2 = counter[2];
  let c3 = counter[3];
  let k0 = key[0];
  let k1 = key[1];
  for (let round = 0; round < 10; round++) {
    const high0 = multiplyHigh(M0, c0);
    const high1 = multiplyHigh(M1, c2);
    const low0 = Math.imul(M0, c0) >>> 0;
    const low1 = Math.imul(M1, c2) >>> 0;
    c0 = (high1 ^ c1 ^ k0) >>> 0;
    c1 = low1;
    c2 = (high0 ^ c3 ^ k1) >>> 0;
    c3 = low0;
    k0 = (k0 + W0) >>> 0;
    k1 = (k1 + W1) >>> 0;
  }
  return [c0, c1, c2, c3];
}

/** Returns 64 uniform random bits for a position in the stream of `key`. */
export function randomAt(key: readonly [low: number, high: number], position: number): [high: number, low: number] {
  // Indexing instead of destructuring: the iterator would add a third to what this function allocates.
  const words = philox4x32([position >>> 0, 0, 0, 0], key);
  return [words[0], words[1]];
}

/** The upper 32 bits of a 64-bit product, from 16-bit halves. */
function multiplyHigh(a: number, b: number): number {
  const aHigh = a >>> 16;
  const aLow = a & 0xffff;
  const bHigh = b >>> 16;
  const bLow = b & 0xffff;
  const middle = aHigh * bLow + ((aLow * bLow) >>> 16);
  const carry = (middle % 0x10000) + aLow * bHigh;
  return (aHigh * bHigh + Math.floor(middle / 0x10000) + Math.floor(carry / 0x10000)) >>> 0;
}
