/**
 * Data that varies from step to step, in one buffer that every kernel reads: written on the host, uploaded by one call.
 *
 *   [0] rows  [1] samples  [2] rows at  [3] decode items at  [4] prefill items at  [5] merges at  [6] samples at  [7] sampler slots at
 *   [8] rows if hidden states are wanted, else 0  [9] state segments at  [10] segments of rows at
 *   then, packed: rows [3], for recurrent layers state segments [5], saves [2] and each row's segment, block tables, items [8], merges [4], samples [8], asked tokens, sampler slots (sampler_slot.ts), masks
 *
 * "at" counts u32 from the buffer's start. This module decides how attention is split into items: the bits do not depend on it (E2).
 */
import assert from 'node:assert/strict';
import { MAX_CANDIDATES, MAX_MASKS, samplesOf, type LoadOptions, type SampleRequest, type Segment } from '../device.ts';
import { sampleFields, maskOf, samplerSlotOf } from '../sampler_slot.ts';
import { SPLIT_TOKENS, type AttentionTiling } from './attention_tiling.ts';
import { STATE_WORDS_PER_ROW, writeStateSegments } from './state_segments.ts';

/** Indexes of the words of the buffer's header. */
export const Header = {
  rows: 0,
  samples: 1,
  rowsAt: 2,
  decodeItemsAt: 3,
  prefillItemsAt: 4,
  mergesAt: 5,
  samplesAt: 6,
  samplerSlotsAt: 7,
  hidden: 8,
  stateSegmentsAt: 9,
  segmentOfRowsAt: 10,
};
const HEADER_WORDS = 16;
const NONE = 0xffffffff;

const samplerFieldNames = Object.keys(sampleFields) as (keyof typeof sampleFields)[];

/** Words of one sample's results: the token sampled; with candidates its logit, ids, logits, highest and sum; asked logits. */
export const MAX_RESULT_WORDS = 3 * MAX_CANDIDATES + 4;

/** Counts that determine the grids of a step's dispatches. */
export interface GridCounts {
  readonly rows: number;
  readonly samples: number;
  /** Rows of the step when hidden states are wanted, else 0. */
  readonly hidden: number;
  /** Segments of a step of a program with recurrent layers, else 0. */
  readonly segments: number;
  readonly decodeItems: number;
  readonly prefillItems: number;
  readonly merges: number;
  /** Samples that want candidates or asked logits; `sampled` counts those that sample a token. */
  readonly listed: number;
  readonly sampled: number;
  /** Samples that are not greedy, and the number of these that have a top_k or a top_p. */
  readonly weighed: number;
  readonly topK: number;
  readonly topP: number;
}

/** Counts of a step that was written to the buffer, and what its results consist of. */
export interface StepCounts extends GridCounts {
  /** Counts of the following step if every sequence continues with one token; undefined when a segment of this step has several rows. */
  readonly next: GridCounts | undefined;
  readonly resultWords: number;
  /** Sample requests of the step, in batch order. */
  readonly requests: readonly SampleRequest[];
}

/**
 * Number of (row, visible token) pairs of a batch, for the benchmark: of rows alone in their segment (decode), and of the others
 * (prefill).
 */
export interface AttendedTokens {
  readonly decodePairs: number;
  readonly prefillPairs: number;
}

/** Returns the attended pairs of a batch, without regard to attention windows. */
export function attendedTokens(batch: readonly Segment[]): AttendedTokens {
  let [decodePairs, prefillPairs] = [0, 0];
  for (const { tokens, start } of batch) {
    const pairs = tokens.length * start + (tokens.length * (tokens.length + 1)) / 2;
    if (tokens.length === 1) decodePairs += pairs;
    else prefillPairs += pairs;
  }
  return { decodePairs, prefillPairs };
}

/** Returns the words of the step buffer; `tiling` is undefined for a program without attention. */
export function numStepWords(
  { maxRows, maxSamples, maxBlocksPerSequence, state }: LoadOptions,
  tiling: AttentionTiling | undefined,
  vocab: number,
): number {
  // An engine runs at most maxSamples sequences in a step; programs that sample nothing get room for at least 64.
  const numSequences = Math.min(maxRows, Math.max(maxSamples, 64));
  return (
    HEADER_WORDS +
    // Each row has a record (3 words), an attention item (8) and a merge (4).
    maxRows * (3 + 8 + 4) +
    (state ? maxRows * STATE_WORDS_PER_ROW : 0) +
    numSequences * maxBlocksPerSequence +
    (tiling?.maxPartials ?? 0) * 8 +
    maxSamples * (8 + samplerFieldNames.length + MAX_CANDIDATES) +
    Math.min(MAX_MASKS, maxSamples) * Math.ceil(vocab / 32)
  );
}

