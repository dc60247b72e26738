/**
 * Events that holders publish about their blocks, in numbered batches, so that a listener notices a lost one.
 *
 *   batch   [u32 holder length][holder utf-8][f64 sequence] then runs
 *   run     [u8 operation][u8 tier][u32 count][u64 × count]: the keys of blocks that were stored (1) or removed (0), or parents (2) of
 *           the blocks of the stored run before it, as parent_keys.ts has them
 */
import { Failure } from '../base/failure.ts';
import { unpackKeyWords } from './packing.ts';
import { packParents, unpackParents } from './parent_keys.ts';

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
  /**
   * Keys of the blocks before them in their chains, in the same form; both words are 0 where the holder does not know. The parent of a
   * prompt's first block is the key of the prompt's format and scope, which names no block; that of a recurrent state is its block.
   * Absent for removed blocks, and from holders of earlier versions.
   */
  readonly parents?: Int32Array | undefined;
}

/** Block events of one holder, with the number of the batch. */
export interface BlockBatch {
  /** `name/epoch` of the holder. */
  readonly holder: string;
  readonly sequence: number;
  readonly runs: readonly BlockRun[];
}

const REMOVED = 0;
const STORED = 1;
const PARENTS = 2;
const RUN_HEAD_BYTES = 6;

/** Returns the bytes of a batch, laid out as at the top of this file. */
export function encodeBlockBatch({ holder, sequence, runs }: BlockBatch): Buffer {
  const name = Buffer.from(holder);
  const head = Buffer.alloc(4 + name.length + 8);
  head.writeUInt32LE(name.length);
  name.copy(head, 4);
  head.writeDoubleLE(sequence, 4 + name.length);
  const parts = runs.flatMap(({ operation, tier, keys, parents }) => [
    ...runBytes(
      operation === 'stored' ? STORED : REMOVED,
      tier,
      Buffer.from(keys.buffer, keys.byteOffset, keys.byteLength),
    ),
    ...(parents ? runBytes(PARENTS, tier, packParents(keys, parents)) : []),
  ]);
  return Buffer.concat([head, ...parts]);
}

function runBytes(operation: number, tier: Tier, values: Buffer): Buffer[] {
  const head = Buffer.alloc(RUN_HEAD_BYTES);
  head.writeUInt8(operation);
  head.writeUInt8(tiers.indexOf(tier), 1);
  head.writeUInt32LE(values.length / 8, 2);
  return [head, values];
}

/** Parses a batch, laid out as at the top of this file. @throws Failure `invalid_request` for other bytes. */
export function decodeBlockBatch(bytes: Buffer): BlockBatch {
  try {
    const nameLength = bytes.readUInt32LE();
    const runs: BlockRun[] = [];
    let at = 4 + nameLength + 8;
    while (at < bytes.length) {
      const operation = bytes.readUInt8(at);
      const tier = tiers[bytes.readUInt8(at + 1)];
      const end = at + RUN_HEAD_BYTES + bytes.readUInt32LE(at + 2) * 8;
      if (!tier || end > bytes.length) throw new RangeError('a run is cut short');
      const values = bytes.subarray(at + RUN_HEAD_BYTES, end);
      const last = runs.at(-1);
      if (operation !== PARENTS)
        runs.push({ operation: operation === STORED ? 'stored' : 'removed', tier, keys: unpackKeyWords(values) });
      else if (last?.operation === 'stored' && last.tier === tier && !last.parents)
        runs[runs.length - 1] = { ...last, parents: unpackParents(last.keys, values) };
      else throw new RangeError('parents follow no stored run');
      at = end;
    }
    return { holder: bytes.toString('utf8', 4, 4 + nameLength), sequence: bytes.readDoubleLE(4 + nameLength), runs };
  } catch (cause) {
    throw new Failure('invalid_request', 'these bytes are no batch of block events', { cause });
  }
}
