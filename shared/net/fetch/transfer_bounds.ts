/** How much may be asked for ahead, lie ready, be lent or arrive at once: the bounds of every fetch (P1). */

/** Limits of one fetch, from options; the constants below bound them further. */
export interface TransferLimits {
  /** Records of one stream that are asked for at once, whatever their size. */
  readonly maxAhead: number;
  /** Most bytes of one slice, for records that travel over calls; a reader that stops holds up one slice. */
  readonly sliceBytes: number;
}

const MAX_FETCH_AHEAD = 256;
/** Limits of a real process: MAX_WINDOW records ahead, slices of 256 KiB. */
export const transferLimits: TransferLimits = { maxAhead: MAX_FETCH_AHEAD, sliceBytes: 256 << 10 };

const FETCH_AHEAD_BYTES = 16 << 20;
const MIN_FETCH_AHEAD = 32;

/**
 * Returns how many records of one stream may be on their way to the asker or wait there to be read; for in-flight blocks, the most
 * blocks of one group.
 */
export function fetchAheadOf(recordBytes: number): number {
  return Math.min(MAX_FETCH_AHEAD, Math.max(MIN_FETCH_AHEAD, Math.floor(FETCH_AHEAD_BYTES / recordBytes)));
}

/**
 * Least that is asked for ahead, in bytes and in records. With less, the data channel idles while the asker processes arrivals and
 * asks again.
 */
const LEAST_AHEAD_BYTES = 4 << 20;
const LEAST_AHEAD = 4;

/**
 * Returns how many complete records each of `numStreams` streams asks for ahead of its reader. All streams together ask for about as
 * much as stays in a processor's cache (WINDOW_BYTES), and each for enough to keep its data channel busy.
 */
export function aheadOf(recordBytes: number, numStreams: number, { maxAhead } = transferLimits): number {
  const bytes = Math.max(LEAST_AHEAD_BYTES, FETCH_AHEAD_BYTES / Math.max(1, numStreams));
  return Math.min(maxAhead, fetchAheadOf(recordBytes), Math.max(LEAST_AHEAD, Math.floor(bytes / recordBytes)));
}

const READY_BYTES = 64 << 20;
const MAX_READY = 1_024;

/**
 * Returns how many records of one stream its holder may offer at once. The bound is higher than the number of slots at the asker,
 * because offers are messages of the call and cost more than asks.
 */
export function readyOf(recordBytes: number): number {
  return Math.min(MAX_READY, Math.max(2 * MIN_FETCH_AHEAD, Math.floor(READY_BYTES / recordBytes)));
}

/** How many blocks ahead of the current one a source is told to prepare. */
export const EXPECTED_BLOCKS = 16;

/** Returns how many records one stream may borrow at once: half of `numBorrowable`, so that other streams find the other half. */
export function borrowsOfStream(numBorrowable: number): number {
  return Math.floor(numBorrowable / 2);
}

/** Slots of an instance's host memory that arriving blocks may hold: a quarter, but no more than MAX_WINDOW. */
export function incomingSlots(numSlots: number): number {
  return Math.min(MAX_FETCH_AHEAD, Math.floor(numSlots / 4));
}
