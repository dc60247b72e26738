/** A memory shard with its memory: writes input and reads output of steps, and copies KV blocks and buffers. */
import assert from 'node:assert/strict';
import type { LoadOptions } from '../device.ts';
import { bytesOfLayers, type ByteRange, type KvLayout } from '../kv_layout.ts';
import type { Program } from '../program.ts';
import { paddedWidth } from './panels.ts';
import type { MemoryShard } from './memory_shards.ts';
import type { ProgramLayout } from './program_layout.ts';
import { countCells, type StepShard } from './shared_step.ts';
import { StepIo } from './step_io.ts';

/** One memory shard in its memory: input and output of steps, and copies of KV blocks and buffers. */
export class LoadedShard {
  readonly io: StepIo;
  readonly step: StepShard;
  readonly memoryBytes: number;
  readonly #layout: ProgramLayout;
  /** Byte range of a block's payload whose layers this memory shard stores. */
  readonly #payload: ByteRange;
  readonly #f32: Float32Array;
  readonly #bytes: Uint8Array;

  constructor(
    { program, layers }: MemoryShard,
    kvLayout: KvLayout,
    layout: ProgramLayout,
    options: LoadOptions,
    memory: WebAssembly.Memory,
  ) {
    this.#layout = layout;
    this.#payload = bytesOfLayers(kvLayout, layers);
    this.io = new StepIo(program, layout, options, memory);
    const { operations, scratch, scratchBytes } = layout;
    const tasks = new Int32Array(new SharedArrayBuffer(4 * operations.length));
    this.step = { memory, operations, tasks, scratch, scratchBytes };
    this.memoryBytes = memory.buffer.byteLength;
    this.#f32 = new Float32Array(memory.buffer);
    this.#bytes = new Uint8Array(memory.buffer);
  }

  /**
   * Returns the part of a payload range that this memory shard stores: its offset in the shard's part of the block, its offset in the
   * range, and its bytes (0: none).
   */
  #shared({ at, bytes }: ByteRange): { readonly inBlock: number; readonly inRange: number; readonly bytes: number } {
    const own = this.#payload;
    const first = Math.max(at, own.at);
    const end = Math.min(at + bytes, own.at + own.bytes);
    return { inBlock: first - own.at, inRange: first - at, bytes: Math.max(0, end - first) };
  }

  /** Copies this memory shard's part of a block's range into `out`, the whole block's payload. */
  copyOut(blockId: number, range: ByteRange, out: Uint8Array): void {
    const { inBlock, inRange, bytes } = this.#shared(range);
    const from = this.#layout.kv + blockId * this.#payload.bytes + inBlock;
    if (bytes > 0) out.set(this.#bytes.subarray(from, from + bytes), range.at + inRange);
  }

  /** Copies this memory shard's part of a block's range into its memory. `payload` has exactly the bytes of the range. */
  copyIn(blockId: number, range: ByteRange, payload: Uint8Array): void {
    const { inBlock, inRange, bytes } = this.#shared(range);
    const to = this.#layout.kv + blockId * this.#payload.bytes + inBlock;
    if (bytes > 0) this.#bytes.set(payload.subarray(inRange, inRange + bytes), to);
  }

  /** Copies this memory shard's layers of block `from` into block `to`. */
  copyBlock(from: number, to: number): void {
    const { kv } = this.#layout;
    const { bytes } = this.#payload;
    this.#bytes.copyWithin(kv + to * bytes, kv + from * bytes, kv + (from + 1) * bytes);
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
