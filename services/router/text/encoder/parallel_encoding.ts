/**
 * Long texts by two threads: a text is cut where pretokens end as far as can be seen from there, each takes the next part that nobody has, and
 * what the parts have is the whole text's where each ends at the cut where the next begins. Where one does not, what follows is encoded again
 * from there, so that ids never depend on where a text was cut.
 */
import type { ThreadLink } from '../../../../shared/base/thread_link.ts';
import { BEHIND, CHUNK, type TextChunk } from './text_chunks.ts';

/** Kind of text that is cut into chunks: `uncut` may contain added tokens, `plain` is the normalised text between them. */
export type ChunkKind = 'uncut' | 'plain';

/** A chunk of a part; one that is not found again is not worth remembering. */
export interface FoundChunk extends TextChunk {
  readonly isFound: boolean;
}

/** Encodes single chunks of a text and finds places to cut the text into parts. */
export interface ChunkEncoder {
  /** The chunk from `from` on, which ends at `cut` or before it, or with the pretoken that lies across; undefined: none can be told. */
  chunk(kind: ChunkKind, text: string, from: number, cut: number): FoundChunk | undefined;
  /** A place behind `at`, where a pretoken ends most likely. */
  cutAfter(kind: ChunkKind, text: string, at: number): number | undefined;
}

/** Text that is left, from which a second thread is worth its messages. */
export const PARTED = 65_536;
/** A millisecond or two: as long may what the other thread is for have to wait. Longer ones, with a long pretoken in them, are left alone. */
const PART = 16_384;
const MAX_PART = 2 * PART;
/** The other thread is lost, or has no time at all: what it has is encoded again. */
const MAX_WAIT_MS = 250;
/** Cells: the next part that nobody has, and parts that the other thread is done with. */
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
export interface Part {
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

/** Helps whoever has the other end, a part at a time: what this thread is for comes between. */
export function serveEncoding(link: ThreadLink<Part, EncodeJob>, encoder: () => ChunkEncoder | undefined): void {
  link.serve((work) => () => {
    const { id, text, cuts, cells } = work;
    const own = encoder();
    const index = own ? Atomics.add(cells, Cell.next, 1) : cuts.length;
    if (!own || index + 1 >= cuts.length) return false;
    let chunks: FoundChunk[] = [];
    try {
      if (cuts[index + 1]! - cuts[index]! <= MAX_PART) chunks = encodeSpan(own, work, index);
    } catch {
      // The other thread meets it too, and has somebody to tell.
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
  readonly #link: ThreadLink<EncodeJob, Part>;
  #nextId = 0;
  /** Parts that the other thread has encoded. */
  numTaken = 0;

  constructor(link: ThreadLink<EncodeJob, Part>) {
    this.#link = link;
  }

  /** Chunks in order from `from` on, not to the end of the text; none when it cannot be cut. */
  chunks(encoder: ChunkEncoder, kind: ChunkKind, text: string, from: number): FoundChunk[] {
    const cuts = cutsOf(encoder, kind, text, from);
    if (cuts.length < 3) return [];
    const [start, last] = [cuts[0]!, cuts.at(-1)!];
    const id = this.#nextId++;
    const cells = new Int32Array(new SharedArrayBuffer(8));
    const theirs = {
      ...{ id, kind, cells },
      ...{ text: text.slice(start, last + CHUNK + BEHIND), cuts: cuts.map((cut) => cut - start) },
    };
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

  /** Parts that the other thread has taken. */
  #collect({ id, cells }: EncodeJob, parts: (readonly FoundChunk[] | undefined)[], count: number): void {
    for (let done = Atomics.load(cells, Cell.done); done < count; done = Atomics.load(cells, Cell.done))
      if (Atomics.wait(cells, Cell.done, done, MAX_WAIT_MS) === 'timed-out') break;
    for (const part of this.#link.arrived()) {
      // One that was waited for in vain comes later.
      if (part.id !== id) continue;
      parts[part.index] = part.chunks;
      this.numTaken++;
    }
  }
}

/** Places `PART` apart, about, or where a long pretoken ends; the last leaves a text that is longer than a chunk. */
function cutsOf(encoder: ChunkEncoder, kind: ChunkKind, text: string, from: number): number[] {
  const cuts = [from];
  for (let at = from + PART; at + CHUNK + 2 * BEHIND < text.length;) {
    const cut = encoder.cutAfter(kind, text, at);
    if (cut !== undefined && cut > cuts.at(-1)! && cut + CHUNK + BEHIND < text.length) cuts.push(cut);
    at = Math.max(at + PART, cut ?? 0);
  }
  return cuts;
}

/** Part after part; what does not begin where the one before it ended is encoded again from there. */
function joined(
  encoder: ChunkEncoder,
  work: EncodeJob,
  parts: readonly (readonly FoundChunk[] | undefined)[],
): FoundChunk[] {
  const all: FoundChunk[] = [];
  let at = work.cuts[0]!;
  for (let index = 0; index + 1 < work.cuts.length; index++) {
    const [cut, end] = [work.cuts[index]!, work.cuts[index + 1]!];
    // Nobody's, or no more than its beginning.
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
