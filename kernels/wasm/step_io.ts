/** Input and output of a step besides activations and KV: writes a batch into the regions that operations read, and reads the samples. */
import assert from 'node:assert/strict';
import {
  MAX_CANDIDATES,
  samplesOf,
  type HiddenRows,
  type LoadOptions,
  type SampleRequest,
  type SampleResult,
  type Segment,
} from '../device.ts';
import { NO_TOKEN } from '../sampling.ts';
import { maskOf, samplerSlotOf } from '../sampler_slot.ts';
import type { Program } from '../program.ts';
import { hiddenOf, samplingOf } from '../program_kinds.ts';
import { samplerSlot } from './ops/sample.ts';
import { SAVE_BYTES, stateSegment } from './state_segments.ts';
import { attentionTile, TILE_ROWS } from './attention_spans.ts';
import { paddedWidth } from './panels.ts';
import type { ProgramLayout } from './program_layout.ts';
import { Control } from './shared_step.ts';
import { attentionTasks } from './task_split.ts';

/** Shared empty results: most samples request only a token. */
const NO_IDS = new Uint32Array(0);
const NO_LOGITS = new Float32Array(0);

/** Writes batches into one memory shard's regions and reads the results of samples. */
export class StepIo {
  readonly #layout: ProgramLayout;
  readonly #options: LoadOptions;
  /** Index in f32 of the first logit, and logits per sample; undefined when the program does not sample. */
  readonly #logits: { readonly at: number; readonly width: number } | undefined;
  /** Index in f32 of the first hidden state. */
  readonly #hiddenAt: number;
  readonly #u32: Uint32Array;
  readonly #f32: Float32Array;
  readonly #view: DataView;
  readonly vocab: number;
  /** Values of a row's hidden state; 0 when this memory shard has none. */
  readonly hiddenWidth: number;
  /** Samples that the batch written last requests. */
  #requests: readonly SampleRequest[] = [];
  #counts = { rows: 0, samples: 0, hidden: 0, tiles: 0, attention: 0, segments: 0 };

  constructor(program: Program, layout: ProgramLayout, options: LoadOptions, memory: WebAssembly.Memory) {
    this.#layout = layout;
    this.#options = options;
    this.#u32 = new Uint32Array(memory.buffer);
    this.#f32 = new Float32Array(memory.buffer);
    this.#view = new DataView(memory.buffer);
    const sampling = samplingOf(program);
    const logits = sampling && layout.buffers.get(sampling.logits);
    this.vocab = sampling?.vocab ?? 0;
    this.#logits = logits && { at: logits.at / 4, width: logits.spec.width };
    const hidden = hiddenOf(program);
    this.hiddenWidth = hidden?.width ?? 0;
    this.#hiddenAt = hidden ? layout.buffers.get(hidden.name)!.at / 4 : 0;
  }

  /**
   * Writes a batch into the regions of this memory shard. @throws AssertionError when the batch exceeds the limits set at load,
   * DeviceError when a segment names an adapter.
   */
  write(batch: readonly Segment[], numThreads: number): void {
    // Validation comes before any write, because kernels check nothing.
    this.#requests = samplesOf(batch, this.#options);
    const { regions } = this.#layout;
    const { maxRows } = this.#options;
    const u32 = this.#u32;
    let [row, sampleId, tile, mask] = [0, 0, 0, 0];
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
      for (const { row: at, numCandidates, sample } of samples) {
        u32[regions.sampleRows / 4 + sampleId] = row + at;
        u32[regions.sampleCounts / 4 + sampleId] = numCandidates;
        const allowed = sample?.allowedTokens ? this.#writeMask(sample.allowedTokens, mask++) : 0;
        const addresses = { bias: this.#page(sample?.biasPage), counts: this.#page(sample?.countsPage), allowed };
        samplerSlot.write(
          this.#view,
          regions.samplerSlots + sampleId * samplerSlot.bytes,
          samplerSlotOf(sample, addresses),
        );
        sampleId++;
      }
      row += tokens.length;
    });
    const segments = this.#options.state ? this.#writeStates(batch) : 0;
    const attention = attentionTasks(tile, row, numThreads, this.#layout.spanPartials.maxTiles);
    const isHiddenWanted = batch.some(({ hidden }) => hidden !== undefined);
    this.#counts = { rows: row, samples: sampleId, hidden: isHiddenWanted ? row : 0, tiles: tile, attention, segments };
  }

