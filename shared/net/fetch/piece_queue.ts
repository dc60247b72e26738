/** Records, or frames of them, that a fetch has asked for, in the order in which they are read. */
import assert from 'node:assert/strict';
import type { BlockHash } from '../../kv/block_key.ts';
import { pieceOf } from '../mover/lane_frames.ts';
import type { WantedRecords } from '../mover/pulled_lanes.ts';
import type { ArrivedPieces, TransferWay } from './fetch_events.ts';

/** What came of a record. */
export interface Here {
  readonly fault: string | undefined;
  readonly way: TransferWay;
}

/** A record, or one frame of it, that was asked for. */
export interface Piece {
  readonly index: number;
  readonly slot: number;
  readonly frame: number | undefined;
  /** That it is a frame of. */
  readonly group: Group | undefined;
  readonly bytes: number;
  here: Here | undefined;
}

/** What is asked for whole. */
export const whole = { frame: undefined, group: undefined, here: undefined };

/** Blocks that grow at their holder. Those without a slot here come later, each with all the frames that are there by then. */
export interface Group {
  readonly first: number;
  readonly count: number;
  /** Of the first blocks. */
  readonly slots: number[];
  /** Frames of each of these that have not come. */
  readonly numLeft: number[];
  /** By frame that is wanted, what records say of it, one behind the other. */
  readonly described: Buffer[];
}

/** A block that lies ready at its holder and has no slot here. */
export interface Promised {
  readonly index: number;
  readonly of: Group | { readonly over: 'lane' | 'call'; readonly bytes: number };
}

export class PieceQueue {
  readonly #hashes: readonly BlockHash[];
  readonly #pieces: Piece[] = [];
  /** As lane_frames.ts numbers them. */
  readonly #arriving = new Map<number, Piece>();

  constructor(hashes: readonly BlockHash[]) {
    this.#hashes = hashes;
  }

  /** What its reader waits for; undefined: nothing. */
  get first(): Piece | undefined {
    return this.#pieces[0];
  }

  /** Something that was asked for is not here. */
  get isComing(): boolean {
    return this.#arriving.size > 0;
  }

  /** Records, or one frame of each, all of one size. */
  ask(pieces: readonly Piece[], frame?: WantedRecords['frame']): WantedRecords {
    const indices = pieces.map(({ index, frame: which }) => pieceOf(index, which));
    for (const [i, piece] of pieces.entries()) this.#arriving.set(indices[i] ?? 0, piece);
    this.#pieces.push(...pieces);
    const digests = pieces.map(({ index }) => {
      const hash = this.#hashes[index];
      assert(hash, `block ${index} of ${this.#hashes.length} was asked for`);
      return hash.digest;
    });
    const records = { indices, digests, slots: pieces.map(({ slot }) => slot), bytes: pieces[0]?.bytes ?? 0 };
    return frame ? { ...records, frame } : records;
  }

  /** @returns the blocks of which all is here now. */
  arrived({ indices, faults, way }: ArrivedPieces): number[] {
    return indices.flatMap((at, i) => {
      const piece = this.#arriving.get(at);
      if (!piece) return [];
      this.#arriving.delete(at);
      piece.here = { fault: faults[i], way };
      return isWhole(piece) ? [piece.index] : [];
    });
  }

  /** The first, when it is here. */
  take(): (Piece & { readonly here: Here }) | undefined {
    const [first] = this.#pieces;
    if (!first?.here) return undefined;
    this.#pieces.shift();
    return { ...first, here: first.here };
  }

  /** Nothing more comes of what is not here. */
  giveUp(): void {
    this.#arriving.clear();
  }
}

/** One more of its frames is here. @returns whether all of its block is. */
function isWhole({ group, index }: Piece): boolean {
  if (!group) return true;
  const left = (group.numLeft[index - group.first] ?? 1) - 1;
  group.numLeft[index - group.first] = left;
  return left === 0;
}
