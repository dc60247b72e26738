/** Segments of a step as recurrent kernels read them (shaders/state_segment.wgsl). */
import type { Segment } from '../device.ts';

const NO_SLOT = 0xffffffff;
/** First row, rows, slot that the segment begins with, where its saves are, how many. */
const SEGMENT_WORDS = 5;
const SAVE_WORDS = 2;
/** Words that a row takes at most: it may be a segment by itself, is saved at most once, and names its segment. */
export const STATE_WORDS_PER_ROW = SEGMENT_WORDS + SAVE_WORDS + 1;

/**
 * Writes the segments of a batch, each row's segment, and the saves, from word `segmentsAt` on. Returns where they are, and the word
 * after them.
 */
export function writeStateSegments(
  words: Uint32Array,
  segmentsAt: number,
  batch: readonly Segment[],
  numRows: number,
): { readonly segmentsAt: number; readonly rowsAt: number; readonly end: number } {
  const rowsAt = segmentsAt + SEGMENT_WORDS * batch.length;
  let [row, at, end] = [0, segmentsAt, rowsAt + numRows];
  for (const { tokens, state } of batch) {
    const { from = NO_SLOT, saves = [] } = state ?? {};
    words.set([row, tokens.length, from, end, saves.length], at);
    words.fill(at, rowsAt + row, rowsAt + row + tokens.length);
    for (const save of saves) {
      words[end++] = save.rows;
      words[end++] = save.slot;
    }
    row += tokens.length;
    at += SEGMENT_WORDS;
  }
  return { segmentsAt, rowsAt, end };
}
