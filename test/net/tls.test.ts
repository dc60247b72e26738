/** Calls and data channels with certificates: who has none of the cluster's authority, or one for another host, comes in nowhere. Budget: 20 s. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, type AddressInfo } from 'node:net';
import { createServer } from 'node:tls';
import { afterAll, afterEach, beforeAll, test } from 'vitest';
import { AsyncQueue } from '../../shared/base/async_queue.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { Current } from '../../shared/base/current.ts';
import { newId } from '../../shared/base/identity.ts';
import { silentLog } from '../../shared/base/log.ts';
import { Random } from '../../shared/base/random.ts';
import type { Threads } from '../../shared/base/threads.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { RecordCache } from '../../shared/kv/record_cache.ts';
import { sealRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import { openFetch } from '../../shared/net/fetch/fetch.ts';
import { nothingMoved } from '../../shared/net/fetch/transfer.ts';
import { createFetchHandlers } from '../../shared/net/fetch/fetch_server.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { ChannelHost } from '../../shared/net/channel_host.ts';
import { DataChannels } from '../../shared/net/data_channels.ts';
import { systemMemory } from '../../shared/net/transfer_thread/host_memory.ts';
import { headOf, CHANNEL_TOKEN_BYTES } from '../../shared/net/transfer_thread/channel_messages.ts';
import { askOnce } from '../../shared/net/network.ts';
import type { ByteSocket } from '../../shared/net/transfer_thread/sockets.ts';
import { tcpSockets } from '../../shared/net/transfer_thread/tcp_sockets.ts';
import { start } from '../../shared/net/transfer_thread/transfer_methods.ts';
import { startTransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import type { TlsTexts } from '../../shared/net/tls_texts.ts';
import { BusKind, type BusMessage, type ChannelReply } from '../../shared/protocol/messages.ts';
import { Authority, shownTo } from '../support/certificates.ts';
import { inlineTransferThread } from '../support/inline_transfer_thread.ts';
import { cacheSource } from '../support/borrowing.ts';
import { slotsOf } from '../support/slab_slots.ts';
import { evenSpec } from '../support/kv.ts';
import { PATIENCE_MS, patientCall } from '../support/until.ts';

const layout: RecordLayout = {
  format: 'cd'.repeat(16) as Digest,
  numericsClass: 'none',
  spec: evenSpec({ numLayers: 4, blockSize: 4, payloadBytes: 300_000 }),
};
const BYTES = layout.spec.slotBytes;
const NUM_BLOCKS = 40;
const hashes = chainOf(
  layout.format,
  4,
  Array.from({ length: 4 * NUM_BLOCKS }, (_, i) => i),
);

let authority: Authority;
let foreign: Authority;
let own: TlsTexts;
beforeAll(() => {
  authority = new Authority();
  foreign = new Authority();
  own = authority.issue('own');
});
afterAll(() => {
  authority.remove();
  foreign.remove();
});

let closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing) await close();
  closing = [];
});

/** A holder of all blocks. @returns its address; `ports`: of its data channels, as they are given. */
async function holder(
  tls: TlsTexts,
  channelTls: TlsTexts | 'none' = tls,
  liesOf?: ChannelReply,
): Promise<{ address: string; ports: number[] }> {
  const stopped = new AbortController();
  const network = new GrpcNetwork('', systemClock, tls);
  const slab = new Slab(NUM_BLOCKS * slotLength(BYTES));
  const transferThread = inlineTransferThread(
    slab,
    systemMemory,
    undefined,
    channelTls === 'none' ? undefined : channelTls,
  );
  const wanted = new WantedKeys();
  const cache = new RecordCache(slab, { onEvict: () => undefined, isWanted: (key) => wanted.has(key) });
  for (const hash of hashes) {
    const slot = cache.acquireSlot(BYTES)!;
    slotBytes(slab.memory, slot, BYTES).fill(Number(hash.key & 0xffn));
    sealRecord(slotBytes(slab.memory, slot, BYTES), layout, hash);
    cache.put({ hash, slot, bytes: BYTES, format: layout.format });
  }
  const channels = new ChannelHost({
    transferThread,
    newId,
    clock: systemClock,
    log: silentLog,
    signal: stopped.signal,
    isShared: false,
    host: '127.0.0.1',
    port: 0,
  });
  const ports: number[] = [];
  const open = channels.open.bind(channels);
  channels.open = async (request) => {
    const reply = await open(request);
    ports.push(reply.port);
    return liesOf ? { ...liesOf, channel: reply.channel } : reply;
  };
  const { fetch, openChannel } = createFetchHandlers(() => cacheSource(cache, wanted), { maxStreams: 64, channels });
  const listener = await network.listen('127.0.0.1:0', { fetch, openChannel });
  closing.push(async () => {
    stopped.abort();
    await listener.close(100);
    network.close();
  });
  return { address: listener.address, ports };
}

