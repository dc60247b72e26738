/**
 * When one long prompt is computed if two instances take its chunks by turns (shared/placement/pipeline.ts).
 *
 *   second   [chunk 0 ─────]        [chunk 2 ─────]         a step whose blocks are sent frame by frame
 *   last         [chunk 1 ─────]        [chunk 3 ─────]     a step after arriving frames; its blocks are sent when it ends
 *
 * A chunk overlaps the next one but for a frame and what has to be sent, and the one after that not at all.
 */
import type { Question } from '../policy.ts';
import type { FetchPrices } from './fetch_price.ts';
import type { InstancePrice } from './instance_price.ts';

/** Fewest chunks that are worth it: with few of them the first and the last one, which overlap nothing, are most of the prompt. */
const MIN_CHUNKS = 4;
/** Most blocks of a chunk: an instance sends so many while a step computes them (MAX_BLOCKS in shared/instance/export_credits.ts). */
const MAX_CHUNK_BLOCKS = 32;
/** Part of a chunk by which the next one starts later: its first frame of the four to eight that records have. */
const LAG = 0.25;
/** Factor on a pipeline's predicted time, which holds only while both instances stay idle. */
const RISK = 1.1;
/** Milliseconds and chunks that one instance waits for the other beyond the predicted start, before it computes all that is left. */
const PATIENCE_MS = 2_000;
const PATIENCE_CHUNKS = 6;
/** Most milliseconds of that. */
const MAX_PATIENCE_MS = 60_000;
/** Seconds kept per last instance: the runner-up serves when the best one is to generate. */
const KEPT = 2;

/** A prompt computed on one instance, as far as pipelines are concerned. */
export interface ComputedAlone {
  readonly price: InstancePrice;
  /** Blocks fetched up to here; the rest is computed. */
  readonly to: number;
  /** Tokens that are there by then. */
  readonly cachedTokens: number;
  /** Milliseconds until the prompt is computed. */
  readonly readyMs: number;
  readonly waitMs: number;
  readonly lossMs: number;
}

/** The instance that computes every second chunk of a prompt. */
export interface PipelineSecond {
  readonly price: InstancePrice;
  /** Blocks of a chunk. */
  readonly chunkBlocks: number;
  /** Milliseconds that one of them waits for the other. */
  readonly patienceMs: number;
}

/** A prompt computed by two instances. */
export type ComputedByTwo = ComputedAlone & { readonly second: PipelineSecond };

/** Terms that the price of a pipeline depends on besides its two instances. */
export interface PipelinePriceTerms {
  readonly question: Question;
  readonly blockSize: number;
  readonly fetches: FetchPrices;
  /** Price of a millisecond of an instance's time. */
  readonly queuedPrice: number;
}

/** Returns for each of `computed` the best pipelines in which it computes the last chunk. */
export function pipelinesOf(computed: readonly ComputedAlone[], terms: PipelinePriceTerms): ComputedByTwo[] {
  const able = computed.filter((one) => isAble(one, terms));
  return able.flatMap((last) =>
    able
      .flatMap((second) => (second === last || second.to !== last.to ? [] : pipelineOf(last, second, terms)))
      .sort((a, b) => a.readyMs - b.readyMs)
      .slice(0, KEPT),
  );
}

/**
 * Whether an instance may be one of a pipeline: nothing generates there, because steps after arriving frames are computed only on an idle
 * device, and there is room.
 */
function isAble({ price, to, cachedTokens }: ComputedAlone, { question, blockSize }: PipelinePriceTerms): boolean {
  const { generating, coming } = price.work;
  const isIdle = generating.sequences === 0 && coming.sequences === 0;
  return isIdle && cachedTokens === to * blockSize && price.roomMs(question.numBlocks) === 0;
}

function pipelineOf(last: ComputedAlone, second: ComputedAlone, terms: PipelinePriceTerms): ComputedByTwo[] {
  const { question, blockSize, fetches, queuedPrice } = terms;
  const { to, cachedTokens } = last;
  const [a, b] = [last.price, second.price];
  const chunkTokens = Math.min(a.work.chunkTokens, b.work.chunkTokens, MAX_CHUNK_BLOCKS * blockSize);
  const chunkBlocks = Math.floor(chunkTokens / blockSize);
  const numChunks = chunkBlocks === 0 ? 0 : Math.ceil((question.numBlocks - to) / chunkBlocks);
  if (numChunks < MIN_CHUNKS) return [];
  const count = question.numTokens - cachedTokens;
  const [aloneMs, otherMs] = [a, b].map((price) => price.ownMs(cachedTokens, count)) as [number, number];
  const startMs = Math.max(last.readyMs - aloneMs, second.readyMs - otherMs);
  const bytes = chunkBlocks * a.work.blockBytes;
  const sendMs =
    fetches.linkMs(a.instance.address, b.instance.id, bytes) +
    fetches.linkMs(b.instance.address, a.instance.id, LAG * bytes);
  // The second of two chunks ends so much later than the first as it starts.
  const bothMs = ((1 + LAG) * (aloneMs + otherMs)) / 4 + (numChunks / 2) * sendMs;
  const ownMs = RISK * bothMs;
  if (startMs + ownMs >= last.readyMs) return [];
  const chunkRows = chunkBlocks * blockSize;
  const chunkMs = Math.max(...[a, b].map((price) => price.ownMs(question.numTokens - chunkRows, chunkRows)));
  const patienceMs = Math.min(MAX_PATIENCE_MS, PATIENCE_MS + startMs + PATIENCE_CHUNKS * chunkMs);
  return [
    {
      price: a,
      to,
      cachedTokens,
      readyMs: startMs + ownMs,
      waitMs: Math.max(last.waitMs, second.waitMs),
      // Both instances are busy for the whole pipeline.
      lossMs: 2 * ownMs * queuedPrice,
      second: { price: b, chunkBlocks, patienceMs: Math.ceil(patienceMs) },
    },
  ];
}
