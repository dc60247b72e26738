/** A step in several submits: around the frames of an export, at the ends of a section, and where one submit would take too long. */
import assert from 'node:assert/strict';
import type { RunOptions } from '../device.ts';
import { lastStoringLayer } from '../kv_layout.ts';
import type { DispatchList } from './dispatch_list.ts';
import type { ResultCopy, StepCommands } from './step_commands.ts';
import type { StepExporter } from './step_export.ts';
import type { StepCounts } from './step_state.ts';

/** Device, commands and buffers of the step that is submitted. */
interface SliceResources {
  readonly device: GPUDevice;
  readonly exporter: StepExporter | undefined;
  readonly list: DispatchList;
  readonly commands: StepCommands;
}

/**
 * Submits all slices of the step except the last one, whose commands are returned. A submitted slice can be awaited without the later
 * ones. `cuts`: indexes of the dispatches that begin a further submit; `turn`: index of the step among those in flight.
 */
export function submitSlices(
  { device, exporter, list, commands }: SliceResources,
  counts: StepCounts,
  { exports, section }: RunOptions,
  cuts: readonly number[],
  copy: ResultCopy,
  turn: number,
): GPUCommandBuffer {
  let first = section?.from === undefined ? 0 : list.numUntilAttention[section.from]!;
  const end = section?.until === undefined ? list.dispatches.length : list.numUntilAttention[section.until]!;
  /** Submits what is before each cut up to `until`. */
  const submitCuts = (until: number): void => {
    for (const cut of cuts) {
      if (cut <= first || cut >= until) continue;
      const encoder = device.createCommandEncoder();
      commands.encodeSlice(encoder, counts, first, cut);
      device.queue.submit([encoder.finish()]);
      first = cut;
    }
  };
  if (exports) {
    assert(exporter && exports.blocks.length <= exporter.numBlocks, 'more blocks than a step can export');
    exporter.begin(exports);
    exporter.layout.frames.forEach((frame, range) => {
      const stored = list.numUntilStored[lastStoringLayer(exporter.layout, frame)]!;
      submitCuts(stored);
      const encoder = device.createCommandEncoder();
      commands.encodeSlice(encoder, counts, first, stored);
      exporter.encode(encoder, range, exports.blocks.length, turn);
      device.queue.submit([encoder.finish()]);
      first = stored;
    });
  }
  submitCuts(end);
  const encoder = device.createCommandEncoder();
  commands.encodeSlice(encoder, counts, first, end, copy);
  return encoder.finish();
}