  /** Writes where the states of the segments are. Returns the number of segments. */
  #writeStates(batch: readonly Segment[]): number {
    const { stateSegments, stateSaves } = this.#layout.regions;
    let [row, at, savesAt] = [0, stateSegments, stateSaves];
    for (const { tokens, state } of batch) {
      const { from = -1, saves = [] } = state ?? {};
      const rows = tokens.length;
      stateSegment.write(this.#view, at, { row, rows, from, saves: savesAt, numSaves: saves.length });
      for (const save of saves) {
        this.#u32[savesAt / 4] = save.rows;
        this.#u32[savesAt / 4 + 1] = save.slot;
        savesAt += SAVE_BYTES;
      }
      row += rows;
      at += stateSegment.bytes;
    }
    return batch.length;
  }

  /** Writes the batch's counts to `control`, before threads walk the memory shard. */
  announce(control: Int32Array): void {
    control[Control.numRows] = this.#counts.rows;
    control[Control.numSamples] = this.#counts.samples;
    control[Control.numHidden] = this.#counts.hidden;
    control[Control.numTiles] = this.#counts.tiles;
    control[Control.attention] = this.#counts.attention;
    control[Control.numStateSegments] = this.#counts.segments;
  }

  #page(page: number | undefined): number {
    return page === undefined ? 0 : this.#layout.regions.samplerPages + page * this.vocab * 4;
  }

  #writeMask(allowed: Uint32Array, index: number): number {
    const words = maskOf(allowed, this.vocab);
    const at = this.#layout.regions.sampleMasks + index * words.byteLength;
    this.#u32.set(words, at / 4);
    return at;
  }

  writePage(page: number, first: number, values: Int32Array | Uint32Array): void {
    assert(page < (this.#options.samplerPages ?? 0), `there is no sampler page ${page}`);
    assert(first + values.length <= this.vocab, 'a sampler page has one value per token of the vocabulary');
    this.#u32.set(values, this.#page(page) / 4 + first);
  }

  /**
   * Writes tokens, positions and slots from row `first` on, and the block table of segment `index`. Returns the byte offset of that
   * table.
   */
  #writeRows({ tokens, start, blockTable }: Segment, index: number, first: number): number {
    const { regions } = this.#layout;
    const { kv, maxBlocksPerSequence, numBlocks } = this.#options;
    const { blockSize } = kv;
    const u32 = this.#u32;
    if (blockTable.length > maxBlocksPerSequence)
      assert.fail(`a block table has at most ${maxBlocksPerSequence} blocks`);
    const numPositions = start + tokens.length;
    if (blockTable.length * blockSize < numPositions)
      assert.fail(`the block table has too few blocks for ${numPositions} positions`);
    const table = regions.blockTables / 4 + index * maxBlocksPerSequence;
    for (let b = 0; b < blockTable.length; b++) {
      const block = blockTable[b]!;
      // assert.fail builds its message only on failure: one per block of a long context would be most of the heap that a token costs.
      if (block < 0 || block >= numBlocks.max) assert.fail(`a block table has block ${block}, which does not exist`);
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

  /** Writes the hidden states of rows of the batch written last to where they are wanted. */
  readHidden(wanted: readonly HiddenRows[]): void {
    const width = this.hiddenWidth;
    for (const { first, out } of wanted) {
      for (let row = 0; row * width < out.length; row++) {
        const from = this.#hiddenAt + (first + row) * paddedWidth(width);
        out.set(this.#f32.subarray(from, from + width), row * width);
      }
    }
  }

  /** Returns the samples of the batch written last, in the order of its requests; none when the program does not sample. */
  read(): SampleResult[] {
    const logits = this.#logits;
    if (!logits) return [];
    const { regions } = this.#layout;
    return this.#requests.map(({ numCandidates, askedTokens, isFullRowWanted, sample }, i) => {
      const token = sample ? this.#u32[regions.sampledTokens / 4 + i]! : NO_TOKEN;
      const row = logits.at + i * paddedWidth(logits.width);
      const stats = regions.sampleStats / 4 + i * 2;
      const ids = regions.candidateIds / 4 + i * MAX_CANDIDATES;
      const values = regions.candidateValues / 4 + i * MAX_CANDIDATES;
      return {
        token,
        tokenLogit: numCandidates > 0 && token < logits.width ? this.#f32[row + token]! : NaN,
        candidateIds: numCandidates > 0 ? this.#u32.slice(ids, ids + numCandidates) : NO_IDS,
        candidateLogits: numCandidates > 0 ? this.#f32.slice(values, values + numCandidates) : NO_LOGITS,
        logSumExp: numCandidates > 0 ? this.#f32[stats]! + Math.log(this.#f32[stats + 1]!) : NaN,
        askedLogits:
          askedTokens.length > 0 ? Float32Array.from(askedTokens, (asked) => this.#f32[row + asked]!) : NO_LOGITS,
        ...(isFullRowWanted ? { fullRow: this.#f32.slice(row, row + logits.width) } : {}),
      };
    });
  }
}
