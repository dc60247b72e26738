/**
 * Encodes a long text on two threads. The text is cut where a pretoken very likely ends, and each thread takes the next free part. A
 * part's chunks are valid when the part before ended exactly at its cut; otherwise the text from there is encoded again, so that ids
 * never depend on the cuts.
 */
import type { ThreadLink } from '../../base/thread_link.ts';
import { BEHIND, CHUNK, type TextChunk } from './text_chunks.ts';

/** Kind of text that is cut into chunks: `uncut` may contain added tokens, `plain` is the normalised text between them. */
export type ChunkKind = 'uncut' | 'plain';

/** A chunk of a part. `isFound`: its cache key covers all text that its ids depend on, so the chunk can be cached. */
export interface FoundChunk extends TextChunk {
  readonly isFound: boolean;
}

/** Encodes single chunks of a text and finds places to cut the text into parts. */
export interface ChunkEncoder {
  /**
   * Encodes the chunk from `from` on. The chunk ends at `cut` or before, or with the pretoken that spans `cut`; undefined when no end
   * can be determined.
   */
  chunk(kind: ChunkKind, text: string, from: number, cut: number): FoundChunk | undefined;
  /** Returns a position at or after `at` where a pretoken very likely ends; undefined when none is found. */
  cutAfter(kind: ChunkKind, text: string, at: number): number | undefined;
}

/** Code units of remaining text from which on a second thread is worth its messages. */
export const PARTED = 65_536;
/**
 * Code units of a part, which take a millisecond or two: so long may the helping thread delay its own work. That thread leaves parts
 * longer than MAX_PART, which hold a long pretoken, to the other.
 */
const PART = 16_384;
const MAX_PART = 2 * PART;
/**
 * Milliseconds to wait for the other thread's parts. After that the thread counts as lost or overloaded, and its parts are encoded
 * here.
 */
const MAX_WAIT_MS = 250;
/** Indices of the shared counters: the next free part, and the number of parts that the other thread has finished. */
const Cell = { next: 0, done: 1 } as const;

/**
 * A text that two threads encode together. Part `i` spans [cuts[i], cuts[i + 1]) in UTF-16 code units; `cells` is shared memory with
 * the counters of `Cell`.
 */
export interface EncodeJob {
  readonly id: number;
  readonly kind: ChunkKind;
  readonly text: string;
  readonly cuts: readonly number[];
  readonly cells: Int32Array;
}

/** The encoded chunks of one part, as the helping thread posts them. `chunks` is empty when that thread could not encode the part. */
export interface EncodedSpan {
  readonly id: number;
  readonly index: number;
  readonly chunks: readonly FoundChunk[];
}

function encodeSpan(encoder: ChunkEncoder, { kind, text, cuts }: EncodeJob, index: number): FoundChunk[] {
  const chunks: FoundChunk[] = [];
  const end = cuts[index + 1]!;
  for (let at = cuts[index]!; at < end;) {
    const chunk = encoder.chunk(kind, text, at, end);
    if (!chunk) break;
    chunks.push(chunk);
    at += chunk.length;
  }
  return chunks;
}

/** Encodes parts for the thread at the other end of `link`, one at a time, so that this thread's own work comes between. */
export function serveEncoding(link: ThreadLink<EncodedSpan, EncodeJob>, encoder: () => ChunkEncoder | undefined): void {
  link.serve((work) => () => {
    const { id, text, cuts, cells } = work;
    const own = encoder();
    const index = own ? Atomics.add(cells, Cell.next, 1) : cuts.length;
    if (!own || index + 1 >= cuts.length) return false;
    let chunks: FoundChunk[] = [];
    try {
      if (cuts[index + 1]! - cuts[index]! <= MAX_PART) chunks = encodeSpan(own, work, index);
    } catch {
      // The other thread meets the same error when it encodes this part, and reports it to its caller.
    }
    // This thread holds only a slice of the text: a chunk that ends within BEHIND characters of the slice's end might continue in the
    // whole text.
    const end = chunks.reduce((at, { length }) => at + length, cuts[index]!);
    link.post({ id, index, chunks: end + BEHIND > text.length ? [] : chunks });
    Atomics.add(cells, Cell.done, 1);
    Atomics.notify(cells, Cell.done);
    return true;
  });
}

