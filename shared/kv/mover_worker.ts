/** The mover thread of an instance: checksums of records that lie in a shared slab. */
import { serveCalls } from '../base/worker_calls.ts';
import type { ChainLink, Digest } from './block_key.ts';
import { sealRecord, verifyRecord, type RecordLayout } from './record.ts';
import { slotBytes, type SlabMemory } from './slab.ts';

let slab: SlabMemory | undefined;

function record(slot: number): Uint8Array {
  if (!slab) throw new Error('the mover has no slab yet');
  return slotBytes(slab, slot);
}

const methods = {
  attach(memory: SlabMemory): void {
    slab = memory;
  },
  /** Writes headers and checksums around payloads that the engine put in place. */
  seal({ layout, blocks }: { layout: RecordLayout; blocks: readonly { slot: number; link: ChainLink }[] }): void {
    for (const { slot, link } of blocks) sealRecord(record(slot), layout, link);
  },
  /** Undefined when the record is the wanted block and undamaged (K2), else what is wrong. */
  verify({ slot, want }: { slot: number; want: { namespace: Digest; digest: Digest } }): string | undefined {
    return verifyRecord(record(slot), want);
  },
};

export type MoverMethods = typeof methods;

serveCalls(methods);