/** Builds the step buffer on the host: `write` fills `words` for a batch. */
export class StepState {
  readonly words: Uint32Array<ArrayBuffer>;
  readonly #options: LoadOptions;
  readonly #tiling: AttentionTiling | undefined;
  /** Size of the vocabulary; 0 when the program has no logits to sample from. */
  readonly #vocab: number;
  #end = 0;

  /** `tiling` is undefined for a program without attention. */
  constructor(options: LoadOptions, tiling: AttentionTiling | undefined, vocab: number) {
    this.#options = options;
    this.#vocab = vocab;
    this.#tiling = tiling;
    this.words = new Uint32Array(numStepWords(options, tiling, vocab));
  }

  /** Words that the last `write` filled. */
  get usedWords(): number {
    return this.#end;
  }

  /** Fills `words` for a batch. Returns the counts of the step. @throws AssertionError when the batch exceeds the limits fixed at load. */
  write(batch: readonly Segment[]): StepCounts {
    const { maxRows, maxBlocksPerSequence, kv } = this.#options;
    const { blockSize } = kv;
    const { words } = this;
    const rows = batch.reduce((sum, { tokens }) => sum + tokens.length, 0);
    assert(rows <= maxRows, `a step takes at most ${maxRows} rows`);
    const requests = samplesOf(batch, this.#options);
    let at = HEADER_WORDS;
    words[Header.rows] = rows;
    words[Header.rowsAt] = at;
    for (const { tokens, start, blockTable } of batch) {
      assert(blockTable.length <= maxBlocksPerSequence, `a block table has at most ${maxBlocksPerSequence} blocks`);
      for (let i = 0; i < tokens.length; i++) {
        const position = start + i;
        words[at++] = tokens[i]!;
        words[at++] = position;
        words[at++] = (blockTable[Math.floor(position / blockSize)] ?? 0) * blockSize + (position % blockSize);
      }
    }
    if (this.#options.state) {
      const offsets = writeStateSegments(words, at, batch, rows);
      words[Header.stateSegmentsAt] = offsets.segmentsAt;
      words[Header.segmentOfRowsAt] = offsets.rowsAt;
      at = offsets.end;
    }
    const segments = this.#options.state ? batch.length : 0;
    const tables = batch.map(({ tokens, start, blockTable }) => {
      const table = at;
      const numBlocks = Math.min(blockTable.length, Math.ceil((start + tokens.length) / blockSize));
      assert(at + numBlocks <= words.length, 'the step has more sequences than it was made for');
      for (let i = 0; i < numBlocks; i++) words[at++] = blockTable[i]!;
      return table;
    });
    this.#end = at;
    const attention = this.#writeItems(batch, tables);
    const resultWords = this.#writeSamples(batch, requests.length);
    this.#writeSamplerSlots(requests);
    words[Header.samples] = requests.length;
    const hidden = batch.some((segment) => segment.hidden !== undefined) ? rows : 0;
    words[Header.hidden] = hidden;
    const listed = requests.filter((request) => request.numCandidates > 0 || request.askedTokens.length > 0).length;
    const counts = {
      rows,
      samples: requests.length,
      hidden,
      segments,
      ...attention,
      listed,
      ...sampleCountsOf(requests),
    };
    return { ...counts, next: this.#countsAfter(batch, counts), resultWords, requests };
  }

  #countsAfter(batch: readonly Segment[], counts: GridCounts): GridCounts | undefined {
    let [decodeItems, merges, partials] = [0, 0, 0];
    for (const { tokens, start } of batch) {
      if (tokens.length !== 1) return undefined;
      const { numItems, numSplits } = this.#split(start + 1, 1, true, partials);
      decodeItems += numItems;
      if (numItems === 1) continue;
      merges++;
      partials += numSplits;
    }
    return this.#tiling ? { ...counts, decodeItems, merges } : counts;
  }

  /** Returns how the tile of `count` rows from position `start` on is split into items, when `partials` partials are in use already. */
  #split(
    start: number,
    count: number,
    maySplit: boolean,
    partials: number,
  ): { readonly first: number; readonly numSplits: number; readonly numItems: number } {
    const { maxPartials = 0, window = 0 } = this.#tiling ?? {};
    const first = window === 0 ? 0 : Math.floor(Math.max(0, start - window + 1) / SPLIT_TOKENS);
    const numSplits = Math.floor((start + count - 1) / SPLIT_TOKENS) + 1 - first;
    const isSplit = maySplit && numSplits > 1 && partials + count * numSplits <= maxPartials;
    return { first, numSplits, numItems: isSplit ? numSplits : 1 };
  }

