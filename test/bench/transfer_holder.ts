/**
 * The far end of the transfer benchmark: a holder of records in host memory, over calls and over data channels, and a plain socket that writes
 * the same bytes. Started by transfer.ts with the size of a record and how many there are; says where it listens, and what CPU it took.
 */
import { createServer } from 'node:net';
import { systemClock } from '../../shared/base/clock.ts';
import { newId } from '../../shared/base/identity.ts';
import { silentLog } from '../../shared/base/log.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { RecordCache } from '../../shared/kv/record_cache.ts';
import { sealRecord } from '../../shared/kv/record.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import { createFetchHandlers } from '../../shared/net/fetch/fetch_server.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { ChannelHost } from '../../shared/net/channel_host.ts';
import { startTransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import { cacheSource } from '../support/borrowing.ts';
import { layoutOf, recordsOf, type TransferEnds } from './transfer_records.ts';

const [recordKiB = '', numRecords = ''] = process.argv.slice(2);
const layout = layoutOf(Number(recordKiB));
const { bytes, hashes } = recordsOf(layout, Number(numRecords));
const wanted = new WantedKeys();
const slab = new Slab(2 * hashes.length * slotLength(bytes));
const transferThread = startTransferThread(workerThreads, (error) => {
  throw error;
});
await transferThread.call('attach', { memory: slab.memory, isShared: true });
const cache = new RecordCache(slab, { onEvict: () => undefined, isWanted: (key) => wanted.has(key) });
for (const hash of hashes) {
  const slot = cache.acquireSlot(bytes) ?? 0;
  const record = slotBytes(slab.memory, slot, bytes);
  new Uint32Array(record.buffer, record.byteOffset, bytes / 4).fill(0x9e3779b1);
  sealRecord(record, layout, hash);
  cache.put({ hash, slot, bytes, format: layout.format });
}
const network = new GrpcNetwork('', systemClock);
const { signal } = new AbortController();
const channels = new ChannelHost({
  transferThread,
  isShared: true,
  host: '127.0.0.1',
  port: 0,
  newId,
  clock: systemClock,
  log: silentLog,
  signal,
});
const { fetch, snapshot, openChannel } = createFetchHandlers(() => cacheSource(cache, wanted), {
  maxStreams: 64,
  channels,
});
const { address } = await network.listen('127.0.0.1:0', { fetch, snapshot, openChannel });
/** Every connection gets all records, one after the other, in one write each. */
const plain = createServer({ noDelay: true }, (socket) => {
  socket.on('error', () => undefined);
  const next = (i: number): void => {
    if (i === hashes.length || socket.destroyed) socket.end();
    else
      socket.write(Buffer.from(slab.memory.buffer, i * slotLength(bytes), bytes), () => {
        next(i + 1);
      });
  };
  socket.once('data', () => {
    next(0);
  });
}).listen(0, '127.0.0.1', () => {
  const bound = plain.address();
  const port = typeof bound === 'object' && bound ? bound.port : 0;
  process.send?.({ address, port } satisfies TransferEnds);
});
process.on('message', () => {
  const { user, system } = process.cpuUsage();
  process.send?.({ cpuMs: (user + system) / 1_000 });
});
