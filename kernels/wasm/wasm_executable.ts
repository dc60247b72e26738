/** A loaded program on the wasm device: its memory shards, and the threads that walk them. */
import assert from 'node:assert/strict';
import {
  DeviceError,
  hiddenRowsOf,
  type Executable,
  type RowSampler,
  type KernelProfile,
  type LoadOptions,
  type RunOptions,
  type SampleResult,
  type Segment,
  type StepExport,
  type StepSection,
} from '../device.ts';
import { HostRowSampler } from './row_sampler.ts';
import { bytesOfLayers, lastStoringLayer, type LayeredRecord, type LayerRange } from '../kv_layout.ts';
import type { Program } from '../program.ts';
import { isAttention, isStore } from '../program_kinds.ts';
import { slotRecord } from '../state_layout.ts';
import { numStateSlotsOf, StateSlotCheck } from '../state_slots.ts';
import type { LoadedShard } from './loaded_shard.ts';
import { profileOf } from './operations.ts';
import type { MemoryShards } from './memory_shards.ts';
import type { OpRange } from './step.ts';
import type { StepThreads } from './step_threads.ts';

/** An executable whose operations can be timed. */
export interface ProfiledExecutable extends Executable {
  /** Runs a batch repeatedly and returns time and work per kind of operation. The next step overwrites the results. */
  profile(batch: readonly Segment[], nowMs: () => number): Promise<KernelProfile[]>;
  /** Number of memory shards, each with a memory of its own. */
  readonly numShards: number;
}

/** Steps per profile; the median of each operation's times counts. */
const PROFILED_STEPS = 5;

/** A program loaded on the wasm device. */
export class WasmExecutable implements ProfiledExecutable {
  readonly blockBytes: number;
  readonly numBlocks: number;
  readonly numStateSlots: number;
  readonly memoryBytes: number;
  readonly numShards: number;
  /** No limit: unlike the driver of a GPU, nothing ends work on a CPU that takes long. */
  readonly maxRowsNow = Infinity;
  readonly numAhead = 0;
  /** No limit: blocks are copied straight out of the memory. */
  readonly numExportable = Infinity;
  readonly sampling: Executable['sampling'];
  readonly hiddenWidth: number;
  readonly #program: Program;
  readonly #options: LoadOptions;
  readonly #cut: MemoryShards;
  readonly #shards: readonly LoadedShard[];
  /** The first memory shard, which embeds and samples. */
  readonly #home: LoadedShard;
  readonly #threads: StepThreads;
  readonly #stateSlots: StateSlotCheck;

  constructor(
    program: Program,
    options: LoadOptions,
    cut: MemoryShards,
    shards: readonly LoadedShard[],
    threads: StepThreads,
  ) {
    const [home] = shards;
    assert(home, 'a program has a memory shard');
    this.blockBytes = options.kv.blockBytes;
    this.numBlocks = options.numBlocks.max;
    this.memoryBytes = shards.reduce((sum, shard) => sum + shard.memoryBytes, 0);
    this.numShards = shards.length;
    this.sampling = { vocab: home.io.vocab, numPages: options.samplerPages ?? 0 };
    this.hiddenWidth = home.io.hiddenWidth;
    this.#program = program;
    this.#options = options;
    this.#cut = cut;
    this.#shards = shards;
    this.#home = home;
    this.#threads = threads;
    this.numStateSlots = numStateSlotsOf(options);
    this.#stateSlots = new StateSlotCheck(options);
  }

  async run(batch: readonly Segment[], { exports, section }: RunOptions = {}): Promise<SampleResult[]> {
    const hidden = hiddenRowsOf(batch, this.hiddenWidth);
    this.#write(batch);
    this.#walk(this.#opsOf(section), exports && this.#exporting(exports));
    if (section?.until !== undefined) return [];
    this.#home.io.readHidden(hidden);
    return this.#home.io.read();
  }

  #write(batch: readonly Segment[]): void {
    this.#stateSlots.check(batch);
    for (const { io } of this.#shards) io.write(batch, this.#threads.numThreads);
  }

  /**
   * Runs a range of the operations of the whole program, memory shard by memory shard. `onDone` is called after each with its index in
   * the program. `isSingle`: every operation runs by itself, with a barrier after it.
   */
  #walk(ops: OpRange, onDone?: (op: number) => void, isSingle = false): void {
    for (const { shard: index, ops: own, at, carried } of this.#cut.runs) {
      const [first, end] = [Math.max(ops.first, own.first), Math.min(ops.end, own.end)];
      const shard = this.#shards[index];
      if (first >= end || !shard) continue;
      shard.io.announce(this.#threads.control);
      // A step that resumes in the middle of a run already has the carried buffers there.
      if (first === own.first)
        for (const { buffer, from } of carried) shard.carry(buffer, this.#shards[from]!, this.#threads.control);
      const offset = at - own.first;
      this.#threads.run(
        index,
        { first: first + offset, end: end + offset },
        onDone &&
          ((op) => {
            onDone(op - offset);
          }),
        isSingle,
      );
    }
  }

