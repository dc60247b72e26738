/** Which rows of a long table exist in the document. */

/** Rows that exist before and after the visible ones, so that scrolling shows no gap. */
const MARGIN = 4;

/** @returns rows [first, end) of `count` rows of `rowHeight` pixels, for `height` visible pixels from `top`. */
export function rowWindow(
  count: number,
  rowHeight: number,
  top: number,
  height: number,
): { first: number; end: number } {
  const visible = Math.ceil(height / rowHeight);
  // In steps of the margin: a scrolled pixel draws nothing.
  const at = Math.floor(top / rowHeight / MARGIN) * MARGIN;
  const first = Math.max(0, Math.min(at - MARGIN, count - visible - 2 * MARGIN));
  return { first, end: Math.min(count, first + visible + 3 * MARGIN) };
}
