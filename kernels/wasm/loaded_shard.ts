/** A memory shard with its memory: writes input and reads output of steps, and copies KV blocks and buffers. */
import assert from 'node:assert/strict';
import type { LoadOptions } from '../device.ts';
import { bytesOfLayers } from '../kv_layout.ts';
import type { Program } from '../program.ts';
import { isAttention } from '../program_kinds.ts';
import { paddedWidth } from './panels.ts';
import type { MemoryShard } from './memory_shards.ts';
import { slotRecord } from '../state_layout.ts';
import type { ProgramLayout } from './program_layout.ts';
import { RecordRegion } from './record_region.ts';
import { countCells, newTaskCells, type StepShard } from './shared_step.ts';
import { StepIo } from './step_io.ts';

/** One memory shard in its memory: input and output of steps, and copies of KV blocks and buffers. */
export class LoadedShard {
  readonly io: StepIo;
  readonly step: StepShard;
  readonly memoryBytes: number;
  /** The memory shard's layers of every KV block, and of every state slot. */
  readonly blocks: RecordRegion;
  readonly states: RecordRegion;
  readonly #layout: ProgramLayout;
  readonly #f32: Float32Array;
  readonly #bytes: Uint8Array;

  /** `whole`: load options of the whole program; `options`: those of the memory shard. */
  constructor(
    { program, layers }: MemoryShard,
    whole: LoadOptions,
    layout: ProgramLayout,
    options: LoadOptions,
    memory: WebAssembly.Memory,
  ) {
    this.#layout = layout;
    const ofSlot = whole.state ? bytesOfLayers(slotRecord(whole.state), layers) : { at: 0, bytes: 0 };
    this.blocks = new RecordRegion(memory, layout.kv, bytesOfLayers(whole.kv, layers));
    this.states = new RecordRegion(memory, layout.state, ofSlot);
    this.io = new StepIo(program, layout, options, memory);
    const { operations, ownOperations, steps: plan, scratch, scratchBytes, spanPartials } = layout;
    const tasks = newTaskCells(operations.length, spanPartials.maxTiles * headsOf(program));
    this.step = { memory, operations, ownOperations, plan, tasks, scratch, scratchBytes };
    this.memoryBytes = memory.buffer.byteLength;
    this.#f32 = new Float32Array(memory.buffer);
    this.#bytes = new Uint8Array(memory.buffer);
  }

  /** Copies the step's rows of a buffer from the memory shard that computed them into this one. `control` has the numbers of rows. */
  carry(buffer: string, from: LoadedShard, control: Int32Array): void {
    const own = this.#buffer(buffer);
    const { rows, perRow = 1, width } = own.spec;
    const numRows = perRow * control[countCells[rows]]!;
    const numBytes = numRows * paddedWidth(width) * 4;
    const { at } = from.#buffer(buffer);
    this.#bytes.set(from.#bytes.subarray(at, at + numBytes), own.at);
  }

  #buffer(name: string): { at: number; spec: Program['buffers'][string] } {
    const buffer = this.#layout.buffers.get(name);
    assert(buffer, `the program has no buffer ${name}`);
    return buffer;
  }

  write(name: string, values: Float32Array): void {
    const { at, spec } = this.#buffer(name);
    const { width } = spec;
    for (let row = 0; row * width < values.length; row++)
      this.#f32.set(values.subarray(row * width, (row + 1) * width), at / 4 + row * paddedWidth(width));
  }

  read(name: string, numRows: number): Float32Array {
    const { at, spec } = this.#buffer(name);
    const { width } = spec;
    const out = new Float32Array(numRows * width);
    for (let row = 0; row < numRows; row++) {
      const from = at / 4 + row * paddedWidth(width);
      out.set(this.#f32.subarray(from, from + width), row * width);
    }
    return out;
  }
}

/** Returns the most heads of any attention. */
function headsOf({ operations }: Program): number {
  return Math.max(0, ...operations.map((op) => (isAttention(op) ? op.heads : 0)));
}
