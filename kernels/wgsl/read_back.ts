/** Buffers through which the host reads the results of a step; every step in flight has its own. */
import { MAX_FULL_ROWS, type LoadOptions } from '../device.ts';
import type { Program } from '../program.ts';
import { samplingOf } from '../program_kinds.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { hiddenBytes } from './hidden_states.ts';
import { MAX_RESULT_WORDS } from './step_state.ts';

/** Steps that may be submitted while one runs. */
export const NUM_AHEAD = 1;

/** Bytes of all buffers in which whole rows of logits come back. */
export function rowsBackBytes(vocab: number, maxSamples: number): number {
  return (1 + NUM_AHEAD) * Math.min(MAX_FULL_ROWS, maxSamples) * vocab * 4;
}

/** Bytes of all buffers in which hidden states come back. */
export function hiddenBackBytes(program: Program, maxRows: number): number {
  return (1 + NUM_AHEAD) * hiddenBytes(program, maxRows);
}

/** Bytes of each kind that a step reads back. */
export interface BackBytes {
  readonly results: number;
  readonly rows: number;
  readonly hidden: number;
}

/** Mappable buffers that one step's results, its whole rows of logits and its hidden states are copied to. */
export class ReadBack {
  readonly results: GPUBuffer;
  readonly rows: GPUBuffer;
  readonly hidden: GPUBuffer;
  isInUse = false;

  private constructor({ results, rows, hidden }: Pick<ReadBack, 'results' | 'rows' | 'hidden'>) {
    this.results = results;
    this.rows = rows;
    this.hidden = hidden;
  }

  /** Makes the buffers for every step that may be in flight. @throws DeviceError when the device is full. */
  static async createAll(
    memory: GpuMemory,
    program: Program,
    { maxSamples, maxRows }: LoadOptions,
  ): Promise<ReadBack[]> {
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    const rowBytes = rowsBackBytes(samplingOf(program)?.vocab ?? 0, maxSamples) / (1 + NUM_AHEAD);
    const all: ReadBack[] = [];
    for (let i = 0; i <= NUM_AHEAD; i++) {
      all.push(
        new ReadBack({
          results: await memory.allocate('transfer', 'results', maxSamples * MAX_RESULT_WORDS * 4, usage),
          rows: await memory.allocate('transfer', 'rows of logits', rowBytes, usage),
          hidden: await memory.allocate('transfer', 'hidden states', hiddenBytes(program, maxRows), usage),
        }),
      );
    }
    return all;
  }

  /** Resolves when the first bytes of each buffer can be read. */
  map(bytes: BackBytes): Promise<void>[] {
    return (['results', 'rows', 'hidden'] as const).flatMap((name) =>
      bytes[name] > 0 ? [this[name].mapAsync(GPUMapMode.READ, 0, bytes[name])] : [],
    );
  }

  /** Calls `read` with the mapped hidden states, and unmaps them; does nothing when there are none. */
  readHidden(bytes: number, read: (values: Float32Array) => void): void {
    if (bytes === 0) return;
    read(new Float32Array(this.hidden.getMappedRange(0, bytes)));
    this.hidden.unmap();
  }

  /** Reads the mapped buffers and unmaps them. `samples` are the samples whose whole rows of logits were copied, in order. */
  read(bytes: number, samples: readonly number[], vocab: number): ReadResults {
    if (bytes === 0) return NOTHING;
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

const NOTHING: ReadResults = { words: new Uint32Array(0), rows: new Map() };

interface ReadResults {
  readonly words: Uint32Array<ArrayBuffer>;
  /** Whole rows of logits, [vocab] f32 each, by sample. */
  readonly rows: ReadonlyMap<number, Float32Array>;
}
