/** A record, or a frame of one, out of another process's memory into a slot of this one's, judged there (K2). */
import type { Digest } from '../../kv/block_key.ts';
import { ArrivingFrame, ArrivingRecord, type FrameRange } from '../../kv/record.ts';
import type { BorrowedMemory, OwnMemory } from './host_memory.ts';

/** So much is copied and judged while it is in the processor's cache. */
const PIECE_BYTES = 64 << 10;

/** What comes into a slot. */
export interface SlottedRecord {
  readonly slot: number;
  readonly bytes: number;
  readonly format: Digest;
  readonly digest: Digest;
  /** It is this frame: `said` as its holder describes it, at `offset` of the slot. */
  readonly frame: { readonly range: FrameRange; readonly offset: number; readonly said: Uint8Array } | undefined;
}

export interface CopyJob extends SlottedRecord {
  /** In the other's memory. */
  readonly place: number;
}

/** Where it comes, and what judges it on the way. */
export function arrivalOf(
  own: OwnMemory,
  { slot, bytes, format, digest, frame }: SlottedRecord,
): { readonly target: Uint8Array; readonly judge: ArrivingRecord | ArrivingFrame } {
  if (frame) {
    const target = own.bytes(slot + frame.offset, bytes);
    return { target, judge: new ArrivingFrame(target, frame.said, { ...frame.range, digest }) };
  }
  const target = own.bytes(slot, bytes);
  return { target, judge: new ArrivingRecord(target, { format, digest }) };
}

/** @returns why it cannot be used. */
export function copyRecord(own: OwnMemory, memory: BorrowedMemory, job: CopyJob): string | undefined {
  const { place, bytes } = job;
  const from = memory.at(place, bytes);
  if (!from) return 'its holder says it lies where nothing is';
  const { target, judge } = arrivalOf(own, job);
  for (let at = 0; at < bytes; at += PIECE_BYTES) {
    const end = Math.min(bytes, at + PIECE_BYTES);
    target.set(from.subarray(at, end), at);
    judge.took(end);
  }
  return judge.fault;
}
