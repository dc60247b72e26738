/** The LMDB tier with its real worker thread: S1, budgets, damage; and with a worker that fails, as a full disk does. Budget: 20 s. */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeAll, beforeEach, describe, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { silentLog } from '../../shared/base/log.ts';
import type { Thread } from '../../shared/base/threads.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { chainOf, type BlockKey, type BlockHash, type Digest } from '../../shared/kv/block_key.ts';
import { kvSpec } from '../../shared/kv/kv_spec.ts';
import { recordShapeOf, sealRecord, stateHashOf, type RecordLayout } from '../../shared/kv/record.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';
import { pagedBytes } from '../../services/store/disk_index.ts';
import { DiskTier, type DiskTierOptions, type DiskWrite } from '../../services/store/disk_tier.ts';
import type { DiskReader, start as startReader } from '../../services/store/disk_reader.ts';
import { RECORDS, type DiskThread, type start } from '../../services/store/disk_thread.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';
import { temporaryFolder } from '../support/cluster.ts';
import { evenSpec } from '../support/kv.ts';
import { until } from '../support/until.ts';

const format = 'ab'.repeat(16) as Digest;
const layout: RecordLayout = {
  format,
  numericsClass: 'test',
  spec: evenSpec({ numLayers: 2, blockSize: 4, payloadBytes: 8_192 }),
};
const bytes = layout.spec.slotBytes;
const url = new URL('../../dist/services/store/disk_worker.js', import.meta.url);
const readerUrl = new URL('../../dist/services/store/disk_reader.js', import.meta.url);

const folder = temporaryFolder();
const path = join(folder.path, 'lmdb');
let stopped: AbortController;
let worker: Thread<DiskThread>;
let readers: Thread<DiskReader>[];
let slab: Slab;
/** Key of `--disk-key`; undefined: records are in clear. */
let diskKey: Uint8Array | undefined;

function linkOf(i: number): BlockHash {
  return chainOf(format, 4, [i, i, i, i])[0]!;
}

/** A sealed record in a slot. */
function record(i: number, hash = linkOf(i)): DiskWrite {
  const slot = slab.allocate(bytes)!;
  slotBytes(slab.memory, slot, bytes).fill(i);
  sealRecord(slotBytes(slab.memory, slot, bytes), layout, hash);
  return { hash, format, slot, bytes };
}

/** Process id of the disk process, which its thread fills in. */
let pid: Int32Array<SharedArrayBuffer>;

async function openWorker(): Promise<void> {
  pid = new Int32Array(new SharedArrayBuffer(4));
  worker = workerThreads.spawn<typeof start>({ url }, { pid }, { onDeath: assert.fail });
  readers = [1, 2].map(() =>
    workerThreads.spawn<typeof startReader>({ url: readerUrl }, { diskKey }, { onDeath: assert.fail }),
  );
  await attach();
}

async function attach(): Promise<void> {
  await worker.call('attach', slab.memory);
  for (const reader of readers) await reader.call('attach', slab.memory);
}

/** Closes the worker and reader threads. */
async function closeWorker(): Promise<void> {
  await Promise.all([worker, ...readers].map((thread) => thread.close()));
}

async function tierOf(more: Partial<DiskTierOptions> = {}): Promise<{ tier: DiskTier; keys: Set<BlockKey> }> {
  const keys = new Set<BlockKey>();
  const tier = new DiskTier({
    worker,
    readers,
    records: () => join(path, RECORDS),
    open: () => worker.call('open', { path, budgetBytes: 1 << 20, diskKey }),
    clock: systemClock,
    signal: stopped.signal,
    budgetBytes: 1 << 20,
    log: silentLog,
    onStored: ({ key }) => keys.add(key),
    onRemoved: (key) => keys.delete(key),
    ...more,
  });
  await tier.start();
  return { tier, keys };
}

beforeEach(async () => {
  folder.remove();
  slab = new Slab(64 * slotLength(bytes));
  stopped = new AbortController();
  await openWorker();
});
afterEach(async () => {
  stopped.abort();
  await closeWorker();
  folder.remove();
});

