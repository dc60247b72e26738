/**
 * Records that lie in memory that both ends of a lane share: copied into their slots and judged there, piece by piece, some of them at a
 * time, so that what is asked for meanwhile is asked for.
 */
import type { Clock } from '../../base/clock.ts';
import type { ArrivingFrame, ArrivingRecord } from '../../kv/record.ts';

/** So much is copied and verified while it is in the processor's cache. */
const PIECE_BYTES = 256 << 10;
/** Some tenths of a millisecond. */
const BYTES_AT_ONCE = 2 << 20;

export interface MemoryRead {
  readonly lane: number;
  readonly stream: number;
  /** Undefined: its holder says that it lies where nothing is. */
  readonly from: Uint8Array | undefined;
  readonly target: Uint8Array;
  readonly judge: ArrivingRecord | ArrivingFrame;
  /** It is in its slot, or given up; `isHere`: it may be used, unless there is a fault. */
  readonly done: (isHere: boolean, fault: string | undefined) => void;
}

export class MemoryReads {
  readonly #clock: Pick<Clock, 'turn'>;
  #waiting: MemoryRead[] = [];
  #isReading = false;

  constructor(clock: Pick<Clock, 'turn'>) {
    this.#clock = clock;
  }

  add(read: MemoryRead): void {
    this.#waiting.push(read);
    if (!this.#isReading) void this.#readAll();
  }

  /** What waits of a lane, or of one of its streams, is not read. */
  giveUp(lane: number, stream?: number): void {
    const isOf = (read: MemoryRead): boolean => read.lane === lane && (stream === undefined || read.stream === stream);
    const gone = this.#waiting.filter(isOf);
    this.#waiting = this.#waiting.filter((read) => !isOf(read));
    for (const { done } of gone) done(false, undefined);
  }

  async #readAll(): Promise<void> {
    this.#isReading = true;
    // Those that come in the same turn are there by then.
    await this.#clock.turn();
    while (this.#waiting.length > 0) {
      for (let numBytes = 0; numBytes < BYTES_AT_ONCE;) {
        const read = this.#waiting.shift();
        if (!read) break;
        numBytes += read.target.length;
        copy(read);
      }
      await this.#clock.turn();
    }
    this.#isReading = false;
  }
}

function copy({ from, target, judge, done }: MemoryRead): void {
  for (let at = 0; from && at < target.length; at += PIECE_BYTES) {
    const end = Math.min(target.length, at + PIECE_BYTES);
    target.set(from.subarray(at, end), at);
    judge.took(end);
  }
  done(true, from ? judge.fault : 'its holder says it lies where nothing is');
}
