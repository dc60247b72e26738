/** Copies a record, or one frame of it, out of another process's memory into a slot of this one, and verifies the copy (K2). */
import type { Digest } from '../../kv/block_key.ts';
import { FrameVerifier } from '../../kv/frame_header.ts';
import type { FrameSpec } from '../../kv/kv_spec.ts';
import { RecordVerifier } from '../../kv/record.ts';
import type { BorrowedMemory, OwnMemory } from './host_memory.ts';

/** Bytes copied and verified at a time, while they are in the processor's cache. */
const COPY_BYTES = 64 << 10;

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
  /** Byte offset in the other process's memory. */
  readonly offset: number;
}

/** Returns the memory that a record or frame arrives in, and the verifier of its bytes. */
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

/** Copies and verifies one record or frame. @returns the reason why it cannot be used, or undefined. */
export function copyRecord(own: OwnMemory, memory: BorrowedMemory, job: CopyJob): string | undefined {
  const { offset, bytes } = job;
  const from = memory.at(offset, bytes);
  if (!from) return 'the holder named an address outside its memory';
  const { target, verifier } = receivedFrom(own, job);
  for (let at = 0; at < bytes; at += COPY_BYTES) {
    const end = Math.min(bytes, at + COPY_BYTES);
    target.set(from.subarray(at, end), at);
    verifier.received(end);
  }
  return verifier.fault;
}
