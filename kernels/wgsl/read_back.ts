/** Buffers through which the host reads the results of a step; every step in flight has its own. */
import { MAX_FULL_ROWS, type LoadOptions } from '../device.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { MAX_RESULT_WORDS } from './step_state.ts';

/** Steps that may be submitted while one runs. */
export const NUM_AHEAD = 1;

/** Bytes of all buffers in which whole rows of logits come back. */
export function rowsBackBytes(vocab: number, maxSamples: number): number {
  return (1 + NUM_AHEAD) * Math.min(MAX_FULL_ROWS, maxSamples) * vocab * 4;
}

/** Pair of mappable buffers that one step's results, and its whole rows of logits, are copied to. */
export class ReadBack {
  readonly results: GPUBuffer;
  readonly rows: GPUBuffer;
  isInUse = false;

  private constructor(results: GPUBuffer, rows: GPUBuffer) {
    this.results = results;
    this.rows = rows;
  }

  /** Makes the buffers for every step that may be in flight. @throws DeviceError when the device is full. */
  static async createAll(memory: GpuMemory, vocab: number, { maxSamples }: LoadOptions): Promise<ReadBack[]> {
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    const rowBytes = rowsBackBytes(vocab, maxSamples) / (1 + NUM_AHEAD);
    const all: ReadBack[] = [];
    for (let i = 0; i <= NUM_AHEAD; i++) {
      const results = await memory.allocate('transfer', 'results', maxSamples * MAX_RESULT_WORDS * 4, usage);
      all.push(new ReadBack(results, await memory.allocate('transfer', 'rows of logits', rowBytes, usage)));
    }
    return all;
  }

  /** Resolves when the first `bytes` of the results, and `rowBytes` of rows, can be read. */
  map(bytes: number, rowBytes: number): Promise<void>[] {
    const mapped = [this.results.mapAsync(GPUMapMode.READ, 0, bytes)];
    if (rowBytes > 0) mapped.push(this.rows.mapAsync(GPUMapMode.READ, 0, rowBytes));
    return mapped;
  }

  /** Reads the mapped buffers and unmaps them. `samples` are the samples whose whole rows of logits were copied, in order. */
  read(bytes: number, samples: readonly number[], vocab: number): ReadResults {
    const words = new Uint32Array(this.results.getMappedRange(0, bytes).slice(0));
    this.results.unmap();
    const rows = new Map<number, Float32Array>();
    if (samples.length > 0 && vocab > 0) {
      const floats = new Float32Array(this.rows.getMappedRange(0, samples.length * vocab * 4).slice(0));
      samples.forEach((sample, i) => rows.set(sample, floats.subarray(i * vocab, (i + 1) * vocab)));
      this.rows.unmap();
    }
    return { words, rows };
  }
}

interface ReadResults {
  readonly words: Uint32Array<ArrayBuffer>;
  /** Whole rows of logits, [vocab] f32 each, by sample. */
  readonly rows: ReadonlyMap<number, Float32Array>;
}