/** All of them, whole and in order. @returns bytes by way. */
async function fetchAll(address: string, tls: TlsTexts | undefined, channelTls = tls): Promise<Record<string, number>> {
  const stopped = new AbortController();
  const { signal } = stopped;
  const network = new GrpcNetwork('', systemClock, tls);
  closing.push(() => {
    stopped.abort();
    network.close();
  });
  const slab = new Slab(64 * slotLength(BYTES));
  const transferThread = inlineTransferThread(slab, systemMemory, undefined, channelTls);
  const channels = new DataChannels({
    network,
    transferThread,
    isShared: false,
    clock: systemClock,
    log: silentLog,
    signal,
  });
  await channels.to(address, true);
  const moved = nothingMoved();
  const stream = openFetch(
    { network, transferThread, channels, moved, clock: systemClock, random: new Random(1) },
    address,
    {
      context: {
        requestId: 'r',
        tenant: '',
        priority: 0,
        timeoutMs: PATIENCE_MS,
        traceId: '',
        router: '',
        placement: 0,
        expectedTokens: 0,
      },
      format: layout.format,
      hashes,
      signal,
      slotBytes: BYTES,
      patienceMs: undefined,
      waitMs: 0,
      timeoutMs: PATIENCE_MS,
    },
  );
  const slots = slotsOf(slab, BYTES, signal);
  let next = 0;
  for await (const incoming of stream.records(slots)) {
    for (const { index, slot, fault } of incoming) {
      assert.equal(fault, undefined);
      assert.equal(index, next);
      assert.equal(slotBytes(slab.memory, slot, BYTES).at(-1), Number(hashes[next++]!.key & 0xffn));
      slots.release(slot);
    }
  }
  assert.equal(next, NUM_BLOCKS);
  return moved;
}

test('records come over an encrypted data channel, opened by an encrypted call', async () => {
  const { address } = await holder(own);
  assert.deepEqual(await fetchAll(address, authority.issue('other')), {
    memory: 0,
    socket: NUM_BLOCKS * BYTES,
    call: 0,
  });
});

test('who shows no certificate, or one of another authority, is refused', async () => {
  const { address } = await holder(own);
  for (const tls of [undefined, foreign.issue('foreign'), { ...foreign.issue('half'), ca: own.ca }])
    await assert.rejects(fetchAll(address, tls), /No connection established|dropped|closed|lost/i);
});

test('a holder that shows a certificate for another host, or of another authority, is not spoken to', async () => {
  for (const tls of [
    authority.issue('elsewhere', 'DNS:elsewhere.example'),
    { ...foreign.issue('pretender'), ca: own.ca },
  ]) {
    const { address } = await holder(tls);
    await assert.rejects(fetchAll(address, own), /Hostname\/IP does not match|unable to|certificate|self.signed/i);
  }
});

test('where only data channels cannot be had so, blocks come over the encrypted calls', async () => {
  const open = await holder(own, 'none');
  assert.deepEqual(await fetchAll(open.address, own), { memory: 0, socket: 0, call: NUM_BLOCKS * BYTES });
  const strict = await holder(own);
  assert.deepEqual(await fetchAll(strict.address, own, { ...foreign.issue('channel'), ca: own.ca }), {
    memory: 0,
    socket: 0,
    call: NUM_BLOCKS * BYTES,
  });
});

