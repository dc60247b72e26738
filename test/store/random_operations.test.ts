/**
 * 10,000 random operations of 8 clients on a store's tiers, with its real threads and process, against a model that only knows what was put
 * in and what was told. SEED=n repeats a run, as far as a disk does. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { silentLog } from '../../shared/base/log.ts';
import { Random } from '../../shared/base/random.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { chainOf, SHARED, tenantIdOf, type BlockHash, type BlockKey, type Digest } from '../../shared/kv/block_key.ts';
import { contentHashOf, sealRecord, verifyRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { slotBytes } from '../../shared/kv/slab.ts';
import type { Tier } from '../../shared/protocol/block_events.ts';
import { Announcer } from '../../shared/node/announcer.ts';
import type { TransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import type { start as startReader } from '../../services/store/disk_reader.ts';
import { RECORDS, type start } from '../../services/store/disk_thread.ts';
import { StoreTiers } from '../../services/store/tiers.ts';
import { WriteBehind } from '../../services/store/write_behind.ts';
import { temporaryFolder } from '../support/cluster.ts';
import { evenSpec } from '../support/kv.ts';
import { assertNoLines } from '../support/no_lines.ts';
import { turn, until } from '../support/until.ts';

const NUM_CLIENTS = 8;
const NUM_OPERATIONS = 10_000;
const NUM_BLOCKS = 400;
const DRAM_BYTES = 160_000;
const DISK_BYTES = 900_000;
const formats = ['ab', 'cd', 'ef'].map((byte) => byte.repeat(16) as Digest);
const layouts = [1_024, 5_008, 20_000].map((payloadBytes, i): RecordLayout => ({
  format: formats[i]!,
  numericsClass: 'test',
  spec: evenSpec({ numLayers: 2, blockSize: 4, payloadBytes }),
}));

interface Block {
  readonly hash: BlockHash;
  readonly layout: RecordLayout;
  readonly bytes: number;
  /** Byte that fills the payload. */
  readonly fill: number;
}

const tenants = ['', 'a', 'b', 'c'].map(tenantIdOf);
const blocks = Array.from({ length: NUM_BLOCKS }, (_, i): Block => {
  const layout = layouts[i % layouts.length]!;
  const [hash] = chainOf(layout.format, 4, [i, i, i, i]);
  const tenant = tenants[i % tenants.length]!;
  return {
    hash: tenant === SHARED ? hash! : { ...hash!, tenant },
    layout,
    bytes: layout.spec.slotBytes,
    fill: i % 251,
  };
});

