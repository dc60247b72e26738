/** Records of one kind in a memory shard, blocks or states: the part of each whose layers the memory shard has, one after another. */
import type { ByteRange } from '../kv_layout.ts';

/** Copies parts of records into a memory, out of it, and within it. */
export class RecordRegion {
  readonly #memory: Uint8Array;
  /** Byte offset of record 0 in the memory. */
  readonly #at: number;
  /** Byte range of a record whose layers lie here. */
  readonly #own: ByteRange;

  constructor(memory: WebAssembly.Memory, at: number, own: ByteRange) {
    this.#memory = new Uint8Array(memory.buffer);
    this.#at = at;
    this.#own = own;
  }

  /**
   * Returns the part of a range of a record that lies here: its offset in the memory's part of the record, its offset in the range, and
   * its bytes (0: none).
   */
  #shared({ at, bytes }: ByteRange): { readonly inRecord: number; readonly inRange: number; readonly bytes: number } {
    const own = this.#own;
    const first = Math.max(at, own.at);
    const end = Math.min(at + bytes, own.at + own.bytes);
    return { inRecord: first - own.at, inRange: first - at, bytes: Math.max(0, end - first) };
  }

  /** Copies what lies here of a range of record `id` into `out`, the whole record. */
  copyOut(id: number, range: ByteRange, out: Uint8Array): void {
    const { inRecord, inRange, bytes } = this.#shared(range);
    const from = this.#at + id * this.#own.bytes + inRecord;
    if (bytes > 0) out.set(this.#memory.subarray(from, from + bytes), range.at + inRange);
  }

  /** Copies what belongs here of a range into record `id`. `payload` has exactly the bytes of the range. */
  copyIn(id: number, range: ByteRange, payload: Uint8Array): void {
    const { inRecord, inRange, bytes } = this.#shared(range);
    const to = this.#at + id * this.#own.bytes + inRecord;
    if (bytes > 0) this.#memory.set(payload.subarray(inRange, inRange + bytes), to);
  }

  /** Copies what lies here of record `from` into record `to`. */
  copyRecord(from: number, to: number): void {
    const { bytes } = this.#own;
    this.#memory.copyWithin(this.#at + to * bytes, this.#at + from * bytes, this.#at + (from + 1) * bytes);
  }
}
