/**
 * What varies from step to step, in one buffer that every kernel reads: written on the host, uploaded by one call.
 *
 *   [0] rows  [1] samples  [2] rows at  [3] decode items at  [4] prefill items at  [5] merges at  [6] samples at
 *   then, packed: rows [4], block tables, items [8], merges [4], samples [8], asked tokens
 *
 * "at" counts u32 from the buffer's start. How attention is split into items is decided here: the bits do not depend on it (E2).
 */
import assert from 'node:assert/strict';
import { MAX_CANDIDATES, type LoadOptions, type Segment } from '../device.ts';

export const Header = {
  rows: 0,
  samples: 1,
  rowsAt: 2,
  decodeItemsAt: 3,
  prefillItemsAt: 4,
  mergesAt: 5,
  samplesAt: 6,
};
const HEADER_WORDS = 16;
const NONE = 0xffffffff;

/** Tokens of a split: so many workgroups share one long sequence's decode step; shorter ones cost more merging. */
export const SPLIT_TOKENS = 128;
/** Partials that a step may have; a sequence beyond takes all its splits in one workgroup, which is slow and gives the same bits. */
const MAX_PARTIALS = 16_384;
const MAX_PARTIAL_BYTES = 128 << 20;
/** Words of one sample's results: ids, logits, highest and sum, asked logits. */
export const MAX_RESULT_WORDS = 3 * MAX_CANDIDATES + 2;

export interface AttentionTiling {
  /** Rows of one prefill item. */
  readonly tileRows: number;
  /** Items of several rows are split too while a step has fewer than this: enough workgroups to fill the device. */
  readonly splitBelowItems: number;
  /** Of one partial: heads · (head_dim + 2) values. */
  readonly partialBytes: number;
  /** 0: none. */
  readonly window: number;
}

export interface StepCounts {
  readonly rows: number;
  readonly samples: number;
  readonly decodeItems: number;
  readonly prefillItems: number;
  readonly merges: number;
  readonly resultWords: number;
  /** Of rows alone in their segment, then of the others: tokens that each sees, summed; and tokens whose KV is read. */
  readonly decodePairs: number;
  readonly prefillPairs: number;
  readonly prefillTokensRead: number;
}

export function numPartials(
  { maxSamples, maxRows, maxBlocksPerSequence, blockSize }: LoadOptions,
  { tileRows, splitBelowItems, partialBytes }: AttentionTiling,
): number {
  const perRow = Math.ceil((maxBlocksPerSequence * blockSize) / SPLIT_TOKENS);
  const numRows = Math.max(maxSamples, Math.min(maxRows, tileRows * splitBelowItems));
  return Math.min(MAX_PARTIALS, Math.floor(MAX_PARTIAL_BYTES / Math.max(1, partialBytes)), numRows * perRow);
}

export class StepState {
  readonly words: Uint32Array<ArrayBuffer>;
  readonly #options: LoadOptions;
  readonly #tiling: AttentionTiling;
  readonly #numPartials: number;
  #end = 0;

  constructor(options: LoadOptions, tiling: AttentionTiling) {
    const { maxRows, maxSamples, maxBlocksPerSequence } = options;
    this.#options = options;
    this.#tiling = tiling;
    this.#numPartials = numPartials(options, tiling);
    // Every row its own sequence is the worst case: a table and an item each.
    const numSequences = Math.min(maxRows, Math.max(maxSamples, 64));
    const numWords =
      HEADER_WORDS +
      maxRows * (4 + 8 + 4) +
      numSequences * maxBlocksPerSequence +
      this.#numPartials * 8 +
      maxSamples * (8 + MAX_CANDIDATES);
    this.words = new Uint32Array(numWords);
  }

  /** Words that the last `write` filled. */
  get usedWords(): number {
    return this.#end;
  }

  /** @throws AssertionError when the batch is beyond what was stated at load. */
  write(batch: readonly Segment[]): StepCounts {
    const { maxRows, maxSamples, maxBlocksPerSequence, blockSize } = this.#options;
    const { words } = this;
    const rows = batch.reduce((sum, { tokens }) => sum + tokens.length, 0);
    assert(rows <= maxRows, `a step takes at most ${maxRows} rows`);
    let at = HEADER_WORDS;
    words[Header.rows] = rows;
    words[Header.rowsAt] = at;
    batch.forEach(({ tokens, start, blockTable }, sequence) => {
      assert(blockTable.length <= maxBlocksPerSequence, `a block table has at most ${maxBlocksPerSequence} blocks`);
      for (let i = 0; i < tokens.length; i++) {
        const position = start + i;
        words[at++] = tokens[i]!;
        words[at++] = position;
        words[at++] = (blockTable[Math.floor(position / blockSize)] ?? 0) * blockSize + (position % blockSize);
        words[at++] = sequence;
      }
    });
    const tables = batch.map(({ tokens, start, blockTable }) => {
      const table = at;
      const numBlocks = Math.min(blockTable.length, Math.ceil((start + tokens.length) / blockSize));
      assert(at + numBlocks <= words.length, 'the step has more sequences than it was made for');
      for (let i = 0; i < numBlocks; i++) words[at++] = blockTable[i]!;
      return table;
    });
    this.#end = at;
    const attention = this.#writeItems(batch, tables);
    const { samples, resultWords } = this.#writeSamples(batch);
    assert(samples <= maxSamples, `a step samples at most ${maxSamples} rows`);
    words[Header.samples] = samples;
    const pairs = batch.map(({ tokens, start }) => tokens.length * start + (tokens.length * (tokens.length + 1)) / 2);
    const sumWhere = (isDecode: boolean): number =>
      pairs.reduce((sum, count, i) => sum + ((batch[i]!.tokens.length === 1) === isDecode ? count : 0), 0);
    const prefillPairs = sumWhere(false);
    return {
      ...{ rows, samples, ...attention, resultWords },
      decodePairs: sumWhere(true),
      prefillPairs,
      prefillTokensRead: prefillPairs / this.#tiling.tileRows,
    };
  }

