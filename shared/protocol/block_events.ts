/**
 * Events that holders publish about their blocks, in numbered batches, so that a listener notices a lost one.
 *
 *   batch   [u32 holder length][holder utf-8][f64 sequence] then runs
 *   run     [u8 operation][u8 tier][u32 count][u64 key × count]
 */
import { Failure } from '../base/failure.ts';
import { unpackKeyWords } from './packing.ts';

/** Tiers that a holder keeps blocks in; the index of a tier is its number in messages. */
export const tiers = ['device', 'dram', 'disk'] as const;
/** Tier that a holder keeps a block in. */
export type Tier = (typeof tiers)[number];

/** Consecutive events of one kind: the blocks of `keys` were stored in a tier, or removed from it. */
export interface BlockRun {
  readonly operation: 'stored' | 'removed';
  readonly tier: Tier;
  /** Keys of the blocks, two 32-bit words each, the lower word first. */
  readonly keys: Int32Array;
}

/** Block events of one holder, with the number of the batch. */
export interface BlockBatch {
  /** `name/epoch` of the holder. */
  readonly holder: string;
  readonly sequence: number;
  readonly runs: readonly BlockRun[];
}

/** Returns the bytes of a batch, laid out as at the top of this file. */
export function encodeBlockBatch({ holder, sequence, runs }: BlockBatch): Buffer {
  const name = Buffer.from(holder);
  const head = Buffer.alloc(4 + name.length + 8);
  head.writeUInt32LE(name.length);
  name.copy(head, 4);
  head.writeDoubleLE(sequence, 4 + name.length);
  const parts = runs.flatMap(({ operation, tier, keys }) => {
    const prefix = Buffer.alloc(6);
    prefix.writeUInt8(operation === 'stored' ? 1 : 0);
    prefix.writeUInt8(tiers.indexOf(tier), 1);
    prefix.writeUInt32LE(keys.length / 2, 2);
    return [prefix, Buffer.from(keys.buffer, keys.byteOffset, keys.byteLength)];
  });
  return Buffer.concat([head, ...parts]);
}

/** Parses a batch, laid out as at the top of this file. @throws Failure `invalid_request` for other bytes. */
export function decodeBlockBatch(bytes: Buffer): BlockBatch {
  try {
    const nameLength = bytes.readUInt32LE();
    const runs: BlockRun[] = [];
    let at = 4 + nameLength + 8;
    while (at < bytes.length) {
      const count = bytes.readUInt32LE(at + 2);
      const tier = tiers[bytes.readUInt8(at + 1)];
      const end = at + 6 + count * 8;
      if (!tier || end > bytes.length) throw new RangeError('a run is cut short');
      runs.push({
        operation: bytes.readUInt8(at) === 1 ? 'stored' : 'removed',
        tier,
        keys: unpackKeyWords(bytes.subarray(at + 6, end)),
      });
      at = end;
    }
    return { holder: bytes.toString('utf8', 4, 4 + nameLength), sequence: bytes.readDoubleLE(4 + nameLength), runs };
  } catch (cause) {
    throw new Failure('invalid_request', 'these bytes are no batch of block events', { cause });
  }
}
