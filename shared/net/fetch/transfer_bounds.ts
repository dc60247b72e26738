/** How much may be asked for ahead, lie ready, be lent or arrive at once: the bounds of every fetch (P1). */

/** Limits of one fetch, from options; the constants below bound them further. */
export interface TransferLimits {
  /** Records of one stream that are asked for at once, whatever their size. */
  readonly maxAhead: number;
  /** Over calls records come in slices of at most this: what a reader that stops holds up. */
  readonly sliceBytes: number;
}

const MAX_WINDOW = 256;
/** Limits of a real process: MAX_WINDOW records ahead, slices of 256 KiB. */
export const transferLimits: TransferLimits = { maxAhead: MAX_WINDOW, sliceBytes: 256 << 10 };

const WINDOW_BYTES = 16 << 20;
const MIN_WINDOW = 32;

/** Records of one stream that are on their way to its asker, or wait there to be read, at once; in frames, blocks that grow together. */
export function fetchAheadOf(recordBytes: number): number {
  return Math.min(MAX_WINDOW, Math.max(MIN_WINDOW, Math.floor(WINDOW_BYTES / recordBytes)));
}

/**
 * Least that is asked for ahead, in bytes and in records. With less, the data channel idles while the asker processes arrivals and
 * asks again.
 */
const LEAST_AHEAD_BYTES = 4 << 20;
const LEAST_AHEAD = 4;

/**
 * Whole records of one of `numStreams` streams that are asked for ahead of their reader: of some streams together about what stays in a
 * processor's cache, and enough that a data channel does not wait.
 */
export function aheadOf(recordBytes: number, numStreams: number, { maxAhead } = transferLimits): number {
  const bytes = Math.max(LEAST_AHEAD_BYTES, WINDOW_BYTES / Math.max(1, numStreams));
  return Math.min(maxAhead, fetchAheadOf(recordBytes), Math.max(LEAST_AHEAD, Math.floor(bytes / recordBytes)));
}

const READY_BYTES = 64 << 20;
const MAX_READY = 1_024;

/** Records of one stream that lie ready at its holder at once: more than its asker has slots for, since calls say which, and cost more. */
export function readyOf(recordBytes: number): number {
  return Math.min(MAX_READY, Math.max(2 * MIN_WINDOW, Math.floor(READY_BYTES / recordBytes)));
}

/** How many blocks ahead of the current one a source is told to prepare. */
export const EXPECTED_BLOCKS = 16;

/** Records of a run that one stream may take on loan at once: half of what is left, so that other streams find the other half. */
export function borrowsOfStream(numBorrowable: number): number {
  return Math.floor(numBorrowable / 2);
}

/** Slots of an instance's host memory that arriving blocks may hold: a quarter, but no more than MAX_WINDOW. */
export function incomingSlots(numSlots: number): number {
  return Math.min(MAX_WINDOW, Math.floor(numSlots / 4));
}
