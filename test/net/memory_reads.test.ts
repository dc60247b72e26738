/**
 * Records out of memory that both ends of a data channel share, by this thread and by one that helps. The helper here is a promise; the real one is
 * in the end-to-end suites and in the transfer benchmark's test.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { sealRecord, verifyRecord, type RecordLayout } from '../../shared/kv/record.ts';
import type { BorrowedMemory, OwnMemory } from '../../shared/net/transfer_thread/host_memory.ts';
import { MemoryReads, type CopyHelper } from '../../shared/net/transfer_thread/memory_reads.ts';
import { copyRecord, type CopyJob } from '../../shared/net/transfer_thread/record_copy.ts';
import { evenSpec } from '../support/kv.ts';

const layout: RecordLayout = {
  format: 'cd'.repeat(16) as Digest,
  numericsClass: 'none',
  spec: evenSpec({ numLayers: 4, blockSize: 4, payloadBytes: 400_000 }),
};
const BYTES = layout.spec.slotBytes;
const NUM_RECORDS = 24;
const hashes = chainOf(
  layout.format,
  4,
  Array.from({ length: 4 * NUM_RECORDS }, (_, i) => i),
);
const held = new Uint8Array(NUM_RECORDS * BYTES);
for (const [i, hash] of hashes.entries()) sealRecord(held.subarray(i * BYTES, (i + 1) * BYTES).fill(i), layout, hash);
const theirs: BorrowedMemory = {
  at: (offset, length) => (offset + length <= held.length ? held.subarray(offset, offset + length) : undefined),
  close: () => undefined,
};

/** Copies when it is told to. */
class FakeHelper implements CopyHelper {
  readonly waiting: (() => void)[] = [];
  readonly opened: string[] = [];
  numCopied = 0;
  most = 0;
  readonly #own: OwnMemory;

  constructor(own: OwnMemory) {
    this.#own = own;
  }

  open(channel: number, name: string): Promise<boolean> {
    this.opened.push(`${channel} ${name}`);
    return Promise.resolve(name !== 'unseen');
  }

  close(channel: number): Promise<void> {
    this.opened.push(`${channel} closed`);
    return Promise.resolve();
  }

  copy(jobs: readonly CopyJob[]): Promise<readonly (string | undefined)[]> {
    return new Promise((resolve) => {
      this.waiting.push(() => {
        this.numCopied += jobs.length;
        resolve(jobs.map((job) => copyRecord(this.#own, theirs, job)));
      });
      this.most = Math.max(this.most, this.waiting.length);
    });
  }

  copyOne(): void {
    this.waiting.shift()?.();
  }
}

function begin(name = 'seen') {
  const slab = new Uint8Array(NUM_RECORDS * BYTES);
  const own: OwnMemory = {
    name: '',
    bytes: (slot, length) => slab.subarray(slot, slot + length),
    offsetOf: () => undefined,
  };
  const helper = new FakeHelper(own);
  const reads = new MemoryReads(systemClock, () => own, helper);
  const notified: string[] = [];
  reads.open(1, name);
  const add = (i: number, stream = 1, offset = i * BYTES): void => {
    reads.add({
      channel: 1,
      stream,
      offset,
      slot: i * BYTES,
      bytes: BYTES,
      memory: theirs,
      frame: undefined,
      format: layout.format,
      digest: hashes[i]!.digest,
      done: (how, fault) => notified.push(`${i} ${how}${fault === undefined ? '' : `: ${fault}`}`),
    });
  };
  return { slab, helper, reads, notified, add };
}

const all = Array.from({ length: NUM_RECORDS }, (_, i) => i);

describe('records in memory that both ends share', () => {
  test('each is copied once and judged, some of them by the helper, which has a bounded number of tasks (P1)', async () => {
    const { slab, helper, notified, add } = begin();
    await systemClock.turn();
    for (const i of all) add(i);
    while (notified.length < NUM_RECORDS) {
      helper.copyOne();
      await systemClock.turn();
    }
    assert.deepEqual(notified.toSorted(), all.map((i) => `${i} received`).toSorted());
    assert(helper.numCopied > 4 && helper.numCopied < NUM_RECORDS, `${helper.numCopied} by the helper`);
    assert.equal(helper.most, 3);
    for (const [i, hash] of hashes.entries()) {
      const record = slab.subarray(i * BYTES, (i + 1) * BYTES);
      assert.equal(verifyRecord(record, { format: layout.format, digest: hash.digest }), undefined);
      assert.equal(record.at(-1), i);
    }
  });

  test('where the helper does not see the memory, one thread copies all of it', async () => {
    const { helper, notified, add } = begin('unseen');
    await systemClock.turn();
    for (const i of all) add(i);
    while (notified.length < NUM_RECORDS) await systemClock.turn();
    assert.equal(helper.numCopied, 0);
  });

  test('K2: what is another block, and what lies where nothing is, is said to be', async () => {
    const { notified, add } = begin('unseen');
    add(0, 1, BYTES);
    add(1, 1, held.length);
    while (notified.length < 2) await systemClock.turn();
    assert.deepEqual(notified, [
      '0 received: its chain digest is another: the keys collide',
      '1 received: the holder named an address outside its memory',
    ]);
  });

  test('what is given up is not copied, and its slots are written until the helper says that they are not (R2)', async () => {
    const { slab, helper, reads, notified, add } = begin();
    await systemClock.turn();
    for (const i of all) add(i, 1 + (i % 2));
    await systemClock.turn();
    await systemClock.turn();
    const numHere = notified.length;
    assert(helper.waiting.length > 0 && numHere < NUM_RECORDS);
    const copied = reads.giveUp(1, 2);
    assert(copied, 'the helper has some of them');
    const numGiven = notified.length - numHere;
    assert(numGiven > 0);
    assert(notified.slice(numHere).every((one) => one.endsWith('given up')));
    let isOver = false;
    void copied.then(() => (isOver = true));
    await systemClock.turn();
    assert.equal(isOver, false);
    while (helper.waiting.length > 0 || notified.length < NUM_RECORDS) {
      helper.copyOne();
      await systemClock.turn();
    }
    await copied;
    // Records whose copy was given up were not written.
    for (const one of notified.filter((line) => line.endsWith('given up'))) {
      const i = Number(one.split(' ')[0]);
      assert.equal(i % 2, 1, 'of the other stream nothing is given up');
      assert.equal(slab[i * BYTES], 0);
    }
    assert.equal(reads.giveUp(1), undefined, 'nothing is written');
    reads.close(1);
    assert.deepEqual(helper.opened, ['1 seen', '1 closed']);
  });
});
