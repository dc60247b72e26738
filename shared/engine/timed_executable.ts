/**
 * An executable that computes nothing and only takes time: the engine over it schedules, paces and names blocks as over a device, in
 * simulated time. Every sample is token 0.
 *
 *   run ──► work of the batch ──► milliseconds by the caller's formula ──► results at the end, in the order of submission
 */
import assert from 'node:assert/strict';
import type { Executable, RowSampler, RunOptions, SampleResult, Segment } from '../../kernels/device.ts';
import { pairsOf, type StepWork } from '../protocol/instance_work.ts';

/** Sizes of a TimedExecutable, and its time. */
export interface TimedOptions {
  readonly blockBytes: number;
  readonly numBlocks: number;
  readonly nowMs: () => number;
  /** Calls `run` at a time. */
  readonly at: (atMs: number, run: () => void) => void;
  /** Returns the milliseconds of a step. */
  readonly stepMs: (work: StepWork) => number;
  /** Called when a step ends, before its results are seen. */
  readonly onEnd: () => void;
}

const NONE: RunOptions = {};
const SAMPLED: SampleResult = {
  token: 0,
  tokenLogit: NaN,
  logSumExp: NaN,
  candidateIds: new Uint32Array(0),
  candidateLogits: new Float32Array(0),
  askedLogits: new Float32Array(0),
};

/** Runs steps one after another in simulated time. Copies of blocks take no time: the caller delivers them when they are there. */
export class TimedExecutable implements Executable {
  readonly blockBytes: number;
  readonly numBlocks: number;
  readonly numStateSlots = 0;
  readonly maxRowsNow = Infinity;
  /** A step is submitted while one runs, as on a GPU. */
  readonly numAhead = 1;
  readonly numExportable = 0;
  readonly sampling = { vocab: 1, numPages: 0 };
  readonly hiddenWidth = 0;
  readonly #options: TimedOptions;
  /** When the last submitted step ends. */
  #endMs = 0;
  /** Steps that were submitted, and the milliseconds that they take. */
  numRuns = 0;
  busyMs = 0;

  constructor(options: TimedOptions) {
    this.#options = options;
    this.blockBytes = options.blockBytes;
    this.numBlocks = options.numBlocks;
  }

  run(batch: readonly Segment[], { exports, section }: RunOptions = NONE): Promise<SampleResult[]> {
    assert(!exports && !section, 'a simulated step has no parts');
    let [rows, pairs, contextTokens, numSamples] = [0, 0, 0, 0];
    for (const { tokens, start, samples } of batch) {
      const { length } = tokens;
      rows += length;
      if (length === 1 && samples) contextTokens += start + 1;
      else pairs += pairsOf(start, length);
      if (samples) numSamples += samples.length;
    }
    const { stepMs, nowMs, at, onEnd } = this.#options;
    const ms = stepMs({ rows, pairs, contextTokens, sequences: batch.length });
    this.numRuns++;
    this.busyMs += ms;
    this.#endMs = Math.max(this.#endMs, nowMs()) + ms;
    return new Promise((resolve) => {
      at(this.#endMs, () => {
        onEnd();
        resolve(new Array<SampleResult>(numSamples).fill(SAMPLED));
      });
    });
  }

  importBlocks(): Promise<void> {
    return Promise.resolve();
  }

  exportBlocks(): Promise<void> {
    return Promise.resolve();
  }

  copyBlocks(): void {
    assert.fail('nothing is forked in a simulated engine');
  }

  exportStates(): Promise<void> {
    assert.fail('a simulated model has no recurrent layers');
  }

  importStates(): Promise<void> {
    assert.fail('a simulated model has no recurrent layers');
  }

  copyStates(): void {
    assert.fail('a simulated model has no recurrent layers');
  }

  writeSamplerPage(): void {
    assert.fail('a simulated device has no sampler pages');
  }

  rowSampler(): RowSampler {
    assert.fail('a simulated device returns no rows of logits');
  }

  write(): Promise<void> {
    assert.fail('a simulated device has no buffers');
  }

  read(): Promise<Float32Array> {
    assert.fail('a simulated device has no buffers');
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}
