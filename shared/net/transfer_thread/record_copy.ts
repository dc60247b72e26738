/** A record, or a frame of one, out of another process's memory into a slot of this one's, judged there (K2). */
import type { Digest } from '../../kv/block_key.ts';
import { FrameVerifier } from '../../kv/frame_header.ts';
import type { FrameSpec } from '../../kv/kv_spec.ts';
import { RecordVerifier } from '../../kv/record.ts';
import type { BorrowedMemory, OwnMemory } from './host_memory.ts';

/** So much is copied and judged while it is in the processor's cache. */
const ITEM_BYTES = 64 << 10;

/** A record, or one frame of it, with its slot and the digests that verify it. */
export interface SlotRecord {
  readonly slot: number;
  readonly bytes: number;
  readonly format: Digest;
  readonly digest: Digest;
  /** The frame that it is, with the header that its holder sent; undefined: a whole record. */
  readonly frame: { readonly spec: FrameSpec; readonly header: Uint8Array } | undefined;
}

/** Copy of one record out of another process's shared memory. */
export interface CopyJob extends SlotRecord {
  /** In the other's memory. */
  readonly place: number;
}

/** The memory that it arrives in, and what verifies it on the way. */
export function receivedFrom(
  own: OwnMemory,
  { slot, bytes, format, digest, frame }: SlotRecord,
): { readonly target: Uint8Array; readonly verifier: RecordVerifier | FrameVerifier } {
  if (frame) {
    const target = own.bytes(slot + frame.spec.slotOffset, bytes);
    return { target, verifier: new FrameVerifier(target, frame.header, { ...frame.spec, digest }) };
  }
  const target = own.bytes(slot, bytes);
  return { target, verifier: new RecordVerifier(target, { format, digest }) };
}

/** @returns why it cannot be used. */
export function copyRecord(own: OwnMemory, memory: BorrowedMemory, job: CopyJob): string | undefined {
  const { place, bytes } = job;
  const from = memory.at(place, bytes);
  if (!from) return 'its holder says it lies where nothing is';
  const { target, verifier } = receivedFrom(own, job);
  for (let at = 0; at < bytes; at += ITEM_BYTES) {
    const end = Math.min(bytes, at + ITEM_BYTES);
    target.set(from.subarray(at, end), at);
    verifier.received(end);
  }
  return verifier.fault;
}