describe.each([
  ['in clear', undefined],
  ['encrypted', Buffer.alloc(32, 0x4b)],
])('%s', (_, key) => {
  beforeAll(() => {
    diskKey = key;
  });
  test('S1: what was put survives the thread being ended in the middle, and reads back undamaged', async () => {
    const { tier } = await tierOf();
    await tier.put([record(1), record(2)]);
    await closeWorker();
    await openWorker();
    const { tier: again, keys } = await tierOf();
    assert.deepEqual(keys, new Set([linkOf(1).key, linkOf(2).key]));
    const slot = slab.allocate(bytes)!;
    assert(await again.get(linkOf(2), slot));
    assert.equal(slotBytes(slab.memory, slot, bytes).at(-1), 2);
  });

  test('the budget holds, the least recently used goes first', async () => {
    const { tier, keys } = await tierOf({ budgetBytes: 4 * 12_288 });
    for (const i of [1, 2, 3, 4]) await tier.put([record(i)]);
    await tier.get(linkOf(1), slab.allocate(bytes)!);
    await tier.put([record(5), record(6)]);
    assert.deepEqual(keys, new Set([1, 4, 5, 6].map((i) => linkOf(i).key)));
    assert.equal(tier.counters.evictions, 2);
    assert(tier.takenBytes <= 4 * 12_288);
  });

  test('states take a third of the budget, the one used longest ago goes first, and a restart knows which records are states', async () => {
    const hybrid: RecordLayout = {
      ...layout,
      spec: kvSpec(
        [
          { kind: 'paged', planes: [64, 64], window: 0 },
          { kind: 'state', planes: [64, 1_800], window: 0 },
        ],
        { blockSize: 4, valueType: 'f16' },
      ),
    };
    const { slotBytes: stateBytes } = recordShapeOf(hybrid.spec, 'state');
    // A third holds three states.
    const budgetBytes = 3 * 3 * pagedBytes(stateBytes);
    const state = (i: number): DiskWrite => {
      const hash = stateHashOf(linkOf(i));
      const slot = slab.allocate(stateBytes)!;
      sealRecord(slotBytes(slab.memory, slot, stateBytes), hybrid, hash);
      return { hash, format, slot, bytes: stateBytes };
    };
    const keyOf = (i: number): BlockKey => stateHashOf(linkOf(i)).key;
    const { tier, keys } = await tierOf({ budgetBytes });
    await tier.put([record(1)]);
    for (const i of [1, 2, 3]) await tier.put([state(i)]);
    assert(await tier.get(stateHashOf(linkOf(1)), slab.allocate(stateBytes)!));
    await tier.put([state(4)]);
    assert.deepEqual(keys, new Set([linkOf(1).key, keyOf(1), keyOf(3), keyOf(4)]));
    assert.equal(tier.counters.evictions, 1);
    await closeWorker();
    await openWorker();
    const { tier: again, keys: after } = await tierOf({ budgetBytes });
    assert.deepEqual(after, keys);
    await again.put([state(5), state(6)]);
    assert.equal(again.counters.evictions, 2);
    assert(after.has(linkOf(1).key) && after.has(keyOf(5)) && after.has(keyOf(6)));
  });

  test('the parent of a block is known after a restart', async () => {
    const parents = new Map<BlockKey, BlockKey>();
    const onStored = ({ key, parent }: { key: BlockKey; parent: BlockKey }): unknown => parents.set(key, parent);
    const [first, second] = chainOf(layout.format, 4, [1, 2, 3, 4, 5, 6, 7, 8]);
    const { tier } = await tierOf({ onStored });
    await tier.put([record(1, first), record(2, second)]);
    const known = new Map([first!, second!].map(({ key, parent }) => [key, parent]));
    assert.deepEqual(parents, known);
    assert.equal(second!.parent, first!.key);
    await closeWorker();
    await openWorker();
    parents.clear();
    await tierOf({ onStored });
    assert.deepEqual(parents, known);
  });

  test('what was used last is evicted last after a restart too; records of two formats are counted apart', async () => {
    const clock = new SimulatedClock();
    const { tier } = await tierOf({ clock });
    for (const i of [1, 2, 3, 4]) await tier.put([record(i)]);
    await tier.get(linkOf(1), slab.allocate(bytes)!);
    tier.touch(linkOf(2));
    await clock.run(clock.nowMs() + 6_000);
    await until('the order is written down', async () => (await worker.call('state', undefined)).fault === undefined);
    const other = 'cd'.repeat(16) as Digest;
    const large: RecordLayout = {
      ...layout,
      format: other,
      spec: evenSpec({ numLayers: 2, blockSize: 4, payloadBytes: 40_000 }),
    };
    const slot = slab.allocate(large.spec.slotBytes)!;
    sealRecord(slotBytes(slab.memory, slot, large.spec.slotBytes), large, linkOf(9));
    await tier.put([{ hash: linkOf(9), format: other, slot, bytes: large.spec.slotBytes }]);
    const counts = { [other]: { blocks: 1, bytes: large.spec.slotBytes }, [format]: { blocks: 4, bytes: 4 * bytes } };
    assert.deepEqual(tier.formats.largest(8), counts);
    await closeWorker();
    await openWorker();
    const { tier: again, keys } = await tierOf({ budgetBytes: 2 * 12_288 + 45_056 });
    assert.deepEqual(keys, new Set([1, 2, 9].map((i) => linkOf(i).key)));
    const into = slab.allocate(large.spec.slotBytes)!;
    assert(await again.get(linkOf(9), into));
    assert.deepEqual(again.entryOf(linkOf(9)), tier.entryOf(linkOf(9)));
    // An evicted record frees its place, so the file does not grow.
    const { size } = statSync(join(path, RECORDS));
    for (let i = 20; i < 60; i++) await again.put([record(i % 50)]);
    assert.equal(statSync(join(path, RECORDS)).size, size);
  });

  test('a slot that changed hands before it was written is left out, not torn', async () => {
    const { tier, keys } = await tierOf();
    const first = record(1);
    sealRecord(slotBytes(slab.memory, first.slot, bytes), layout, linkOf(9));
    await tier.put([first, record(2)]);
    assert.deepEqual(keys, new Set([linkOf(2).key]));
  });

  test('a colliding key is a miss', async () => {
    const { tier } = await tierOf();
    await tier.put([record(1)]);
    const slot = slab.allocate(bytes)!;
    assert.equal(await tier.get({ ...linkOf(1), digest: '0'.repeat(32) as Digest }, slot), false);
    assert(await tier.get(linkOf(1), slot));
  });

  test('a data file that is rubbish is set aside, and the tier starts empty', async () => {
    const { tier } = await tierOf();
    await tier.put([record(1)]);
    await worker.call('close', undefined);
    await closeWorker();
    writeFileSync(join(path, 'data.mdb'), Buffer.alloc(65_536, 0x5a));
    await openWorker();
    const { tier: again, keys } = await tierOf();
    assert.equal(keys.size, 0);
    assert(existsSync(`${path}.damaged`));
    await again.put([record(2)]);
    assert(keys.has(linkOf(2).key));
  });

  test('a disk that is full fails no one: the blocks are not stored, the failure is counted, the oldest make room', async () => {
    const { tier } = await tierOf();
    await tier.put(Array.from({ length: 10 }, (_, i) => record(i)));
    let isFull = true;
    const full: Pick<Thread<DiskThread>, 'call'> = {
      call: (method, argument) =>
        method === 'put' && isFull
          ? Promise.reject(new Error('ENOSPC: no space left on device'))
          : worker.call(method, argument),
    };
    const { tier: failing, keys } = await tierOf({ worker: full });
    await failing.put([record(20)]);
    assert.equal(failing.numFailures, 1);
    assert(!keys.has(linkOf(20).key));
    assert.equal(keys.size, 9);
    isFull = false;
    await failing.put([record(21)]);
    assert(keys.has(linkOf(21).key));
  });

  test('puts under way count against the budget, however many there are at once (P1)', async () => {
    const budgetBytes = 4 * 12_288;
    let most = 0;
    const watching: Pick<Thread<DiskThread>, 'call'> = {
      call: (async (method: keyof DiskThread, argument: never) => {
        if (method === 'put') most = Math.max(most, tier.takenBytes);
        return worker.call(method, argument);
      }) as typeof worker.call,
    };
    const { tier, keys } = await tierOf({ budgetBytes, worker: watching });
    await Promise.all(Array.from({ length: 8 }, (_, i) => tier.put([record(2 * i), record(2 * i + 1)])));
    assert(most <= budgetBytes, `${most} bytes of ${budgetBytes}`);
    assert(tier.takenBytes <= budgetBytes);
    assert(keys.size > 0);
  });

  test('a disk that does not answer is not used until it does, and nobody waits for it for ever', async () => {
    const clock = new SimulatedClock();
    let isHanging = false;
    let go: () => void = () => undefined;
    const hanging: Pick<Thread<DiskThread>, 'call'> = {
      call: async (method, argument) => {
        if (isHanging) await new Promise<void>((resolve) => (go = resolve));
        return worker.call(method, argument);
      },
    };
    const { tier, keys } = await tierOf({
      worker: hanging,
      clock,
      open: async () => {
        if (isHanging) throw new Error('EBUSY: it hangs');
        return worker.call('open', { path, budgetBytes: 1 << 20, diskKey });
      },
    });
    await tier.put([record(1)]);
    isHanging = true;
    const putting = tier.put([record(2)]);
    await until('it is given up', async () => {
      await clock.run(clock.nowMs() + 91_000);
      return tier.fault !== undefined;
    });
    await putting;
    assert(tier.fault);
    assert.equal(keys.size, 0, 'nothing is promised of it');
    isHanging = false;
    go();
    await until('it is open again', async () => {
      await clock.run(clock.nowMs() + 60_000);
      return tier.fault === undefined;
    });
    assert(keys.has(linkOf(1).key));
  });

  test('S1: a kill of the disk process between a stage and its commit loses what was not acknowledged, and nothing else', async () => {
    const { tier, keys } = await tierOf({ budgetBytes: 8 << 20 });
    await tier.put([record(1), record(2)]);
    for (let round = 0; round < 5; round++) {
      const putting = tier.put(Array.from({ length: 20 }, (_, i) => record(100 + 20 * round + i)));
      // eslint-disable-next-line time/speed -- any moment of its writing will do
      await systemClock.sleep(round * 2);
      killDisk('SIGKILL');
      await putting;
      // Slots of what was put are nobody's any more.
      slab = new Slab(64 * slotLength(bytes));
      await attach();
    }
    for (const key of keys) {
      const i = Array.from({ length: 220 }, (_, n) => n).find((n) => linkOf(n).key === key)!;
      const slot = slab.allocate(bytes)!;
      assert(await tier.get(linkOf(i), slot), `block ${i} was acknowledged`);
      assert.equal(slotBytes(slab.memory, slot, bytes).at(-1), i & 255);
      slab.release(slot);
    }
    assert(keys.has(linkOf(1).key) && keys.has(linkOf(2).key));
  });

  /** Ends the disk process; returns its process id. */
  function killDisk(signal: NodeJS.Signals): number {
    const child = Atomics.load(pid, 0);
    assert(child > 0, 'it has been started');
    try {
      process.kill(child, signal);
    } catch {
      // It has just ended.
    }
    return child;
  }

  test('a disk process that dies of what it reads has its environment set aside, and the tier goes on empty', async () => {
    const { tier, keys } = await tierOf();
    await tier.put([record(1)]);
    const dead = killDisk('SIGSEGV');
    await until('it has died', () => !existsSync(`/proc/${dead}/cmdline`) || Atomics.load(pid, 0) !== dead);
    await tier.put([record(2)]);
    await tier.put([record(3)]);
    assert(keys.has(linkOf(3).key));
    const slot = slab.allocate(bytes)!;
    assert(await tier.get(linkOf(3), slot));
  });

  test('an environment that cannot be opened is a fault that is told, and is opened when it can be', async () => {
    writeFileSync(folder.path, 'a file where the folder should be');
    const { tier, keys } = await tierOf();
    assert.match(tier.fault ?? '', /ENOTDIR|EEXIST|ENOENT/);
    await tier.put([record(1)]);
    assert.equal(keys.size, 0);
    rmSync(folder.path);
    await until('it is open', () => tier.fault === undefined);
    await tier.put([record(1)]);
    assert(keys.has(linkOf(1).key));
  });

  test('one that cannot be created for the first records is a fault that is told once, and is created when it can be', async () => {
    const told: string[] = [];
    const note = (...args: unknown[]): void => void told.push(String(args[1]));
    const log = { ...silentLog, info: note, warn: note, error: note };
    mkdirSync(folder.path, { recursive: true });
    const { tier, keys } = await tierOf({ log });
    // A list of keys is made at the start, so that a wrong key is refused there.
    assert.deepEqual([tier.fault, Atomics.load(pid, 0) > 0], [undefined, key !== undefined]);
    rmSync(folder.path, { recursive: true, force: true });
    writeFileSync(folder.path, 'a file where the folder should be');
    await tier.put([record(1)]);
    await until('it is known', () => tier.fault !== undefined);
    await tier.put([record(1)]);
    assert.equal(keys.size, 0);
    rmSync(folder.path);
    await until('it is open', () => tier.fault === undefined);
    await tier.put([record(1)]);
    assert(keys.has(linkOf(1).key));
    assert(Atomics.load(pid, 0) > 0);
    assert.equal(told.filter((message) => message === 'the disk tier is open').length, 1, told.join('; '));
  });
});