test('a holder whose data channel says rubbish: it is closed, and blocks come over calls', async () => {
  const server = createServer({ ...own, requestCert: true }, (socket) => {
    socket.on('error', () => undefined);
    let numHeard = 0;
    socket.on('data', (data: Buffer) => {
      numHeard += data.length;
      // In one write: what follows the bad head is deciphered with it.
      const bad = Buffer.alloc(4_000, 0x55);
      if (numHeard === CHANNEL_TOKEN_BYTES) socket.write(headOf({ stream: 0, index: 0, bytes: 0 }));
      else if (numHeard > CHANNEL_TOKEN_BYTES) socket.write(bad);
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  closing.push(() => server.close());
  const { port } = server.address() as AddressInfo;
  const { address } = await holder(own, own, { channel: 5, port, token: 't'.repeat(CHANNEL_TOKEN_BYTES), memory: '' });
  assert.equal((await fetchAll(address, own))['call'], NUM_BLOCKS * BYTES);
});

test('what an unauthenticated process says on the port of a data channel is heard by nobody', async () => {
  const { address, ports } = await holder(own);
  await fetchAll(address, own);
  const socket = connect(ports[0]!, '127.0.0.1');
  socket.on('error', () => undefined);
  socket.write('t'.repeat(4_096));
  await once(socket, 'close');
  await fetchAll(address, own);
});

test('renewed certificates hold for data channels that begin then, on the side that serves and on the side that asks', async () => {
  const [old, next] = [authority.issue('old'), foreign.issue('next')];
  const methods = start(old, () => undefined);
  const port = await methods.listen({ host: '127.0.0.1', port: 0 });
  const shown = (tls: TlsTexts): Promise<string | undefined> => shownTo(tls, '127.0.0.1', port);
  assert.deepEqual([await shown(old), await shown(next)], ['CN=old', undefined]);
  methods.renew(next);
  assert.deepEqual([await shown(old), await shown(next)], [undefined, 'CN=next']);

  const current = new Current(old);
  const sockets = tcpSockets(current);
  const listener = { into: () => Buffer.alloc(1), onBytes: () => undefined, onClosed: () => undefined };
  const ask = (): Promise<ByteSocket> => sockets.connect('127.0.0.1', port, PATIENCE_MS, listener);
  await assert.rejects(ask());
  current.replace(next);
  (await ask()).destroy();
});

test('the transfer thread is told of renewed certificates until it is closed', async () => {
  const told: unknown[] = [];
  const thread = { call: assert.fail, notify: (...all: unknown[]) => told.push(all), close: () => Promise.resolve() };
  const spawned: unknown[] = [];
  const threads = {
    spawn: (_module: unknown, data: unknown) => {
      spawned.push(data);
      return thread;
    },
  } as unknown as Threads;
  const current = new Current(own);
  const transferThread = startTransferThread(threads, assert.fail, current);
  const next = authority.issue('next');
  current.replace(next);
  await transferThread.close();
  current.replace(own);
  assert.deepEqual([spawned, told], [[own], [['renew', next]]]);
});

test('calls that are open when certificates are renewed go on; later ones use what is new', async () => {
  const [served, asking] = [new Current(authority.issue('old')), new Current(authority.issue('client'))];
  const server = new GrpcNetwork('', systemClock, served);
  async function* echo(requests: AsyncIterable<BusMessage>): AsyncGenerator<BusMessage> {
    yield* requests;
  }
  const listener = await server.listen('127.0.0.1:0', { connect: echo });
  const network = new GrpcNetwork('', systemClock, asking);
  closing.push(async () => {
    network.close();
    server.close();
    await listener.close(0);
  });
  const sent = new AsyncQueue<BusMessage>();
  const open = network.open(listener.address, 'connect', sent, patientCall);
  const message = { kind: BusKind.PUBLISH, subject: 's', payload: Buffer.from('p'), id: 1 };
  sent.push(message);
  await open.next();
  served.replace(foreign.issue('next'));
  sent.push(message);
  assert.equal((await open.next()).done, false, 'the open call goes on');
  const check = (): Promise<unknown> => askOnce(network, listener.address, 'check', { service: '' }, patientCall);
  network.forget(listener.address);
  await assert.rejects(check(), /is not signed by an authority in the --tls-ca of this process/);
  asking.replace(foreign.issue('client'));
  network.forget(listener.address);
  await check();
});
