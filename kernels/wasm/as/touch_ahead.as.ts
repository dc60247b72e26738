/**
 * Touches cache lines of the next block while the current one is computed, because the prefetchers of a CPU cannot predict where the
 * next block lies.
 */
import { touch_pages } from './simd.as';

/**
 * Stores what to touch of the next block in a cache line of scratch, u32 each: address (0: no next block), bytes of a plane, bytes
 * from the K to the V plane, number of bursts, bursts done, and a write-only word.
 */
export function start_ahead(ahead: usize, next: usize, planeBytes: usize, apart: usize, numBursts: u32): void {
  store<u32>(ahead, next as u32);
  store<u32>(ahead, planeBytes as u32, 4);
  store<u32>(ahead, apart as u32, 8);
  store<u32>(ahead, next ? numBursts : 0, 12);
  store<u32>(ahead, 0, 16);
}

/** Touches the next burst of lines, a few of every page, so that the loads overlap with the computation that follows. */
export function touch_ahead(ahead: usize): void {
  const numBursts = load<u32>(ahead, 12);
  const burst = load<u32>(ahead, 16);
  if (burst >= numBursts) return;
  store<u32>(ahead, burst + 1, 16);
  const first = line_of(burst, numBursts);
  const last = line_of(burst + 1, numBursts);
  touch_pages(load<u32>(ahead), load<u32>(ahead, 4), load<u32>(ahead, 8), first, last, ahead + 20);
}

/** Returns the byte offset within a page at which a burst begins: the bursts split a page's 64 lines evenly. */
// @ts-ignore: decorator
@inline
function line_of(burst: u32, numBursts: u32): usize {
  return (((burst << 6) / numBursts) as usize) << 6;
}
