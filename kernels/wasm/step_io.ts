/** What a step reads and writes besides activations and KV: a batch into the regions that operations read, samples out of them. */
import assert from 'node:assert/strict';
import {
  MAX_CANDIDATES,
  samplesOf,
  type LoadOptions,
  type SampleRequest,
  type SampleResult,
  type Segment,
} from '../device.ts';
import type { Program } from '../program.ts';
import { attentionTile, TILE_ROWS } from './ops/attention.ts';
import { paddedWidth } from './panels.ts';
import type { ProgramLayout } from './program_layout.ts';
import { Control } from './shared_step.ts';
import { attentionTasks } from './task_split.ts';

export class StepIo {
  readonly #layout: ProgramLayout;
  readonly #options: LoadOptions;
  /** Where logits are, and how many a sample has. */
  readonly #logits: { readonly at: number; readonly width: number } | undefined;
  readonly #u32: Uint32Array;
  readonly #f32: Float32Array;
  readonly #view: DataView;
  /** What the step that was written is asked for. */
  #requests: readonly SampleRequest[] = [];

  constructor(program: Program, layout: ProgramLayout, options: LoadOptions, memory: WebAssembly.Memory) {
    this.#layout = layout;
    this.#options = options;
    this.#u32 = new Uint32Array(memory.buffer);
    this.#f32 = new Float32Array(memory.buffer);
    this.#view = new DataView(memory.buffer);
    const candidates = program.operations.find((op) => op.kind === 'candidates');
    const logits = candidates && layout.buffers.get(candidates.logits);
    this.#logits = logits && { at: logits.at / 4, width: logits.spec.width };
  }

  /** @throws AssertionError when the batch is beyond what was stated at load, DeviceError for what no device does yet. */
  write(
    batch: readonly Segment[],
    { control, numThreads }: { readonly control: Int32Array; readonly numThreads: number },
  ): void {
    // Before anything is written: kernels check nothing.
    this.#requests = samplesOf(batch);
    const { regions } = this.#layout;
    const { maxRows, maxSamples } = this.#options;
    const u32 = this.#u32;
    let [row, sample, tile] = [0, 0, 0];
    batch.forEach((segment, index) => {
      const { tokens, start, samples = [] } = segment;
      assert(tokens.length > 0, 'a segment has at least one token');
      assert(row + tokens.length <= maxRows, `a step takes at most ${maxRows} rows`);
      const blockTable = this.#writeRows(segment, index, row);
      for (let i = 0; i < tokens.length; i += TILE_ROWS) {
        const rows = Math.min(TILE_ROWS, tokens.length - i);
        const at = regions.tiles + tile++ * attentionTile.bytes;
        attentionTile.write(this.#view, at, { row: row + i, rows, position: start + i, blockTable });
      }
      for (const { row: at, numCandidates } of samples) {
        assert(sample < maxSamples, `a step samples at most ${maxSamples} rows`);
        u32[regions.sampleRows / 4 + sample] = row + at;
        u32[regions.sampleCounts / 4 + sample] = Math.max(1, numCandidates);
        sample++;
      }
      row += tokens.length;
    });
    control[Control.numRows] = row;
    control[Control.numSamples] = sample;
    control[Control.numTiles] = tile;
    control[Control.attention] = attentionTasks(tile, row, numThreads, this.#layout.spanRecords.maxTiles);
  }

  /** Tokens, positions and slots, from row `first` on. Returns where the block table of segment `index` lies. */
  #writeRows({ tokens, start, blockTable }: Segment, index: number, first: number): number {
    const { regions } = this.#layout;
    const { blockSize, maxBlocksPerSequence, numBlocks } = this.#options;
    const u32 = this.#u32;
    assert(blockTable.length <= maxBlocksPerSequence, `a block table has at most ${maxBlocksPerSequence} blocks`);
    const numPositions = start + tokens.length;
    assert(blockTable.length * blockSize >= numPositions, `${numPositions} positions need more blocks`);
    const table = regions.blockTables / 4 + index * maxBlocksPerSequence;
    for (let b = 0; b < blockTable.length; b++) {
      const block = blockTable[b]!;
      assert(block >= 0 && block < numBlocks.max, `no block ${block}`);
      u32[table + b] = block;
    }
    for (let i = 0; i < tokens.length; i++) {
      const position = start + i;
      u32[regions.tokens / 4 + first + i] = tokens[i]!;
      u32[regions.positions / 4 + first + i] = position;
      u32[regions.slots / 4 + first + i] =
        blockTable[Math.floor(position / blockSize)]! * blockSize + (position % blockSize);
    }
    return table * 4;
  }

  /** Of the batch that was written last, in the order in which it asks. */
  read(): SampleResult[] {
    const logits = this.#logits;
    if (!logits) return [];
    const { regions } = this.#layout;
    return this.#requests.map(({ numCandidates, askedTokens, isFullRowWanted }, i) => {
      const row = logits.at + i * paddedWidth(logits.width);
      const stats = regions.sampleStats / 4 + i * 2;
      const ids = regions.candidateIds / 4 + i * MAX_CANDIDATES;
      const values = regions.candidateValues / 4 + i * MAX_CANDIDATES;
      return {
        candidateIds: this.#u32.slice(ids, ids + numCandidates),
        candidateLogits: this.#f32.slice(values, values + numCandidates),
        logSumExp: this.#f32[stats]! + Math.log(this.#f32[stats + 1]!),
        askedLogits: Float32Array.from(askedTokens, (token) => this.#f32[row + token]!),
        ...(isFullRowWanted ? { fullRow: this.#f32.slice(row, row + logits.width) } : {}),
      };
    });
  }
}
