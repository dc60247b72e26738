/** The mover thread of an instance: checksums of records that lie in a shared slab. */
import type { BlockHash, Digest } from './block_key.ts';
import { sealRecord, verifyRecord, type RecordLayout } from './record.ts';
import { slotBytes, type SlabMemory } from './slab.ts';

export interface MoverMethods {
  attach: (memory: SlabMemory) => void;
  /** Writes headers and checksums around payloads that the engine put in place. */
  seal: (job: { layout: RecordLayout; blocks: readonly { slot: number; hash: BlockHash }[] }) => void;
  /** Undefined when the record is the wanted block and undamaged (K2), else what is wrong. */
  verify: (job: { slot: number; want: { format: Digest; digest: Digest } }) => string | undefined;
}

export function start(): MoverMethods {
  let slab: SlabMemory | undefined;
  const record = (slot: number): Uint8Array => {
    if (!slab) throw new Error('the mover has no slab yet');
    return slotBytes(slab, slot);
  };
  return {
    attach(memory) {
      slab = memory;
    },
    seal({ layout, blocks }) {
      for (const { slot, hash } of blocks) sealRecord(record(slot), layout, hash);
    },
    verify: ({ slot, want }) => verifyRecord(record(slot), want),
  };
}
