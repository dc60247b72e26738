/**
 * The far end of the put benchmark: what a store does with an offer, without a disk. Started by transfer.ts with the size of a record, how
 * many there are, and whether data channels are used; says where it listens, and what CPU it took. Told to, it forgets what it has.
 */
import { systemClock } from '../../shared/base/clock.ts';
import { newId } from '../../shared/base/identity.ts';
import { silentLog } from '../../shared/base/log.ts';
import { Random } from '../../shared/base/random.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { slotLength } from '../../shared/kv/slab.ts';
import { Announcer } from '../../shared/node/announcer.ts';
import { nothingMoved } from '../../shared/net/fetch/transfer.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { startTransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import { answeringOnce } from '../../shared/net/network.ts';
import { channelsOf } from '../../shared/node/member_channels.ts';
import type { DiskThread } from '../../services/store/disk_thread.ts';
import { OfferIntake } from '../../services/store/offer_intake.ts';
import { StoreTiers } from '../../services/store/tiers.ts';
import type { Thread } from '../../shared/base/threads.ts';
import { layoutOf, recordsOf, type TransferEnds } from './transfer_records.ts';

const [recordKiB = '', numRecords = '', transport = ''] = process.argv.slice(2);
const layout = layoutOf(Number(recordKiB));
const { bytes, hashes } = recordsOf(layout, Number(numRecords));
const transferThread = startTransferThread(workerThreads, (error) => {
  throw error;
});
const { signal } = new AbortController();
const [network, log, clock] = [new GrpcNetwork('', systemClock), silentLog, systemClock];
const announcer = new Announcer('s', () => undefined, clock, signal);
const noDisk = { call: () => Promise.resolve() } as unknown as Thread<DiskThread>;
const tiers = new StoreTiers({
  worker: noDisk,
  readers: [],
  transferThread,
  isShared: true,
  dramBytes: 2 * hashes.length * slotLength(bytes),
  diskBytes: 0,
  announcer,
  clock,
  signal,
  log,
  records: () => '',
  openDisk: () => Promise.reject(new Error('no disk')),
});
await tiers.attached;
const place = { transport: transport as 'auto' | 'bulk' | 'grpc', bind: '', bulk_port: 0 };
const dataChannels = channelsOf(place, transferThread, { network, clock, log, newId }, signal);
const line = {
  network,
  clock,
  random: new Random(1),
  transferThread,
  channels: dataChannels?.channels,
  moved: nothingMoved(),
};
const intake = new OfferIntake(tiers, line, log, 'behind');
const { address } = await network.listen('127.0.0.1:0', {
  offer: answeringOnce<'offer'>((request, { signal: left }) => intake.accept(request, left)),
});
process.on('message', (message) => {
  if (message === 'forget') for (const { key } of hashes) tiers.dram.remove(key);
  const { user, system } = process.cpuUsage();
  process.send?.({ cpuMs: (user + system) / 1_000 });
});
process.send?.({ address, port: 0 } satisfies TransferEnds);
