/**
 * A loaded program on a GPU. A step is one upload, one compute pass and one submit (several where one would take too long), encoded
 * while the step before runs; a few bytes per sample are read back. A further step may be submitted while one runs: the queue keeps
 * their order, and each has its own read-back buffers.
 *
 * Everything was made at load: the steady state allocates nothing on the device. When the device is lost, steps
 * in flight and all later calls fail with a DeviceError that has the reason.
 */
import assert from 'node:assert/strict';
import {
  DeviceError,
  hiddenRowsOf,
  type Executable,
  type KernelProfile,
  type LoadOptions,
  type RunOptions,
  type SampleResult,
  type Segment,
  type RowSampler,
} from '../device.ts';
import { HostRowSampler } from '../host/row_sampler.ts';
import type { LayerRange } from '../kv_layout.ts';
import type { Program } from '../program.ts';
import { samplingOf } from '../program_kinds.ts';
import { numStateSlotsOf, StateSlotCheck } from '../state_slots.ts';
import type { BlockTransfer } from './block_transfer.ts';
import type { DispatchList } from './dispatch_list.ts';
import { rowStride } from './dispatch_plan.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { HiddenStates } from './hidden_states.ts';
import { polled } from './polling.ts';
import { NamedBuffers } from './named_buffers.ts';
import { profileDispatches } from './profile.ts';
import { NUM_AHEAD, ReadBack, type BackBytes } from './read_back.ts';
import { samplesFrom } from './sample_results.ts';
import { StepCommands } from './step_commands.ts';
import { submitSlices } from './step_slices.ts';
import type { StateTransfer } from './state_transfer.ts';
import type { StepExporter } from './step_export.ts';
import { SubmitBudget } from './submit_budget.ts';
import { attendedTokens, type StepCounts, type StepState } from './step_state.ts';

/** Objects and buffers that program_loader.ts makes for an executable. */
export interface ExecutableResources {
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
  readonly samplerPages: GPUBuffer;
  readonly buffers: ReadonlyMap<string, GPUBuffer>;
  readonly transfer: BlockTransfer | undefined;
  readonly exporter: StepExporter | undefined;
  readonly stateSlots: StateTransfer | undefined;
  /** Why the device is gone, once it is. */
  readonly lost: () => string | undefined;
}

/** A program loaded on a GPU. */
export class WebgpuExecutable implements Executable {
  readonly blockBytes: number;
  readonly numBlocks: number;
  readonly numStateSlots: number;
  readonly numAhead = NUM_AHEAD;
  readonly numExportable: number;
  readonly sampling: Executable['sampling'];
  readonly hiddenWidth: number;
  readonly #parts: ExecutableResources;
  readonly #logits: GPUBuffer | undefined;
  readonly #hidden: HiddenStates;
  readonly #logitsStride: number;
  readonly #vocab: number;
  readonly #readBacks: readonly ReadBack[];
  readonly #commands: StepCommands;
  readonly #budget: SubmitBudget;
  readonly #named: NamedBuffers;
  readonly #slotCheck: StateSlotCheck;
  #numSteps = 0;