  /** Writes the attention items and merges: one item for each tile of rows, or one for each split of a tile. */
  #writeItems(
    batch: readonly Segment[],
    tables: readonly number[],
  ): Pick<StepCounts, 'decodeItems' | 'prefillItems' | 'merges'> {
    if (!this.#tiling) return { decodeItems: 0, prefillItems: 0, merges: 0 };
    const { words } = this;
    const { tileRows, splitBelowItems } = this.#tiling;
    const merges: number[] = [];
    let [at, partials] = [this.#end, 0];
    const write = (row: number, count: number, start: number, table: number, maySplit: boolean): number => {
      const { first, numSplits, numItems } = this.#split(start, count, maySplit, partials);
      const isSplit = numItems > 1;
      for (let i = 0; i < numItems; i++) {
        const partial = isSplit ? partials + i : NONE;
        words.set([row, count, start, table, first + i, numSplits / numItems, partial, numSplits], at);
        at += 8;
      }
      // A split that a row does not see yet changes nothing when it is merged.
      for (let k = 0; isSplit && k < count; k++, partials += numSplits) merges.push(row + k, partials, numSplits, 0);
      return numItems;
    };
    const writeAll = (isDecode: boolean): number => {
      const tile = isDecode ? 1 : tileRows;
      const isMine = ({ tokens }: Segment): boolean => (tokens.length === 1) === isDecode;
      const numTiles = batch.reduce((sum, one) => sum + (isMine(one) ? Math.ceil(one.tokens.length / tile) : 0), 0);
      let [row, numItems] = [0, 0];
      batch.forEach((segment, i) => {
        const { tokens, start } = segment;
        for (let offset = 0; isMine(segment) && offset < tokens.length; offset += tile) {
          const count = Math.min(tile, tokens.length - offset);
          numItems += write(row + offset, count, start + offset, tables[i]!, isDecode || numTiles < splitBelowItems);
        }
        row += tokens.length;
      });
      return numItems;
    };
    words[Header.decodeItemsAt] = at;
    const decodeItems = writeAll(true);
    words[Header.prefillItemsAt] = at;
    const prefillItems = writeAll(false);
    words[Header.mergesAt] = at;
    words.set(merges, at);
    this.#end = at + merges.length;
    return { decodeItems, prefillItems, merges: merges.length / 4 };
  }

  /** Writes the samples and their asked tokens. Returns the number of words of all results. */
  #writeSamples(batch: readonly Segment[], numSamples: number): number {
    const { words } = this;
    const samplesAt = this.#end;
    words[Header.samplesAt] = samplesAt;
    let askedAt = samplesAt + 8 * numSamples;
    let [row, sampleIndex, resultWords] = [0, 0, 0];
    for (const { tokens, samples = [] } of batch) {
      for (const { row: at, numCandidates, askedTokens } of samples) {
        words.set([row + at, numCandidates, askedAt, askedTokens.length, resultWords], samplesAt + 8 * sampleIndex++);
        words.set(askedTokens, askedAt);
        askedAt += askedTokens.length;
        resultWords += resultWordsOf(numCandidates, askedTokens.length);
      }
      row += tokens.length;
    }
    this.#end = askedAt;
    return resultWords;
  }

  #writeSamplerSlots(requests: readonly SampleRequest[]): void {
    const { words } = this;
    let at = this.#end;
    words[Header.samplerSlotsAt] = at;
    let maskAt = at + requests.length * samplerFieldNames.length;
    const pageAt = (page: number | undefined): number => (page === undefined ? 0 : 1 + page * this.#vocab);
    for (const { sample } of requests) {
      const allowed = sample?.allowedTokens ? maskAt : 0;
      if (sample?.allowedTokens) {
        const mask = maskOf(sample.allowedTokens, this.#vocab);
        words.set(mask, maskAt);
        maskAt += mask.length;
      }
      const slot = samplerSlotOf(sample, {
        bias: pageAt(sample?.biasPage),
        counts: pageAt(sample?.countsPage),
        allowed,
      });
      for (const field of samplerFieldNames) words[at++] = slot[field];
    }
    this.#end = maskAt;
  }
}

function sampleCountsOf(requests: readonly SampleRequest[]): Pick<GridCounts, 'sampled' | 'weighed' | 'topK' | 'topP'> {
  const counts = { sampled: 0, weighed: 0, topK: 0, topP: 0 };
  for (const { sample } of requests) {
    if (!sample) continue;
    counts.sampled++;
    if (!sample.log2Scale) continue;
    counts.weighed++;
    if (sample.topK > 0) counts.topK++;
    if (sample.topP > 0) counts.topP++;
  }
  return counts;
}

/**
 * Returns the words of one sample's results: the token; with candidates its logit, ids, logits, highest and sum; then the asked
 * logits.
 */
export function resultWordsOf(numCandidates: number, numAsked: number): number {
  return 1 + (numCandidates > 0 ? 1 + 2 * numCandidates + 2 : 0) + numAsked;
}