  #writeItems(
    batch: readonly Segment[],
    tables: readonly number[],
  ): Pick<StepCounts, 'decodeItems' | 'prefillItems' | 'merges'> {
    const { words } = this;
    const { tileRows, splitBelowItems, window } = this.#tiling;
    const firstSplit = (position: number): number =>
      window === 0 ? 0 : Math.floor(Math.max(0, position - window + 1) / SPLIT_TOKENS);
    let at = this.#end;
    const merges: number[] = [];
    let [decodeItems, prefillItems, partials, row] = [0, 0, 0, 0];
    words[Header.decodeItemsAt] = at;
    batch.forEach(({ tokens, start }, i) => {
      if (tokens.length === 1) {
        const first = firstSplit(start);
        const numSplits = Math.floor(start / SPLIT_TOKENS) + 1 - first;
        const isSplit = numSplits > 1 && partials + numSplits <= this.#numPartials;
        const perItem = isSplit ? 1 : numSplits;
        if (isSplit) merges.push(row, partials, numSplits, 0);
        for (let split = 0; split < numSplits; split += perItem, decodeItems++) {
          words.set([row, 1, start, tables[i]!, first + split, perItem, isSplit ? partials++ : NONE, 0], at);
          at += 8;
        }
      }
      row += tokens.length;
    });
    words[Header.prefillItemsAt] = at;
    row = 0;
    const numTiles = batch.reduce(
      (sum, { tokens }) => sum + (tokens.length > 1 ? Math.ceil(tokens.length / tileRows) : 0),
      0,
    );
    batch.forEach(({ tokens, start }, i) => {
      for (let offset = 0; tokens.length > 1 && offset < tokens.length; offset += tileRows) {
        const count = Math.min(tileRows, tokens.length - offset);
        const first = firstSplit(start + offset);
        const numSplits = Math.floor((start + offset + count - 1) / SPLIT_TOKENS) + 1 - first;
        const isSplit =
          numSplits > 1 && numTiles < splitBelowItems && partials + count * numSplits <= this.#numPartials;
        const perItem = isSplit ? 1 : numSplits;
        for (let split = 0; split < numSplits; split += perItem, prefillItems++) {
          const partial = isSplit ? partials + split : NONE;
          words.set([row + offset, count, start + offset, tables[i]!, first + split, perItem, partial, numSplits], at);
          at += 8;
        }
        // A split that a row does not see yet changes nothing when it is merged.
        for (let k = 0; isSplit && k < count; k++, partials += numSplits) {
          merges.push(row + offset + k, partials, numSplits, 0);
        }
      }
      row += tokens.length;
    });
    words[Header.mergesAt] = at;
    words.set(merges, at);
    this.#end = at + merges.length;
    return { decodeItems, prefillItems, merges: merges.length / 4 };
  }

  #writeSamples(batch: readonly Segment[]): { samples: number; resultWords: number } {
    const { words } = this;
    const samplesAt = this.#end;
    words[Header.samplesAt] = samplesAt;
    const requests = batch.flatMap(({ sample }) => (sample ? [sample] : []));
    let askedAt = samplesAt + 8 * requests.length;
    let [row, sampleIndex, resultWords] = [0, 0, 0];
    for (const { tokens, sample } of batch) {
      row += tokens.length;
      if (!sample) continue;
      const { numCandidates, askedTokens } = sample;
      assert(numCandidates <= MAX_CANDIDATES, `at most ${MAX_CANDIDATES} candidates`);
      assert(askedTokens.length <= MAX_CANDIDATES, `at most ${MAX_CANDIDATES} asked tokens`);
      const wanted = Math.max(1, numCandidates);
      words.set([row - 1, wanted, askedAt, askedTokens.length, resultWords], samplesAt + 8 * sampleIndex++);
      words.set(askedTokens, askedAt);
      askedAt += askedTokens.length;
      resultWords += 2 * wanted + 2 + askedTokens.length;
    }
    this.#end = askedAt;
    return { samples: requests.length, resultWords };
  }
}
