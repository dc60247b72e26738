/**
 * A loaded program on a GPU: one upload, one compute pass and one submit a step; a few bytes back per sample.
 *
 * Everything was made at load: the steady state allocates nothing on the device. A lost device rejects what runs and whatever
 * is asked afterwards with the reason.
 */
import assert from 'node:assert/strict';
import {
  DeviceError,
  type SampleRequest,
  type Executable,
  type KernelProfile,
  type LoadOptions,
  type SampleResult,
  type Segment,
} from '../device.ts';
import type { Program } from '../program.ts';
import type { BlockTransfer } from './block_transfer.ts';
import { encode, rowStride, type Dispatch } from './dispatch_plan.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { polled } from './polling.ts';
import { profileDispatches } from './profile.ts';
import { attendedTokens, MAX_RESULT_WORDS, type StepCounts, type StepState } from './step_state.ts';

/** Full rows of logits that come back at once; more go in rounds. */
const MAX_ROWS_BACK = 8;
/** What {@link WebgpuExecutable} makes to bring rows of logits back. */
export function rowsBackBytes(vocab: number, maxSamples: number): number {
  return Math.min(MAX_ROWS_BACK, maxSamples) * vocab * 4;
}

export interface ExecutableParts {
  readonly device: GPUDevice;
  readonly program: Program;
  readonly options: LoadOptions;
  readonly numBlocks: number;
  readonly blockBytes: number;
  readonly memory: GpuMemory;
  readonly dispatches: readonly Dispatch[];
  readonly state: StepState;
  readonly step: GPUBuffer;
  readonly results: GPUBuffer;
  readonly buffers: ReadonlyMap<string, GPUBuffer>;
  readonly transfer: BlockTransfer | undefined;
  /** Why the device is gone, once it is. */
  readonly lost: () => string | undefined;
}

export class WebgpuExecutable implements Executable {
  readonly blockBytes: number;
  readonly numBlocks: number;
  readonly #parts: ExecutableParts;
  readonly #logits: GPUBuffer | undefined;
  readonly #logitsStride: number;
  readonly #vocab: number;
  readonly #resultsBack: GPUBuffer;
  readonly #rowsBack: GPUBuffer;

  private constructor(parts: ExecutableParts, resultsBack: GPUBuffer, rowsBack: GPUBuffer) {
    this.#parts = parts;
    this.blockBytes = parts.blockBytes;
    this.numBlocks = parts.numBlocks;
    this.#resultsBack = resultsBack;
    this.#rowsBack = rowsBack;
    const candidates = parts.program.operations.find((op) => op.kind === 'candidates');
    this.#vocab = candidates?.vocab ?? 0;
    this.#logits = candidates && parts.buffers.get(candidates.logits);
    this.#logitsStride = candidates ? rowStride(parts.program.buffers[candidates.logits]?.width ?? 0) : 0;
  }

  static async create(parts: ExecutableParts): Promise<WebgpuExecutable> {
    const { memory, options, program } = parts;
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    const candidates = program.operations.find((op) => op.kind === 'candidates');
    return new WebgpuExecutable(
      parts,
      await memory.allocate('transfer', 'results', options.maxSamples * MAX_RESULT_WORDS * 4, usage),
      await memory.allocate(
        'transfer',
        'rows of logits',
        candidates ? rowsBackBytes(candidates.vocab, options.maxSamples) : 0,
        usage,
      ),
    );
  }

