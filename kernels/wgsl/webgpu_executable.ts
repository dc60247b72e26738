/**
 * A loaded program on a GPU: one upload, one compute pass and one submit a step (several where one would take too long), encoded while the step before runs; a few bytes back per
 * sample. A further step may be submitted while one runs: the queue keeps their order, and each has its own buffers to come back in.
 *
 * Everything was made at load: the steady state allocates nothing on the device. A lost device rejects what runs and whatever
 * is asked afterwards with the reason.
 */
import assert from 'node:assert/strict';
import {
  DeviceError,
  MAX_FULL_ROWS,
  type SampleRequest,
  type Executable,
  type KernelProfile,
  type LoadOptions,
  type RunOptions,
  type SampleResult,
  type Segment,
  type RowDrawer,
} from '../device.ts';
import { NO_TOKEN } from '../draw.ts';
import { HostRowDrawer } from '../host/row_drawer.ts';
import { lastStoringLayer, type LayerRange } from '../kv_layout.ts';
import { samplingOf, type Program } from '../program.ts';
import type { BlockTransfer } from './block_transfer.ts';
import type { DispatchList } from './dispatch_list.ts';
import { rowStride } from './dispatch_plan.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { polled } from './polling.ts';
import { profileDispatches } from './profile.ts';
import { StepCommands, type ResultCopy } from './step_commands.ts';
import type { StepExporter } from './step_export.ts';
import { SubmitBudget } from './submit_budget.ts';
import { attendedTokens, MAX_RESULT_WORDS, resultWordsOf, type StepCounts, type StepState } from './step_state.ts';

/** Steps that are given before the first of them has returned. */
export const NUM_AHEAD = 1;

/** What {@link WebgpuExecutable} makes to bring rows of logits back. */
export function rowsBackBytes(vocab: number, maxSamples: number): number {
  return (1 + NUM_AHEAD) * Math.min(MAX_FULL_ROWS, maxSamples) * vocab * 4;
}

/** Where the results of a step that was submitted come back. */
interface ReadBack {
  readonly results: GPUBuffer;
  readonly rows: GPUBuffer;
  isInUse: boolean;
}

export interface ExecutableParts {
  readonly device: GPUDevice;
  readonly program: Program;
  readonly options: LoadOptions;
  readonly numBlocks: number;
  readonly blockBytes: number;
  readonly memory: GpuMemory;
  readonly list: DispatchList;
  readonly state: StepState;
  readonly step: GPUBuffer;
  readonly results: GPUBuffer;
  readonly drawPages: GPUBuffer;
  readonly buffers: ReadonlyMap<string, GPUBuffer>;
  readonly transfer: BlockTransfer | undefined;
  readonly exporter: StepExporter | undefined;
  /** Why the device is gone, once it is. */
  readonly lost: () => string | undefined;
}

export class WebgpuExecutable implements Executable {
  readonly blockBytes: number;
  readonly numBlocks: number;
  readonly numAhead = NUM_AHEAD;
  readonly numExportable: number;
  readonly draws: Executable['draws'];
  readonly #parts: ExecutableParts;
  readonly #logits: GPUBuffer | undefined;
  readonly #logitsStride: number;
  readonly #vocab: number;
  readonly #readBacks: readonly ReadBack[];
  readonly #commands: StepCommands;
  readonly #budget: SubmitBudget;
  #numSteps = 0;

