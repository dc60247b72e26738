/**
 * S1: a store is killed in the middle of writing, again and again, and started again: what it called durable is there, and every record
 * that it serves is the right one, whole.
 */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { systemClock } from '../../../shared/base/clock.ts';
import type { Random } from '../../../shared/base/random.ts';
import { chainOf, type BlockHash, type BlockKey, type Digest } from '../../../shared/kv/block_key.ts';
import { contentHashOf, verifyRecord } from '../../../shared/kv/record.ts';
import { GrpcNetwork } from '../../../shared/net/grpc/grpc_network.ts';
import { ask, askOnce, type CallOptions } from '../../../shared/net/network.ts';
import { tiers } from '../../../shared/protocol/block_events.ts';
import { packDigest, packHashes, unpackNumbers } from '../../../shared/protocol/packing.ts';
import { Cluster, temporaryFolder } from '../../support/cluster.ts';
import { joinFakeHolder } from '../../support/fake_holder.ts';
import { offerOf } from '../../support/borrowing.ts';
import { patientCall, until } from '../../support/until.ts';
import { StoreProcess } from './store_process.ts';

const FORMAT = 'ab'.repeat(16) as Digest;
/** Number of samples of older durable blocks that are checked again after each kill. */
const NUM_OLD = 40;
const NUM_OFFERS = 3;
const MAX_WRITING_MS = 250;

export interface DurableResult {
  readonly numKills: number;
  /** Blocks that the store called durable before a kill. */
  readonly numDurable: number;
  readonly numRead: number;
  /** Called durable and not there. */
  readonly numLost: number;
  /** Descriptions of faults in served records. */
  readonly faults: readonly string[];
}

export async function runDurable(numKills: number, random: Random): Promise<DurableResult> {
  const token = 'durable-test-token';
  const folder = temporaryFolder();
  const cluster = await Cluster.up('--prefill', '0', '--decode', '1', '--store', '0', '--cluster-token', token);
  const holder = await joinFakeHolder(cluster.hub, token, FORMAT);
  holder.lie('nothing but the truth');
  const network = new GrpcNetwork(token, systemClock);
  const log: string[] = [];
  const options = (): CallOptions => patientCall;
  const durable: BlockHash[] = [];
  const faults: string[] = [];
  let [numRead, numLost] = [0, 0];
  let nextBlock = 1;
  try {
    for (let kill = 0; kill <= numKills; kill++) {
      const store = new StoreProcess(cluster, folder.path, token, log, [
        ...[
          '--dram-bytes',
          '8MiB',
          '--disk-bytes',
          '2GiB',
          '--disk-writes',
          random.pick(['through', 'behind'] as const),
        ],
      ]);
      await store.ready();
      const address = await until('the store is in the pool, and its disk is open', async () => {
        const node = (await cluster.pool()).find((one) => one.pid === store.pid);
        return node?.tiers['disk']?.fault === null && node.address;
      });
      const older = Array.from({ length: NUM_OLD }, () => durable[random.below(durable.length || 1)] ?? []).flat();
      const wanted = [...durable.slice(-NUM_OFFERS * 32), ...older];
      const onDisk = await keysOnDisk(network, address, options());
      numLost += wanted.filter(({ key }) => !onDisk.has(key)).length;
      for (const hash of wanted) {
        const record = await fetchOne(network, address, hash, options());
        numRead++;
        if (!record) faults.push(`${hash.digest} does not come`);
        else {
          const fault = verifyRecord(record, { format: FORMAT, digest: hash.digest });
          if (fault !== undefined) faults.push(`${hash.digest}: ${fault}`);
          else if (contentHashOf(record) !== holder.contentHash) faults.push(`${hash.digest} holds something else`);
        }
      }
      if (kill === numKills) {
        await store.kill();
        break;
      }
      // Blocks that nobody has offered before; each offer is on its way when the store is killed, or has been answered.
      const offers = Array.from({ length: NUM_OFFERS }, async () => {
        const count = 1 + random.below(32);
        const hashes = chainOf(
          FORMAT,
          1,
          Array.from({ length: count }, () => nextBlock++),
        );
        for (;;) {
          const offer = offerOf(FORMAT, hashes, { recordBytes: holder.recordBytes, source: holder.member.address });
          const reply = await askOnce(network, address, 'offer', offer, options()).catch(() => undefined);
          if (!reply) return;
          if (reply.durable === count) {
            durable.push(...hashes);
            return;
          }
        }
      });
      // Every other store is killed only after it has answered an offer, however slow the machine is.
      if (kill % 2 === 0) await Promise.race(offers);
      // eslint-disable-next-line time/speed -- any moment of its writing will do
      await sleep(random.below(MAX_WRITING_MS));
      await store.kill();
      await Promise.all(offers);
    }
  } finally {
    network.close();
    await holder.close();
    await cluster.close();
    folder.remove();
  }
  return { numKills, numDurable: durable.length, numRead, numLost, faults };
}

async function fetchOne(
  network: GrpcNetwork,
  address: string,
  hash: BlockHash,
  options: CallOptions,
): Promise<Buffer | undefined> {
  const slices: Buffer[] = [];
  const request = {
    context: null,
    format: packDigest(FORMAT),
    hashes: packHashes([hash]),
    waitMs: 0,
    channel: 0,
    stream: 0,
    inFrames: false,
    frames: 0,
  };
  for await (const { index, data } of ask(network, address, 'fetch', request, options)) {
    assert.equal(index, 0);
    slices.push(data);
  }
  return slices.length > 0 ? Buffer.concat(slices) : undefined;
}

/** Returns the keys that a store lists for its disk. */
async function keysOnDisk(network: GrpcNetwork, address: string, options: CallOptions): Promise<Set<BlockKey>> {
  const keys = new Set<BlockKey>();
  for await (const { tier, keys: page } of ask(network, address, 'snapshot', {}, options)) {
    if (tiers[tier] === 'disk') for (const key of unpackNumbers(page)) keys.add(key as BlockKey);
  }
  return keys;
}