test.each([
  ['in clear', undefined],
  ['encrypted', Buffer.alloc(32, 0x4b)],
])(
  '10,000 random operations of 8 clients: what is there is right, what is told is true, and nothing is kept; %s',
  async (_, diskKey) => {
    const seed = Number(process.env['SEED'] ?? 7);
    const random = new Random(seed);
    const folder = temporaryFolder();
    const stopped = new AbortController();
    const warnings: string[] = [];
    const onDeath = assert.fail;
    const urlOf = (name: string): { url: URL } => ({
      url: new URL(`../../dist/services/store/${name}.js`, import.meta.url),
    });
    const pid = new Int32Array(new SharedArrayBuffer(4));
    const worker = workerThreads.spawn<typeof start>(urlOf('disk_worker'), { pid }, { onDeath });
    const readers = [1, 2].map(() =>
      workerThreads.spawn<typeof startReader>(urlOf('disk_reader'), { diskKey }, { onDeath }),
    );
    const announcer = new Announcer('s', () => undefined, systemClock, stopped.signal);
    const path = join(folder.path, 'lmdb');
    const tiers = new StoreTiers({
      worker,
      readers,
      dramBytes: DRAM_BYTES,
      diskBytes: DISK_BYTES,
      announcer,
      clock: systemClock,
      transferThread: { call: () => Promise.resolve() } as unknown as TransferThread,
      isShared: false,
      openDisk: () => worker.call('open', { path, budgetBytes: DISK_BYTES, diskKey }),
      records: () => join(path, RECORDS),
      signal: stopped.signal,
      log: { ...silentLog, warn: (...said: unknown[]) => void warnings.push(JSON.stringify(said)) },
    });
    await tiers.disk.start();
    const behind = new WriteBehind(tiers);
    const never = new AbortController().signal;
    /** Blocks that were put in at all: no other may be found. */
    const known = new Set<BlockKey>();
    const counts = { put: 0, full: 0, found: 0, missing: 0, held: 0 };

    const expectRight = (record: Uint8Array, { hash, layout, bytes, fill }: Block): void => {
      assert.equal(record.length, bytes);
      assert.equal(verifyRecord(record, { format: layout.format, digest: hash.digest }), undefined);
      assert(record[bytes - 1] === fill && record[bytes - layout.spec.payloadBytes] === fill, 'the bytes of another');
    };
    const whereIs = (hash: BlockHash): Tier[] => [
      ...(tiers.dram.peek(hash) ? ['dram' as const] : []),
      ...(tiers.disk.has(hash) ? ['disk' as const] : []),
    ];
    const operations: Record<string, (block: Block) => Promise<void>> = {
      async put({ hash, layout, bytes, fill }) {
        const slot = tiers.dram.acquireSlot(bytes);
        if (slot === undefined) {
          counts.full++;
          return;
        }
        if (random.chance(1, 3)) await systemClock.turn();
        const record = slotBytes(tiers.slab.memory, slot, bytes).fill(fill);
        sealRecord(record, layout, hash);
        known.add(hash.key);
        const write = tiers.accept({ hash, format: layout.format, slot, bytes });
        counts.put++;
        if (!write) return;
        if (random.chance(1, 2)) await tiers.commit([write]);
        else behind.add([write]);
        await behind.until(DRAM_BYTES / 2, never);
      },
      async get(block) {
        const lent = await tiers.borrow(block.hash, 'r', 0, never);
        counts[lent ? 'found' : 'missing']++;
        if (!lent) return;
        assert(known.has(block.hash.key), 'nobody put it in');
        expectRight(lent.record, block);
        if (random.chance(1, 4)) {
          for (let i = random.below(20); i > 0; i--) await turn();
          // Whatever went on meanwhile.
          expectRight(lent.record, block);
          counts.held++;
        }
        lent.release();
      },
      async collide({ hash }) {
        const other = { ...hash, digest: '0'.repeat(32) as Digest };
        assert.deepEqual(whereIs(other), []);
        assert.equal(await tiers.borrow(other, 'r', 0, never), undefined, 'another block under the same key');
      },
      run({ hash }) {
        const at = blocks.findIndex((block) => block.hash === hash);
        tiers.expect(blocks.slice(at, at + 8).map((block) => block.hash));
        return Promise.resolve();
      },
      look({ hash, layout, fill, bytes }) {
        const where = whereIs(hash);
        for (const tier of ['dram', 'disk'] as const)
          assert.equal(announcer.has(tier, hash.key), where.includes(tier), `what is told of ${tier}`);
        const contentHash = tiers.identityOf(hash);
        assert.equal(contentHash !== undefined, where.length > 0);
        if (!contentHash) return Promise.resolve();
        const record = new Uint8Array(bytes).fill(fill);
        assert.equal(contentHash.contentHash, sealRecord(record, layout, hash));
        assert.equal(contentHashOf(record), contentHash.contentHash);
        return Promise.resolve();
      },
    };
    const weighted = ['put', 'put', 'put', 'get', 'get', 'get', 'get', 'look', 'collide', 'run'] as const;
    let numDone = 0;
    const client = async (): Promise<void> => {
      while (numDone++ < NUM_OPERATIONS) {
        // The first blocks are asked for more often.
        const block = blocks[Math.min(random.below(NUM_BLOCKS), random.below(NUM_BLOCKS))]!;
        await operations[random.pick(weighted)]!(block);
        assert(tiers.disk.takenBytes <= DISK_BYTES, 'the disk has its budget (P1)');
        assert(tiers.slab.numFreeBytes >= 0);
      }
    };
    try {
      await Promise.all(Array.from({ length: NUM_CLIENTS }, client));
      await behind.until(0, never);
      await until('no slot is lost: what is read ahead arrives', () => tiers.dram.numSlotsInTransit === 0);
      const mostBorrowable = Math.floor(tiers.slab.numBytes / 4 / 1_024);
      await until('nothing is on loan', () => tiers.dram.numBorrowable(1_024) === mostBorrowable);
      for (const { hash } of blocks) tiers.dram.remove(hash.key);
      assert.equal(tiers.slab.numFreeBytes, tiers.slab.numBytes);
      // All that is on disk is right.
      const onDisk = blocks.filter(({ hash }) => tiers.disk.has(hash));
      for (const block of onDisk) {
        const lent = await tiers.borrow(block.hash, 'r', 0, never);
        assert(lent, 'what is on disk can be had');
        expectRight(lent.record, block);
        lent.release();
      }
      const notified = Object.entries(tiers.disk.formats.largest(8)).reduce(
        (sum, [, { blocks: count }]) => sum + count,
        0,
      );
      assert.equal(notified, onDisk.length);
      assert(tiers.disk.counters.evictions > 100 && tiers.dram.counters.evictions > 500, 'they were full');
      assert(
        counts.found > 500 && counts.missing > 100 && counts.held > 100 && counts.put > 1_000,
        JSON.stringify(counts),
      );
      assertNoLines(warnings);
    } catch (error) {
      throw new Error(`SEED=${seed} ${JSON.stringify(counts)}`, { cause: error });
    } finally {
      stopped.abort();
      await worker.call('close', undefined);
      await Promise.all([worker, ...readers].map((thread) => thread.close()));
      folder.remove();
    }
  },
);
