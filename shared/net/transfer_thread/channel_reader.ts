/** Reader of a data channel's socket at the asker: heads, each followed by its record unless the record lies in shared memory. */
import type { FrameVerifier } from '../../kv/frame_header.ts';
import type { RecordVerifier } from '../../kv/record.ts';
import { HEAD_BYTES, readHead, type RecordHead } from './channel_messages.ts';

/** Most heads read at once while records lie in shared memory. */
const MAX_HEADS = 256;
/** Bytes of the buffer into which unwanted records are read and discarded. */
const SCRATCH_BYTES = 256 << 10;

/** Destination of the bytes that follow a head: the record's memory and its verifier, or the number of bytes to discard. */
export type AfterHead =
  | { readonly target: Uint8Array; readonly verifier: RecordVerifier | FrameVerifier }
  | { readonly unwantedBytes: number };

/** State and callbacks of a {@link ChannelReader}. */
export interface ChannelReaderOptions {
  readonly isClosed: () => boolean;
  /** Whether records lie in memory that both ends share; many heads then arrive together. */
  readonly isShared: () => boolean;
  /**
   * Called for each head; the head is undefined when it is invalid. @returns the destination of its record, or undefined when no bytes
   * follow on the socket.
   */
  readonly onHead: (head: RecordHead | undefined) => AfterHead | undefined;
  readonly onRecord: (fault: string | undefined) => void;
}

/** Splits the bytes of a data channel into heads and records, and names the memory that the next bytes are read into. */
export class ChannelReader {
  readonly #options: ChannelReaderOptions;
  readonly #heads = Buffer.alloc(MAX_HEADS * HEAD_BYTES);
  #numHeads = 0;
  /** Record being received, of which #numHere bytes have arrived; undefined while a head is expected. */
  #coming: AfterHead | undefined;
  #numHere = 0;
  #scratch: Uint8Array | undefined;

  constructor(options: ChannelReaderOptions) {
    this.#options = options;
  }

  /** Returns the memory for the next bytes. */
  into(): Uint8Array {
    if (this.#coming) return this.#room(this.#coming);
    return this.#heads.subarray(this.#numHeads, this.#options.isShared() ? this.#heads.length : HEAD_BYTES);
  }

  received(count: number): void {
    if (this.#options.isClosed()) {
      // A closed channel discards its input, but must still return room: a TLS socket would otherwise ask for a buffer for ever.
      [this.#coming, this.#numHeads] = [undefined, 0];
    } else if (this.#coming) this.#afterHead(this.#coming, count);
    else {
      this.#numHeads += count;
      this.#readHeads();
    }
  }

  #room(coming: AfterHead): Uint8Array {
    if ('target' in coming) return coming.target.subarray(this.#numHere);
    this.#scratch ??= new Uint8Array(SCRATCH_BYTES);
    return this.#scratch.subarray(0, coming.unwantedBytes - this.#numHere);
  }

  #afterHead(coming: AfterHead, count: number): void {
    this.#numHere += count;
    const isWanted = 'target' in coming;
    if (isWanted) coming.verifier.received(this.#numHere);
    if (this.#numHere < (isWanted ? coming.target.length : coming.unwantedBytes)) return;
    this.#coming = undefined;
    if (isWanted) this.#options.onRecord(coming.verifier.fault);
  }

  #readHeads(): void {
    let at = 0;
    while (this.#numHeads - at >= HEAD_BYTES && !this.#options.isClosed()) {
      this.#coming = this.#options.onHead(readHead(this.#heads.subarray(at, at + HEAD_BYTES)));
      this.#numHere = 0;
      at += HEAD_BYTES;
      // Bytes already read after the head belong to its record.
      while (this.#coming && at < this.#numHeads) {
        const into = this.#room(this.#coming);
        const count = this.#heads.copy(into, 0, at, Math.min(this.#numHeads, at + into.length));
        at += count;
        this.#afterHead(this.#coming, count);
      }
    }
    this.#heads.copyWithin(0, at, this.#numHeads);
    this.#numHeads -= at;
  }
}
