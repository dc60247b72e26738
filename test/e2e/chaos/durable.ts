/**
 * S1: a store is killed in the middle of writing, again and again, and started again: what it called durable is there, what it called forgotten
 * is not, and every record that it serves is the right one, whole. Every other kill is of a store with a disk key, whose list of keys is whole.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { systemClock } from '../../../shared/base/clock.ts';
import type { Random } from '../../../shared/base/random.ts';
import { chainOf, tenantIdOf, type BlockHash, type BlockKey, type Digest } from '../../../shared/kv/block_key.ts';
import { contentHashOf, tenantOf, verifyRecord } from '../../../shared/kv/record.ts';
import { GrpcNetwork } from '../../../shared/net/grpc/grpc_network.ts';
import { ask, askOnce, type CallOptions } from '../../../shared/net/network.ts';
import { tiers } from '../../../shared/protocol/block_events.ts';
import { packDigest, packHashes, unpackNumbers } from '../../../shared/protocol/packing.ts';
import { KeyList, keyListOf } from '../../../services/store/key_list.ts';
import { Cluster, temporaryFolder } from '../../support/cluster.ts';
import { joinFakeHolder, type FakeHolder } from '../../support/fake_holder.ts';
import { offerOf } from '../../support/borrowing.ts';
import { patientCall, until } from '../../support/until.ts';
import { StoreProcess } from './store_process.ts';

const FORMAT = 'ab'.repeat(16) as Digest;
/** Number of samples of older durable blocks that are checked again after each kill. */
const NUM_OLD = 40;
const NUM_OFFERS = 3;
const MAX_WRITING_MS = 250;
const TOKEN = 'durable-test-token';

export interface DurableResult {
  readonly numKills: number;
  /** Blocks that the store called durable before a kill. */
  readonly numDurable: number;
  /** Tenants that the store called forgotten before a kill. */
  readonly numForgotten: number;
  readonly numRead: number;
  /** Called durable and not there. */
  readonly numLost: number;
  /** Descriptions of faults in served records and in lists of keys. */
  readonly faults: readonly string[];
}

/** One data folder of the store, and what the store has said of it. */
interface Disk {
  readonly folder: ReturnType<typeof temporaryFolder>;
  /** Key of its records, and the file with it; undefined for records in clear. */
  readonly sealing: { readonly key: Buffer; readonly file: string } | undefined;
  /** Blocks that were called durable, by the name of their tenant. */
  readonly durable: Map<string, BlockHash[]>;
  /** Those of the last round. */
  readonly latest: BlockHash[];
  /** Blocks of tenants that were called forgotten. */
  readonly forgotten: Map<string, BlockHash[]>;
}

function makeDisk(isSealed: boolean, random: Random): Disk {
  const folder = temporaryFolder();
  const key = Buffer.from(Array.from({ length: 32 }, () => random.below(256)));
  const file = join(folder.path, 'disk-key');
  if (isSealed) writeFileSync(file, key.toString('hex'), { mode: 0o600 });
  return {
    folder,
    sealing: isSealed ? { key, file } : undefined,
    durable: new Map(),
    latest: [],
    forgotten: new Map(),
  };
}

/** Kills stores in turn on a disk with sealed records and on one with records in clear; the last round on each only looks. */
export async function runDurable(numKills: number, random: Random): Promise<DurableResult> {
  const cluster = await Cluster.up('--prefill', '0', '--decode', '1', '--store', '0', '--cluster-token', TOKEN);
  const holder = await joinFakeHolder(cluster.hub, TOKEN, FORMAT);
  holder.lie('nothing but the truth');
  const network = new GrpcNetwork(TOKEN, systemClock);
  const rounds = new Rounds(cluster, holder, network, random);
  const disks = [true, false].map((isSealed) => makeDisk(isSealed, random));
  try {
    for (let round = 0; round < numKills + disks.length; round++) {
      const disk = disks[round % disks.length] as Disk;
      const { store, address } = await rounds.start(disk);
      await rounds.check(disk, address);
      // Two of four stores are killed only after they have answered an offer, however slow the machine is.
      const ended = round < numKills ? await rounds.write(disk, address, round % 4 < 2) : undefined;
      await store.kill();
      await ended?.();
      if (disk.sealing) rounds.checkKeys(disk, disk.sealing.key);
    }
  } finally {
    network.close();
    await holder.close();
    await cluster.close();
    for (const { folder } of disks) folder.remove();
  }
  const { numDurable, numForgotten, numRead, numLost, faults } = rounds;
  return { numKills, numDurable, numForgotten, numRead, numLost, faults };
}

/** Starts stores, checks them and has them write until they are killed; keeps count. */
class Rounds {
  numDurable = 0;
  numForgotten = 0;
  numRead = 0;
  numLost = 0;
  readonly faults: string[] = [];
  #nextBlock = 1;
  #nextTenant = 1;
  readonly #cluster: Cluster;
  readonly #holder: FakeHolder;
  readonly #network: GrpcNetwork;
  readonly #random: Random;