  async run(batch: readonly Segment[], onLayer?: (layer: number) => void): Promise<SampleResult[]> {
    const results = await this.#run(batch);
    if (!onLayer) return results;
    for (const op of this.#parts.program.operations) if (op.kind === 'rope_store') onLayer(op.layer);
    return results;
  }

  async #run(batch: readonly Segment[]): Promise<SampleResult[]> {
    this.#throwIfLost();
    const { device, results } = this.#parts;
    const counts = this.#upload(batch);
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    for (const { launch } of this.#parts.dispatches) encode(pass, launch(counts));
    pass.end();
    const bytes = this.#logits ? counts.resultWords * 4 : 0;
    if (bytes > 0) encoder.copyBufferToBuffer(results, 0, this.#resultsBack, 0, bytes);
    // The first full rows come with the step; more than the buffer holds need another round.
    const [first, ...rounds] = inRounds(fullRowSamples(counts.requests), this.#rowsPerRound);
    if (first) this.#copyRows(encoder, first);
    device.queue.submit([encoder.finish()]);
    if (bytes === 0) {
      await this.#finish(device.queue.onSubmittedWorkDone());
      return [];
    }
    const rows = new Map<number, Float32Array>();
    const mapped = this.#resultsBack.mapAsync(GPUMapMode.READ, 0, bytes);
    const mappedRows = first && this.#rowsBack.mapAsync(GPUMapMode.READ, 0, first.length * this.#vocab * 4);
    await this.#finish(Promise.all([mapped, mappedRows]));
    const words = new Uint32Array(this.#resultsBack.getMappedRange(0, bytes).slice(0));
    this.#resultsBack.unmap();
    if (first) this.#takeRows(first, rows);
    for (const round of rounds) {
      const copies = device.createCommandEncoder();
      this.#copyRows(copies, round);
      device.queue.submit([copies.finish()]);
      await this.#finish(this.#rowsBack.mapAsync(GPUMapMode.READ, 0, round.length * this.#vocab * 4));
      this.#takeRows(round, rows);
    }
    return this.#samples(counts.requests, words, rows);
  }

  #throwIfLost(): void {
    const reason = this.#parts.lost();
    if (reason !== undefined) throw new DeviceError(`the GPU was lost: ${reason}`);
  }

  /** Awaits the device; a loss meanwhile is the error, whatever Dawn says of the promise. */
  async #finish(promise: Promise<unknown>): Promise<void> {
    try {
      await polled(promise);
    } catch (error) {
      this.#throwIfLost();
      throw error;
    }
    this.#throwIfLost();
  }

  #upload(batch: readonly Segment[]): StepCounts {
    const { device, state, step } = this.#parts;
    const counts = state.write(batch);
    device.queue.writeBuffer(step, 0, state.words, 0, state.usedWords);
    return counts;
  }

  get #rowsPerRound(): number {
    return Math.max(1, Math.floor(this.#rowsBack.size / Math.max(1, this.#vocab * 4)));
  }

  #copyRows(encoder: GPUCommandEncoder, samples: readonly number[]): void {
    assert(this.#logits, 'a program that samples has logits');
    const rowBytes = this.#vocab * 4;
    for (const [i, sample] of samples.entries()) {
      encoder.copyBufferToBuffer(this.#logits, sample * this.#logitsStride * 4, this.#rowsBack, i * rowBytes, rowBytes);
    }
  }

  /** Out of the mapped buffer, which is free again afterwards. */
  #takeRows(samples: readonly number[], rows: Map<number, Float32Array>): void {
    const floats = new Float32Array(this.#rowsBack.getMappedRange(0, samples.length * this.#vocab * 4));
    samples.forEach((sample, i) => rows.set(sample, floats.slice(i * this.#vocab, (i + 1) * this.#vocab)));
    this.#rowsBack.unmap();
  }

  #samples(
    requests: readonly SampleRequest[],
    words: Uint32Array<ArrayBuffer>,
    rows: ReadonlyMap<number, Float32Array>,
  ): SampleResult[] {
    const floats = new Float32Array(words.buffer);
    let at = 0;
    return requests.map(({ numCandidates, askedTokens }, i) => {
      const kept = Math.min(Math.max(1, numCandidates), this.#vocab);
      const values = at + kept;
      const stats = values + kept;
      const asked = stats + 2;
      const row = rows.get(i);
      const result: SampleResult = {
        candidateIds: words.slice(at, at + Math.min(numCandidates, kept)),
        candidateLogits: floats.slice(values, values + Math.min(numCandidates, kept)),
        logSumExp: floats[stats]! + Math.log(floats[stats + 1]!),
        askedLogits: floats.slice(asked, asked + askedTokens.length),
        ...(row ? { fullRow: row } : {}),
      };
      at += 2 * Math.max(1, numCandidates) + 2 + askedTokens.length;
      return result;
    });
  }

  async exportBlocks(blockIds: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    this.#throwIfLost();
    await this.#finish(this.#transfer(blockIds).exportBlocks(blockIds, outs));
  }

  async importBlocks(blockIds: readonly number[], payloads: readonly Uint8Array[]): Promise<void> {
    this.#throwIfLost();
    await this.#finish(this.#transfer(blockIds).importBlocks(blockIds, payloads));
  }

  #transfer(blockIds: readonly number[]): BlockTransfer {
    const { transfer } = this.#parts;
    assert(transfer, 'the program has no KV blocks');
    for (const block of blockIds) assert(block >= 0 && block < this.numBlocks, `no block ${block}`);
    return transfer;
  }

  #buffer(name: string): { buffer: GPUBuffer; width: number; stride: number } {
    const { buffers, program } = this.#parts;
    const [buffer, spec] = [buffers.get(name), program.buffers[name]];
    if (!spec) throw new DeviceError(`the program has no buffer ${name}`);
    if (!buffer) throw new DeviceError(`the buffer ${name} is never written here: its operations are one kernel`);
    return { buffer, width: spec.width, stride: rowStride(spec.width) };
  }

  write(name: string, values: Float32Array): Promise<void> {
    const { buffer, width, stride } = this.#buffer(name);
    const numRows = Math.ceil(values.length / width);
    const padded = new Float32Array(numRows * stride);
    for (let row = 0; row < numRows; row++) padded.set(values.subarray(row * width, (row + 1) * width), row * stride);
    this.#parts.device.queue.writeBuffer(buffer, 0, padded);
    return Promise.resolve();
  }

  async read(name: string, numRows: number): Promise<Float32Array> {
    const { buffer, width, stride } = this.#buffer(name);
    const { device } = this.#parts;
    const bytes = numRows * stride * 4;
    const staging = device.createBuffer({ size: bytes, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ });
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, 0, staging, 0, bytes);
    device.queue.submit([encoder.finish()]);
    await this.#finish(staging.mapAsync(GPUMapMode.READ));
    const padded = new Float32Array(staging.getMappedRange().slice(0));
    staging.destroy();
    const out = new Float32Array(numRows * width);
    for (let row = 0; row < numRows; row++) out.set(padded.subarray(row * stride, row * stride + width), row * width);
    return out;
  }

  /** What the kernels of a step cost; what it computes is overwritten by the next one. */
  profile(batch: readonly Segment[], nowMs: () => number): Promise<KernelProfile[]> {
    const { device, dispatches } = this.#parts;
    const done = (): Promise<void> => this.#finish(device.queue.onSubmittedWorkDone());
    return profileDispatches(device, dispatches, this.#upload(batch), attendedTokens(batch), done, nowMs);
  }

  /** Dispatches that a step of this batch has. */
  numDispatches(batch: readonly Segment[]): number {
    const counts = this.#parts.state.write(batch);
    return this.#parts.dispatches.filter(({ launch }) => launch(counts) !== undefined).length;
  }

  async close(): Promise<void> {
    const { device, memory, lost } = this.#parts;
    if (lost() === undefined) await polled(device.queue.onSubmittedWorkDone());
    memory.destroy();
  }
}

/** Samples, counted from the batch's first, that want all their logits. */
function fullRowSamples(requests: readonly SampleRequest[]): number[] {
  return requests.flatMap(({ isFullRowWanted }, i) => (isFullRowWanted ? [i] : []));
}

function inRounds(samples: readonly number[], size: number): number[][] {
  return Array.from({ length: Math.ceil(samples.length / size) }, (_, i) => samples.slice(i * size, (i + 1) * size));
}