  private constructor(parts: ExecutableParts, readBacks: readonly ReadBack[]) {
    this.#parts = parts;
    this.blockBytes = parts.blockBytes;
    this.numBlocks = parts.numBlocks;
    this.#readBacks = readBacks;
    this.#commands = new StepCommands(parts.device, parts.list.dispatches, parts.results);
    // What a device takes is real, whatever clock its caller has.
    const { maxBlocksPerSequence, kv, nowMs = () => performance.now() } = parts.options;
    this.#budget = new SubmitBudget(parts.list.dispatches, maxBlocksPerSequence * kv.blockSize, nowMs);
    this.numExportable = parts.exporter?.numBlocks ?? 0;
    const { program, buffers } = parts;
    const sampling = samplingOf(program);
    this.#vocab = sampling?.vocab ?? 0;
    this.draws = { vocab: this.#vocab, numPages: parts.options.drawPages ?? 0 };
    this.#logits = sampling && buffers.get(sampling.logits);
    this.#logitsStride = sampling ? rowStride(program.buffers[sampling.logits]?.width ?? 0) : 0;
  }

  static async create(parts: ExecutableParts): Promise<WebgpuExecutable> {
    const { memory, options, program } = parts;
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    const rowBytes = rowsBackBytes(samplingOf(program)?.vocab ?? 0, options.maxSamples) / (1 + NUM_AHEAD);
    const readBacks: ReadBack[] = [];
    for (let i = 0; i <= NUM_AHEAD; i++) {
      readBacks.push({
        results: await memory.allocate('transfer', 'results', options.maxSamples * MAX_RESULT_WORDS * 4, usage),
        rows: await memory.allocate('transfer', 'rows of logits', rowBytes, usage),
        isInUse: false,
      });
    }
    return new WebgpuExecutable(parts, readBacks);
  }

  get maxRowsNow(): number {
    return this.#budget.maxRows;
  }

  /** Submits before it returns; what it awaits is the results. */
  async run(batch: readonly Segment[], options: RunOptions = {}): Promise<SampleResult[]> {
    this.#throwIfLost();
    const { device, exporter } = this.#parts;
    // In turns: steps end in order.
    const turn = this.#numSteps++ % this.#readBacks.length;
    const back = this.#readBacks[turn]!;
    assert(!back.isInUse, `at most ${NUM_AHEAD} steps are given while one runs`);
    const counts = this.#upload(batch);
    const attended = attendedTokens(batch);
    const done = this.#budget.begin(counts, attended, isWholeStep(options));
    const { requests } = counts;
    const isDrawn = this.#logits !== undefined && options.part?.until === undefined;
    const bytes = isDrawn ? counts.resultWords * 4 : 0;
    const copy = { to: back.results, bytes };
    const fullRows = requests.flatMap(({ isFullRowWanted }, i) => (isDrawn && isFullRowWanted ? [i] : []));
    const cuts = this.#budget.cuts(counts, attended);
    const isWhole = !options.exports && !options.part && cuts.length === 0;
    const commands = isWhole
      ? [this.#commands.take(counts, copy)]
      : [this.#inPieces(counts, options, cuts, copy, turn)];
    if (fullRows.length > 0) commands.push(this.#copyRows(fullRows, back.rows));
    device.queue.submit(commands);
    back.isInUse = bytes > 0;
    // A failure is this step's.
    const prepared = Promise.resolve().then(() => {
      this.#commands.prepare(this.#readBacks[this.#numSteps % this.#readBacks.length]!.results);
    });
    const exported = options.exports && exporter ? exporter.arrived(options.exports, turn) : Promise.resolve();
    // Whoever waits for the step hears of it.
    exported.catch(() => undefined);
    if (bytes === 0) {
      await this.#finish(Promise.all([prepared, device.queue.onSubmittedWorkDone(), exported]));
      done();
      return [];
    }
    try {
      const mapped = [prepared, exported, back.results.mapAsync(GPUMapMode.READ, 0, bytes)];
      const rowBytes = fullRows.length * this.#vocab * 4;
      if (rowBytes > 0) mapped.push(back.rows.mapAsync(GPUMapMode.READ, 0, rowBytes));
      await this.#finish(Promise.all(mapped));
      done();
      const words = new Uint32Array(back.results.getMappedRange(0, bytes).slice(0));
      back.results.unmap();
      const rows = new Map<number, Float32Array>();
      if (rowBytes > 0) {
        const floats = new Float32Array(back.rows.getMappedRange(0, rowBytes).slice(0));
        fullRows.forEach((sample, i) => rows.set(sample, floats.subarray(i * this.#vocab, (i + 1) * this.#vocab)));
        back.rows.unmap();
      }
      return samplesFrom(requests, this.#vocab, words, rows);
    } finally {
      back.isInUse = false;
    }
  }

  /** All but the last piece are submitted; that one is returned. A piece can be waited for without the others. */
  #inPieces(
    counts: StepCounts,
    { exports, part }: RunOptions,
    cuts: readonly number[],
    copy: ResultCopy,
    turn: number,
  ): GPUCommandBuffer {
    const { device, exporter, list } = this.#parts;
    let first = part?.from === undefined ? 0 : list.numUntilAttention[part.from]!;
    const end = part?.until === undefined ? list.dispatches.length : list.numUntilAttention[part.until]!;
    /** Submits what is before each cut up to `until`. */
    const submitCuts = (until: number): void => {
      for (const cut of cuts) {
        if (cut <= first || cut >= until) continue;
        const encoder = device.createCommandEncoder();
        this.#commands.encodePiece(encoder, counts, first, cut);
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
        this.#commands.encodePiece(encoder, counts, first, stored);
        exporter.encode(encoder, range, exports.blocks.length, turn);
        device.queue.submit([encoder.finish()]);
        first = stored;
      });
    }
    submitCuts(end);
    const encoder = device.createCommandEncoder();
    this.#commands.encodePiece(encoder, counts, first, end, copy);
    return encoder.finish();
  }

  rowDrawer(): RowDrawer {
    return new HostRowDrawer(this.#vocab);
  }

  writeDrawPage(page: number, first: number, values: Int32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>): void {
    this.#throwIfLost();
    const { device, drawPages, options } = this.#parts;
    assert(page < (options.drawPages ?? 0), `there is no page ${page}`);
    assert(first + values.length <= this.#vocab, 'a page has a value a token');
    device.queue.writeBuffer(drawPages, (page * this.#vocab + first) * 4, values);
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

  #copyRows(samples: readonly number[], to: GPUBuffer): GPUCommandBuffer {
    const encoder = this.#parts.device.createCommandEncoder();
    const rowBytes = this.#vocab * 4;
    for (const [i, sample] of samples.entries()) {
      assert(this.#logits, 'a program that samples has logits');
      encoder.copyBufferToBuffer(this.#logits, sample * this.#logitsStride * 4, to, i * rowBytes, rowBytes);
    }
    return encoder.finish();
  }

  async exportBlocks(blockIds: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    this.#throwIfLost();
    await this.#finish(this.#transfer(blockIds).exportBlocks(blockIds, outs));
  }

  async importBlocks(blockIds: readonly number[], payloads: readonly Uint8Array[], range?: LayerRange): Promise<void> {
    this.#throwIfLost();
    await this.#finish(this.#transfer(blockIds).importBlocks(blockIds, payloads, range));
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
    const { device, list } = this.#parts;
    const done = (): Promise<void> => this.#finish(device.queue.onSubmittedWorkDone());
    return profileDispatches(device, list.dispatches, this.#upload(batch), attendedTokens(batch), done, nowMs);
  }

  /** Dispatches that a step of this batch has. */
  numDispatches(batch: readonly Segment[]): number {
    const counts = this.#parts.state.write(batch);
    return this.#parts.list.dispatches.filter(({ launch }) => launch(counts) !== undefined).length;
  }

  async close(): Promise<void> {
    const { device, memory, lost } = this.#parts;
    if (lost() === undefined) await polled(device.queue.onSubmittedWorkDone());
    memory.destroy();
  }
}

/** Whether what it takes says how fast the device is. */
function isWholeStep({ part, exports }: RunOptions): boolean {
  return !part && !exports;
}

/** As step_state.ts has laid them out. */
function samplesFrom(
  requests: readonly SampleRequest[],
  vocab: number,
  words: Uint32Array<ArrayBuffer>,
  rows: ReadonlyMap<number, Float32Array>,
): SampleResult[] {
  const floats = new Float32Array(words.buffer);
  let at = 0;
  return requests.map(({ numCandidates, askedTokens, draw }, i) => {
    const kept = Math.min(numCandidates, vocab);
    const ids = at + 2;
    const values = ids + kept;
    const stats = values + kept;
    const asked = kept > 0 ? stats + 2 : at + 1;
    const row = rows.get(i);
    const token = draw ? words[at]! : NO_TOKEN;
    const result: SampleResult = {
      token,
      tokenLogit: kept > 0 && token !== NO_TOKEN ? floats[at + 1]! : NaN,
      candidateIds: words.slice(ids, ids + kept),
      candidateLogits: floats.slice(values, values + kept),
      logSumExp: kept > 0 ? floats[stats]! + Math.log(floats[stats + 1]!) : NaN,
      askedLogits: floats.slice(asked, asked + askedTokens.length),
      ...(row ? { fullRow: row } : {}),
    };
    at += resultWordsOf(numCandidates, askedTokens.length);
    return result;
  });
}
