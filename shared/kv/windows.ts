/** What layers that see a window of tokens, and not all, need of blocks. */
import type { FrameRange } from './record.ts';

/** Tokens that the widest layer of each frame sees, its own included; 0: one of them sees all. `windows`: of the layers, 0 likewise. */
export function frameWindows(
  frames: readonly Pick<FrameRange, 'firstLayer' | 'numLayers'>[],
  windows: readonly number[],
): number[] {
  return frames.map(({ firstLayer, numLayers }) => widestOf(windows.slice(firstLayer, firstLayer + numLayers)));
}

/** Of several, 0 among them being the widest. */
export function widestOf(windows: readonly number[]): number {
  return windows.includes(0) ? 0 : Math.max(0, ...windows);
}

/** Blocks [0, that) are not seen through the window by the row at position `row`, nor by any after it. */
export function numUnseen(window: number, row: number, blockSize: number): number {
  return window === 0 ? 0 : Math.max(0, Math.floor((row - window + 1) / blockSize));
}