  #opsOf({ from, until }: StepSection = { from: undefined, until: undefined }): OpRange {
    const { operations } = this.#program;
    const before = (layer: number): number => {
      const found = operations.findIndex((op) => isAttention(op) && op.layer >= layer);
      return found < 0 ? operations.length : found;
    };
    return {
      first: from === undefined ? 0 : before(from),
      end: until === undefined ? operations.length : before(until),
    };
  }

  /**
   * Returns a callback that runs after each operation. The callback copies a frame out of the blocks when the frame's last layer with
   * KV has been stored.
   */
  #exporting({ blocks, outs, onRange }: StepExport): (op: number) => void {
    const { kv } = this.#options;
    let next = 0;
    return (op) => {
      const [operation, range] = [this.#program.operations[op], kv.frames[next]];
      if (!isStore(operation) || !range) return;
      if (operation.layer !== lastStoringLayer(kv, range)) return;
      this.#copyOut(blocks, outs, range);
      onRange(next++);
    };
  }

  #copyOut(blockIds: readonly number[], outs: readonly Uint8Array[], layers: LayerRange): void {
    const range = bytesOfLayers(this.#options.kv, layers);
    blockIds.forEach((block, i) => {
      this.#check(block);
      for (const { blocks } of this.#shards) blocks.copyOut(block, range, outs[i]!);
    });
  }

  #check(blockId: number): void {
    if (blockId < 0 || blockId >= this.numBlocks) assert.fail(`block ${blockId} does not exist`);
  }

  /** Times every operation by itself, barrier included: the median of PROFILED_STEPS steps. */
  profile(batch: readonly Segment[], nowMs: () => number): Promise<KernelProfile[]> {
    this.#write(batch);
    const steps = Array.from({ length: PROFILED_STEPS }, () => {
      const ends: number[] = [];
      const start = nowMs();
      this.#walk(this.#opsOf(), () => ends.push(nowMs()), true);
      return ends.map((end, i) => end - (ends[i - 1] ?? start));
    });
    const median = (op: number): number => steps.map((ms) => ms[op]!).sort((a, b) => a - b)[PROFILED_STEPS >> 1]!;
    const times = this.#program.operations.map((_, op) => median(op));
    return Promise.resolve(profileOf(this.#program, this.#options, batch, times));
  }

  get #allLayers(): LayerRange {
    return { firstLayer: 0, numLayers: this.#options.kv.layers.length };
  }

  exportBlocks(blockIds: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    this.#copyOut(blockIds, outs, this.#allLayers);
    return Promise.resolve();
  }

  importBlocks(
    blockIds: readonly number[],
    payloads: readonly Uint8Array[],
    layers: LayerRange = this.#allLayers,
  ): Promise<void> {
    const range = bytesOfLayers(this.#options.kv, layers);
    blockIds.forEach((block, i) => {
      this.#check(block);
      const payload = payloadOf(payloads[i]!, range.bytes);
      for (const { blocks } of this.#shards) blocks.copyIn(block, range, payload);
    });
    return Promise.resolve();
  }

  copyBlocks(from: readonly number[], to: readonly number[]): void {
    from.forEach((block, i) => {
      this.#check(block);
      this.#check(to[i]!);
      for (const { blocks } of this.#shards) blocks.copyRecord(block, to[i]!);
    });
  }

  get #slotRecord(): LayeredRecord {
    const { state } = this.#options;
    if (!state) throw new DeviceError('the program has no recurrent layers, and so no states');
    return slotRecord(state);
  }

  exportStates(slots: readonly number[], outs: readonly Uint8Array[]): Promise<void> {
    this.#stateSlots.checkSlots(slots);
    const range = bytesOfLayers(this.#slotRecord, this.#allLayers);
    for (const { states } of this.#shards)
      slots.forEach((slot, i) => {
        states.copyOut(slot, range, outs[i]!);
      });
    return Promise.resolve();
  }

  importStates(
    slots: readonly number[],
    payloads: readonly Uint8Array[],
    layers: LayerRange = this.#allLayers,
  ): Promise<void> {
    this.#stateSlots.checkSlots(slots);
    const range = bytesOfLayers(this.#slotRecord, layers);
    slots.forEach((slot, i) => {
      const payload = payloadOf(payloads[i]!, range.bytes);
      for (const { states } of this.#shards) states.copyIn(slot, range, payload);
    });
    return Promise.resolve();
  }

  copyStates(from: readonly number[], to: readonly number[]): void {
    this.#stateSlots.checkSlots([...from, ...to]);
    from.forEach((slot, i) => {
      for (const { states } of this.#shards) states.copyRecord(slot, to[i]!);
    });
  }

  rowSampler(): RowSampler {
    return new HostRowSampler(this.sampling.vocab);
  }

  writeSamplerPage(page: number, first: number, values: Int32Array | Uint32Array): void {
    this.#home.io.writePage(page, first, values);
  }

  /**
   * Returns the memory shard that has a buffer when a step begins (`first`) or ends (`last`). @throws DeviceError for an unknown
   * buffer.
   */
  #owner(buffer: string, when: 'first' | 'last'): LoadedShard {
    const owner = this.#shards[this.#cut.owners.get(buffer)?.[when] ?? -1];
    if (!owner) throw new DeviceError(`the program has no buffer ${buffer}`);
    return owner;
  }

  write(buffer: string, values: Float32Array): Promise<void> {
    this.#owner(buffer, 'first').write(buffer, values);
    return Promise.resolve();
  }

  read(buffer: string, numRows: number): Promise<Float32Array> {
    return Promise.resolve(this.#owner(buffer, 'last').read(buffer, numRows));
  }

  close(): Promise<void> {
    return this.#threads.close();
  }
}

/** Returns the payload. @throws AssertionError when it has another size than the layers that it is said to hold. */
function payloadOf(payload: Uint8Array, bytes: number): Uint8Array {
  if (payload.length !== bytes) assert.fail(`a payload of these layers has ${bytes} bytes, not ${payload.length}`);
  return payload;
}