/**
 * Shares the parts of long texts with another thread over a link, and collects the chunks in order. Used by the thread that needs the
 * ids.
 */
export class PartedText {
  readonly #link: ThreadLink<EncodeJob, EncodedSpan>;
  #nextId = 0;
  /** Parts that the other thread has encoded. */
  numTaken = 0;

  constructor(link: ThreadLink<EncodeJob, EncodedSpan>) {
    this.#link = link;
  }

  /** Returns the chunks from `from` on, in order, up to the last cut before the end of the text; none when the text cannot be cut. */
  chunks(encoder: ChunkEncoder, kind: ChunkKind, text: string, from: number): FoundChunk[] {
    const cuts = cutsOf(encoder, kind, text, from);
    if (cuts.length < 3) return [];
    const [start, last] = [cuts[0]!, cuts.at(-1)!];
    const id = this.#nextId++;
    const cells = new Int32Array(new SharedArrayBuffer(8));
    const part = text.slice(start, last + CHUNK + BEHIND);
    const theirs = { id, kind, cells, text: part, cuts: cuts.map((cut) => cut - start) };
    this.#link.post(theirs);
    const own: EncodeJob = { ...theirs, text, cuts };
    const parts: (readonly FoundChunk[] | undefined)[] = [];
    let numOwn = 0;
    for (let index = Atomics.add(cells, Cell.next, 1); index + 1 < cuts.length; numOwn++) {
      parts[index] = encodeSpan(encoder, own, index);
      index = Atomics.add(cells, Cell.next, 1);
    }
    this.#collect(own, parts, cuts.length - 1 - numOwn);
    return joined(encoder, own, parts);
  }

  /** Waits until the other thread has finished the `count` parts that it took, and stores their chunks in `parts`. */
  #collect({ id, cells }: EncodeJob, parts: (readonly FoundChunk[] | undefined)[], count: number): void {
    for (let done = Atomics.load(cells, Cell.done); done < count; done = Atomics.load(cells, Cell.done))
      if (Atomics.wait(cells, Cell.done, done, MAX_WAIT_MS) === 'timed-out') break;
    for (const part of this.#link.arrived()) {
      // A part of an earlier text, whose wait timed out, may arrive now.
      if (part.id !== id) continue;
      parts[part.index] = part.chunks;
      this.numTaken++;
    }
  }
}

/** Returns cut positions about `PART` apart, or farther where a long pretoken ends. More than a chunk of text remains after the last. */
function cutsOf(encoder: ChunkEncoder, kind: ChunkKind, text: string, from: number): number[] {
  const cuts = [from];
  for (let at = from + PART; at + CHUNK + 2 * BEHIND < text.length;) {
    const cut = encoder.cutAfter(kind, text, at);
    if (cut !== undefined && cut > cuts.at(-1)! && cut + CHUNK + BEHIND < text.length) cuts.push(cut);
    at = Math.max(at + PART, cut ?? 0);
  }
  return cuts;
}

/** Joins the parts in order. A part that does not begin where the one before ended is encoded again from there. */
function joined(
  encoder: ChunkEncoder,
  work: EncodeJob,
  parts: readonly (readonly FoundChunk[] | undefined)[],
): FoundChunk[] {
  const all: FoundChunk[] = [];
  let at = work.cuts[0]!;
  for (let index = 0; index + 1 < work.cuts.length; index++) {
    const [cut, end] = [work.cuts[index]!, work.cuts[index + 1]!];
    // Empty when the part is missing or does not begin here; the loop below encodes the rest.
    const part = (at === cut ? parts[index] : undefined) ?? [];
    for (const chunk of part) {
      all.push(chunk);
      at += chunk.length;
    }
    while (at < end) {
      const chunk = encoder.chunk(work.kind, work.text, at, end);
      if (!chunk) return all;
      all.push(chunk);
      at += chunk.length;
    }
  }
  return all;
}