  private constructor(parts: ExecutableResources, readBacks: readonly ReadBack[]) {
    this.#parts = parts;
    this.blockBytes = parts.blockBytes;
    this.numBlocks = parts.numBlocks;
    this.numStateSlots = numStateSlotsOf(parts.options);
    this.#slotCheck = new StateSlotCheck(parts.options);
    this.#readBacks = readBacks;
    this.#named = new NamedBuffers(parts.device, parts.program, parts.buffers);
    this.#commands = new StepCommands(parts.device, parts.list.dispatches, parts.results);
    // Device times are real even when the caller simulates time: without a clock in the options, use performance.now().
    const { maxBlocksPerSequence, kv, nowMs = () => performance.now() } = parts.options;
    this.#budget = new SubmitBudget(parts.list.dispatches, maxBlocksPerSequence * kv.blockSize, nowMs);
    this.numExportable = parts.exporter?.numBlocks ?? 0;
    const { program, buffers } = parts;
    const sampling = samplingOf(program);
    this.#vocab = sampling?.vocab ?? 0;
    this.sampling = { vocab: this.#vocab, numPages: parts.options.samplerPages ?? 0 };
    this.#logits = sampling && buffers.get(sampling.logits);
    this.#hidden = new HiddenStates(parts.device, program, buffers);
    this.hiddenWidth = this.#hidden.width;
    this.#logitsStride = sampling ? rowStride(program.buffers[sampling.logits]?.width ?? 0) : 0;
  }

  static async create(parts: ExecutableResources): Promise<WebgpuExecutable> {
    const { memory, options, program } = parts;
    const readBacks = await ReadBack.createAll(memory, program, options);
    return new WebgpuExecutable(parts, readBacks);
  }

  get maxRowsNow(): number {
    return this.#budget.maxRows;
  }

  /** Submits the step synchronously; the promise resolves with the results when they have been read back. */
  async run(batch: readonly Segment[], options: RunOptions = {}): Promise<SampleResult[]> {
    this.#throwIfLost();
    const { device, exporter } = this.#parts;
    // Steps use the read-back buffers in turn, since they end in order.
    const turn = this.#numSteps++ % this.#readBacks.length;
    const back = this.#readBacks[turn]!;
    assert(!back.isInUse, `at most ${NUM_AHEAD} steps may be submitted while one runs`);
    const counts = this.#upload(batch);
    const attended = attendedTokens(batch);
    const done = this.#budget.begin(counts, attended, isWholeStep(options));
    const { requests } = counts;
    const isLast = options.section?.until === undefined;
    const isSampled = this.#logits !== undefined && isLast;
    const hidden = isLast ? hiddenRowsOf(batch, this.hiddenWidth) : [];
    const copy = { to: back.results, bytes: isSampled ? counts.resultWords * 4 : 0 };
    const fullRows = requests.flatMap(({ isFullRowWanted }, i) => (isSampled && isFullRowWanted ? [i] : []));
    const cuts = this.#budget.cuts(counts, attended);
    const isWhole = !options.exports && !options.section && cuts.length === 0;
    const commands = isWhole
      ? [this.#commands.take(counts, copy)]
      : [submitSlices({ ...this.#parts, commands: this.#commands }, counts, options, cuts, copy, turn)];
    const bytes: BackBytes = {
      results: copy.bytes,
      rows: fullRows.length * this.#vocab * 4,
      hidden: this.#hidden.bytesOf(hidden),
    };
    if (bytes.rows > 0) commands.push(this.#copyRows(fullRows, back.rows));
    if (bytes.hidden > 0) commands.push(this.#hidden.copy(hidden, back.hidden));
    device.queue.submit(commands);
    const isEmpty = bytes.results === 0 && bytes.hidden === 0;
    back.isInUse = !isEmpty;
    // Encodes the likely next step ahead; a failure there rejects this step.
    const prepared = Promise.resolve().then(() => {
      this.#commands.prepare(this.#readBacks[this.#numSteps % this.#readBacks.length]!.results);
    });
    const exported = options.exports && exporter ? exporter.arrived(options.exports, turn) : Promise.resolve();
    // The caller gets this rejection through the await below; the handler only keeps it from counting as unhandled before.
    exported.catch(() => undefined);
    if (isEmpty) {
      await this.#finish(Promise.all([prepared, device.queue.onSubmittedWorkDone(), exported]));
      done();
      return [];
    }
    try {
      await this.#finish(Promise.all([prepared, exported, ...back.map(bytes)]));
      done();
      back.readHidden(bytes.hidden, (values) => {
        this.#hidden.read(values, hidden);
      });
      const { words, rows } = back.read(bytes.results, fullRows, this.#vocab);
      return samplesFrom(requests, this.#vocab, words, rows);
    } finally {
      back.isInUse = false;
    }
  }

  rowSampler(): RowSampler {
    return new HostRowSampler(this.#vocab);
  }

  writeSamplerPage(page: number, first: number, values: Int32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>): void {
    this.#throwIfLost();
    const { device, samplerPages, options } = this.#parts;
    assert(page < (options.samplerPages ?? 0), `there is no page ${page}`);
    assert(first + values.length <= this.#vocab, 'a sampler page has one value per token of the vocabulary');
    device.queue.writeBuffer(samplerPages, (page * this.#vocab + first) * 4, values);
  }

  #throwIfLost(): void {
    const reason = this.#parts.lost();
    if (reason !== undefined) throw new DeviceError(`the GPU was lost: ${reason}`);
  }

  /** Awaits the device. A loss of the device in the meantime is thrown as DeviceError, whether or not Dawn rejects the promise. */
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
    this.#slotCheck.check(batch);
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

  copyBlocks(from: readonly number[], to: readonly number[]): void {
    this.#throwIfLost();
    this.#transfer([...from, ...to]).copyBlocks(from, to);
  }

  async exportStates(slots: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    this.#throwIfLost();
    await this.#finish(this.#stateTransfer(slots).exportStates(slots, outs));
  }

  async importStates(slots: readonly number[], payloads: readonly Uint8Array[], range?: LayerRange): Promise<void> {
    this.#throwIfLost();
    await this.#finish(this.#stateTransfer(slots).importStates(slots, payloads, range));
  }

  copyStates(from: readonly number[], to: readonly number[]): void {
    this.#throwIfLost();
    this.#stateTransfer([...from, ...to]).copyStates(from, to);
  }

  #stateTransfer(slots: readonly number[]): StateTransfer {
    const { stateSlots } = this.#parts;
    if (!stateSlots) throw new DeviceError('the program has no recurrent layers, and so no states');
    this.#slotCheck.checkSlots(slots);
    return stateSlots;
  }

  #transfer(blockIds: readonly number[]): BlockTransfer {
    const { transfer } = this.#parts;
    assert(transfer, 'the program has no KV blocks');
    for (const block of blockIds) assert(block >= 0 && block < this.numBlocks, `no block ${block}`);
    return transfer;
  }

  write(name: string, values: Float32Array): Promise<void> {
    this.#named.write(name, values);
    return Promise.resolve();
  }

  read(name: string, numRows: number): Promise<Float32Array> {
    return this.#named.read(name, numRows, (mapped) => this.#finish(mapped));
  }

  /** Returns the cost of the batch's kernels, by label. The next step overwrites what they compute. */
  profile(batch: readonly Segment[], nowMs: () => number): Promise<KernelProfile[]> {
    const { device, list } = this.#parts;
    const done = (): Promise<void> => this.#finish(device.queue.onSubmittedWorkDone());
    return profileDispatches(device, list.dispatches, this.#upload(batch), attendedTokens(batch), done, nowMs);
  }

  /** Returns the number of dispatches in a step of this batch. */
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

/** Whether the step's time shows how fast the device is: neither a section nor a step with exports. */
function isWholeStep({ section, exports }: RunOptions): boolean {
  return !section && !exports;
}