  constructor(cluster: Cluster, holder: FakeHolder, network: GrpcNetwork, random: Random) {
    [this.#cluster, this.#holder, this.#network, this.#random] = [cluster, holder, network, random];
  }

  async start({ folder, sealing }: Disk): Promise<{ readonly store: StoreProcess; readonly address: string }> {
    const writes = this.#random.pick(['through', 'behind'] as const);
    const store = new StoreProcess(this.#cluster, folder.path, TOKEN, [], [
      ...['--dram-bytes', '8MiB', '--disk-bytes', '2GiB', '--disk-writes', writes],
      ...(sealing ? ['--disk-key', sealing.file] : []),
    ]); // prettier-ignore
    await store.ready();
    const address = await until('the store is in the pool, and its disk is open', async () => {
      const node = (await this.#cluster.pool()).find((one) => one.pid === store.pid);
      return node?.tiers['disk']?.fault === null && node.address;
    });
    return { store, address };
  }

  /** Looks whether what was called durable is there and right, and nothing of what was called forgotten. */
  async check({ durable, latest, forgotten }: Disk, address: string): Promise<void> {
    const all = [...durable.values()].flat();
    const older = Array.from({ length: NUM_OLD }, () => all[this.#random.below(all.length || 1)] ?? []).flat();
    const wanted = [...latest.splice(0), ...older];
    const onDisk = await keysOnDisk(this.#network, address, patientCall);
    this.numLost += wanted.filter(({ key }) => !onDisk.has(key)).length;
    for (const hash of wanted) {
      const fault = this.#faultOf(await fetchOne(this.#network, address, hash, patientCall), hash);
      this.numRead++;
      if (fault !== undefined) this.faults.push(`${hash.digest} ${fault}`);
    }
    for (const [tenant, hashes] of forgotten) {
      if (hashes.some(({ key }) => onDisk.has(key))) this.faults.push(`${tenant} was forgotten, and is on disk`);
      const [first] = hashes;
      if (first && (await fetchOne(this.#network, address, first, patientCall)))
        this.faults.push(`${first.digest} of ${tenant} was forgotten, and comes`);
    }
  }

  #faultOf(record: Buffer | undefined, { digest, tenant }: BlockHash): string | undefined {
    if (!record) return 'does not come';
    const fault = verifyRecord(record, { format: FORMAT, digest });
    if (fault !== undefined) return fault;
    if (tenantOf(record) !== tenant) return 'is of another tenant';
    return contentHashOf(record) === this.#holder.contentHash ? undefined : 'holds something else';
  }

  /**
   * Has a store write blocks, and often forget a tenant. Resolves at any moment meanwhile, with a function that waits for its answers.
   * `isAnswered`: only after the first answer.
   */
  async write(disk: Disk, address: string, isAnswered: boolean): Promise<() => Promise<unknown>> {
    const known = [...disk.durable.keys()];
    const lost = this.#random.chance(1, 2) ? known[this.#random.below(known.length || 1)] : undefined;
    const offers = Array.from({ length: NUM_OFFERS }, () => this.#offer(disk, address, lost));
    const all = Promise.all([...offers, ...(lost === undefined ? [] : [this.#forget(disk, address, lost)])]);
    if (isAnswered) await Promise.race(offers);
    // eslint-disable-next-line time/speed -- any moment of its writing will do
    await sleep(this.#random.below(MAX_WRITING_MS));
    return () => all;
  }

  /** Offers blocks that nobody has offered before, of a new tenant or one that has blocks, until they are durable or the store is gone. */
  async #offer(disk: Disk, address: string, lost: string | undefined): Promise<void> {
    const random = this.#random;
    const others = [...disk.durable.keys()].filter((one) => one !== lost);
    const known = random.chance(1, 2) ? others[random.below(others.length || 1)] : undefined;
    const tenant = known ?? `tenant-${this.#nextTenant++}`;
    const count = 1 + random.below(32);
    const tokens = Array.from({ length: count }, () => this.#nextBlock++);
    const hashes = chainOf(FORMAT, 1, tokens).map((hash) => ({ ...hash, tenant: tenantIdOf(tenant) }));
    this.#holder.own(hashes);
    const { recordBytes, member } = this.#holder;
    const offer = offerOf(FORMAT, hashes, { recordBytes, source: member.address });
    for (;;) {
      const reply = await askOnce(this.#network, address, 'offer', offer, patientCall).catch(() => undefined);
      if (!reply) return;
      if (reply.durable !== count) continue;
      disk.durable.set(tenant, [...(disk.durable.get(tenant) ?? []), ...hashes]);
      disk.latest.push(...hashes);
      this.numDurable += count;
      return;
    }
  }

  /** Has the store forget a tenant. Without its answer the tenant's blocks may be there or not. */
  async #forget(disk: Disk, address: string, tenant: string): Promise<void> {
    const hashes = disk.durable.get(tenant) ?? [];
    disk.durable.delete(tenant);
    const reply = await askOnce(this.#network, address, 'forget', { tenant }, patientCall).catch(() => undefined);
    if (reply?.outcomes[0]?.error !== '') return;
    disk.forgotten.set(tenant, hashes);
    this.numForgotten++;
  }

  /** Looks whether the list of keys of a store that was killed is whole, and has a key for each tenant with durable blocks. */
  checkKeys({ folder, durable, forgotten }: Disk, key: Buffer): void {
    const list = KeyList.read(keyListOf(join(folder.path, 'victim', 'lmdb')), key);
    const hasKey = (tenant: string): boolean => list.byTenant(tenantIdOf(tenant)) !== undefined;
    for (const tenant of durable.keys()) if (!hasKey(tenant)) this.faults.push(`the key of ${tenant} is lost`);
    for (const tenant of forgotten.keys()) if (hasKey(tenant)) this.faults.push(`the key of ${tenant} is there`);
  }
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
