/**
 * Records between two processes of this machine, each transport: bytes a second, and CPU-seconds a gigabyte of both ends, of fetches and
 * of offers that a store has taken into DRAM; against a plain socket whose reader checks XXH64 too, against copying and checking in memory,
 * and against Mooncake's store.
 */
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { systemClock } from '../../shared/base/clock.ts';
import { silentLog } from '../../shared/base/log.ts';
import { Random } from '../../shared/base/random.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import type { BlockHash } from '../../shared/kv/block_key.ts';
import { xxh64 } from '../../shared/base/xxh64.ts';
import { sealRecord, verifyRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';
import { openFetch, type FetchLine } from '../../shared/net/fetch/fetch.ts';
import { nothingMoved } from '../../shared/net/fetch/transfer.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { DataChannels } from '../../shared/net/data_channels.ts';
import { fetchAheadOf } from '../../shared/net/fetch/transfer_bounds.ts';
import { startTransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import { askOnce } from '../../shared/net/network.ts';
import { offerOf } from '../support/borrowing.ts';
import { projectPath } from '../support/project.ts';
import { percentile, withReference, type Figure } from './figures.ts';
import { measureMooncake } from './mooncake_peer.ts';
import { layoutOf, recordsOf, type TransferEnds } from './transfer_records.ts';

export interface TransferBenchOptions {
  readonly recordKiBs: readonly number[];
  readonly numStreams: readonly number[];
  /** Bytes of records that the holder has. */
  readonly totalBytes: number;
  /** Milliseconds that each figure is measured. */
  readonly measureMs: number;
  /** Mooncake's store next to it. */
  readonly peer?: { readonly print: (line: string) => void } | undefined;
  readonly onFigure: (figure: Figure) => void;
}

const NUM_MISSES = 300;
/** Bytes of records stored in the peer. */
const PEER_BYTES = 64 << 20;
const NUM_SLOTS = 32;
const MAX_STREAMS = 8;
/** Hashes per offer, as instances send them. */
const OFFERED_TOGETHER = 1_024;
const GB = 1e9;

interface Cost {
  readonly bytesPerMs: number;
  readonly cpuSecondsPerGb: number;
}

export async function benchTransfer({
  recordKiBs,
  numStreams,
  totalBytes,
  measureMs,
  peer,
  onFigure,
}: TransferBenchOptions): Promise<Figure[]> {
  const figures: Figure[] = [];
  const push = (figure: Figure): void => {
    figures.push(figure);
    onFigure(figure);
  };
  for (const recordKiB of recordKiBs) {
    const layout = layoutOf(recordKiB);
    const { bytes, hashes } = recordsOf(layout, Math.floor(totalBytes / recordKiB / 1_024));
    const size = `transfer/${recordKiB} KiB`;
    const speeds = new Map<string, number>();
    const inMemory = copyAndCheck(layout, hashes, fetchAheadOf(bytes));
    push({ name: `${size}/copy and XXH64 in memory`, value: (inMemory * 1_000) / GB, unit: 'GB/s' });
    const inCache = copyAndCheck(layout, hashes.slice(0, 1), 1);
    push({ name: `${size}/copy and XXH64 of one record, in cache`, value: (inCache * 1_000) / GB, unit: 'GB/s' });
    await withHolder('transfer_holder', [recordKiB, hashes.length], async (ends, cpuMs) => {
      const measured = async (run: () => Promise<number>): Promise<Cost> => {
        await run();
        const [startMs, startCpu, far] = [performance.now(), process.cpuUsage(), await cpuMs()];
        let total = 0;
        while (performance.now() - startMs < measureMs) total += await run();
        const ms = performance.now() - startMs;
        const { user, system } = process.cpuUsage(startCpu);
        const cpu = (user + system) / 1e6 + ((await cpuMs()) - far) / 1_000;
        return { bytesPerMs: total / ms, cpuSecondsPerGb: (cpu * GB) / total };
      };
      for (const count of numStreams) {
        const name = `${size}/${count} stream${count > 1 ? 's' : ''}`;
        const memory = Array.from({ length: count }, () => new SharedArrayBuffer(NUM_SLOTS * bytes));
        const plain = await measured(() => plainSockets(ends.port, bytes, memory));
        push({ name: `${name}/plain socket, XXH64 checked`, value: (plain.bytesPerMs * 1_000) / GB, unit: 'GB/s' });
        push({ name: `${name}/plain socket, XXH64 checked/cpu`, value: plain.cpuSecondsPerGb, unit: 's/GB' });
        for (const transport of ['grpc', 'bulk', 'auto'] as const) {
          const getter = await Getter.open(transport, ends.address, layout, bytes);
          const cost = await measured(() => getter.get(hashes, count));
          const speed = (cost.bytesPerMs * 1_000) / GB;
          push(
            transport === 'auto'
              ? withReference(`${name}/same host`, speed, 'GB/s', 'copy and XXH64', (inMemory * 1_000) / GB)
              : withReference(
                  `${name}/${transport}`,
                  speed,
                  'GB/s',
                  'the plain socket',
                  (plain.bytesPerMs * 1_000) / GB,
                ),
          );
          push({ name: `${name}/${labelOf(transport)}/cpu`, value: cost.cpuSecondsPerGb, unit: 's/GB' });
          speeds.set(`${transport} ${count}`, speed);
          if (count === 1)
            push({
              name: `${name}/${labelOf(transport)}/a fetch that misses, p50`,
              value: await getter.missMs(),
              unit: 'ms',
            });
          await getter.close();
        }
      }
    });
    for (const transport of ['grpc', 'bulk', 'auto'] as const) {
      const { bytesPerMs, cpuSecondsPerGb } = await put(transport, recordKiB, hashes.length, measureMs);
      speeds.set(`put ${transport}`, (bytesPerMs * 1_000) / GB);
      push({ name: `${size}/put/${labelOf(transport)}`, value: (bytesPerMs * 1_000) / GB, unit: 'GB/s' });
      push({ name: `${size}/put/${labelOf(transport)}/cpu`, value: cpuSecondsPerGb, unit: 's/GB' });
    }
    if (!peer) continue;
    const numPeer = Math.min(hashes.length, Math.floor(PEER_BYTES / bytes));
    const theirs = measureMooncake({ recordBytes: bytes, count: numPeer, measureMs }, peer.print);
    for (const [what, own] of [
      ['put', 'put bulk'],
      ['get', `bulk ${numStreams[0]}`],
      ['getInto', `bulk ${numStreams[0]}`],
      ['batchGetInto', `bulk ${numStreams[0]}`],
    ] as const) {
      const { perSecond, cpu } = theirs[what];
      const ours = speeds.get(own) ?? NaN;
      push(withReference(`${size}/${own} against Mooncake`, ours, 'GB/s', `Mooncake's ${what}`, perSecond / GB));
      push({ name: `${size}/Mooncake's ${what}/cpu`, value: cpu * GB, unit: 's/GB' });
    }
  }
  return figures;
}

/** Offers of all records to a store that has none of them, until it has taken them into DRAM. */
async function put(
  transport: 'grpc' | 'bulk' | 'auto',
  recordKiB: number,
  count: number,
  measureMs: number,
): Promise<Cost> {
  const layout = layoutOf(recordKiB);
  const { bytes, hashes } = recordsOf(layout, count);
  let cost: Cost | undefined;
  await withHolder('transfer_holder', [recordKiB, count], async (holder, holderCpu) => {
    await withHolder('transfer_store', [recordKiB, count, transport], async (store, storeCpu) => {
      const network = new GrpcNetwork('', systemClock);
      const offers = Array.from({ length: Math.ceil(count / OFFERED_TOGETHER) }, (_, i) =>
        offerOf(layout.format, hashes.slice(i * OFFERED_TOGETHER, (i + 1) * OFFERED_TOGETHER), {
          recordBytes: bytes,
          source: holder.address,
        }),
      );
      const offerAll = async (): Promise<number> => {
        await storeCpu('forget');
        const startMs = performance.now();
        const options = { signal: new AbortController().signal, timeoutMs: 60_000 };
        let numStored = 0;
        for (const offer of offers)
          numStored += (await askOnce(network, store.address, 'offer', offer, options)).stored;
        assert.equal(numStored, count);
        return performance.now() - startMs;
      };
      await offerAll();
      const before = (await holderCpu()) + (await storeCpu());
      let [ms, numTimes] = [0, 0];
      for (; ms < measureMs; numTimes++) ms += await offerAll();
      const cpuMs = (await holderCpu()) + (await storeCpu()) - before;
      const total = numTimes * count * bytes;
      cost = { bytesPerMs: total / ms, cpuSecondsPerGb: (cpuMs / 1_000 / total) * GB };
      network.close();
    });
  });
  assert(cost);
  return cost;
}

function labelOf(transport: 'grpc' | 'bulk' | 'auto'): string {
  return transport === 'auto' ? 'same host' : transport;
}

/**
 * Copies these records in turns into as many buffers as a stream has slots and verifies each copy. @returns bytes per millisecond on
 * one core
 */
function copyAndCheck(layout: RecordLayout, hashes: readonly BlockHash[], numSlots: number): number {
  const bytes = layout.spec.slotBytes;
  const from = hashes.map((hash) => {
    const record = new Uint8Array(bytes).fill(7);
    sealRecord(record, layout, hash);
    return record;
  });
  const places = Array.from({ length: numSlots }, () => new Uint8Array(bytes).fill(1));
  const startMs = performance.now();
  let total = 0;
  for (let i = 0; performance.now() - startMs < 1_000; i++, total += bytes) {
    const [record, place] = [from[i % from.length], places[i % numSlots]];
    assert(record && place);
    place.set(record);
    assert.equal(verifyRecord(place), undefined);
  }
  return total / (performance.now() - startMs);
}

async function withHolder(
  program: string,
  args: readonly (string | number)[],
  use: (ends: TransferEnds, cpuMs: (print?: string) => Promise<number>) => Promise<void>,
): Promise<void> {
  const child = fork(projectPath(`dist/test/bench/${program}.js`), args.map(String));
  try {
    const [ends] = (await once(child, 'message')) as [TransferEnds];
    await use(ends, async (print = 'cpu') => {
      child.send(print);
      const [{ cpuMs }] = (await once(child, 'message')) as [{ cpuMs: number }];
      return cpuMs;
    });
  } finally {
    child.kill('SIGKILL');
  }
}

/** Every connection brings all records, into as many places as a stream of ours has records on their way. @returns bytes. */
async function plainSockets(port: number, bytes: number, memory: readonly SharedArrayBuffer[]): Promise<number> {
  const read = (places: SharedArrayBuffer): Promise<number> =>
    new Promise((resolve, reject) => {
      let place = 0;
      let record = new Uint8Array(places, 0, bytes);
      let [numHere, total] = [0, 0];
      const socket = connect({
        port,
        host: '127.0.0.1',
        onread: {
          buffer: () => record.subarray(numHere),
          callback: (numRead) => {
            numHere += numRead;
            total += numRead;
            if (numHere === bytes) {
              xxh64(record);
              place = (place + 1) % NUM_SLOTS;
              record = new Uint8Array(places, place * bytes, bytes);
              numHere = 0;
            }
            return true;
          },
        },
      });
      socket.on('error', reject);
      socket.on('close', () => {
        resolve(total);
      });
      socket.write('x');
    });
  const totals = await Promise.all(memory.map(read));
  return totals.reduce((sum, one) => sum + one, 0);
}

interface OwnLine extends FetchLine {
  readonly transferThread: ReturnType<typeof startTransferThread>;
  readonly network: GrpcNetwork;
}

/** Fetches as an instance does, into a window of slots. */
class Getter {
  readonly #line: OwnLine;
  readonly #address: string;
  readonly #layout: RecordLayout;
  readonly #bytes: number;
  readonly #slab: Slab;
  readonly #stopped: AbortController;

  private constructor(
    line: OwnLine,
    address: string,
    layout: RecordLayout,
    bytes: number,
    slab: Slab,
    stopped: AbortController,
  ) {
    this.#line = line;
    this.#address = address;
    this.#layout = layout;
    this.#bytes = bytes;
    this.#slab = slab;
    this.#stopped = stopped;
  }

  static async open(
    transport: 'grpc' | 'bulk' | 'auto',
    address: string,
    layout: RecordLayout,
    bytes: number,
  ): Promise<Getter> {
    const slab = new Slab(MAX_STREAMS * fetchAheadOf(bytes) * slotLength(bytes));
    const transferThread = startTransferThread(workerThreads, (error) => {
      throw error;
    });
    await transferThread.call('attach', { memory: slab.memory, isShared: true });
    const network = new GrpcNetwork('', systemClock);
    const stopped = new AbortController();
    const { signal } = stopped;
    const channels =
      transport === 'grpc'
        ? undefined
        : new DataChannels({
            network,
            transferThread,
            isShared: transport === 'auto',
            clock: systemClock,
            log: silentLog,
            signal,
          });
    const line = {
      network,
      transferThread,
      channels,
      moved: nothingMoved(),
      clock: systemClock,
      random: new Random(1),
    };
    return new Getter(line, address, layout, bytes, slab, stopped);
  }

  #open(hashes: readonly BlockHash[]): ReturnType<typeof openFetch> {
    return openFetch(this.#line, this.#address, {
      context: {
        requestId: 'r',
        tenant: '',
        priority: 0,
        timeoutMs: 60_000,
        traceId: '',
        router: '',
        placement: 0,
        expectedTokens: 0,
      },
      format: this.#layout.format,
      hashes,
      signal: this.#stopped.signal,
      slotBytes: this.#bytes,
      waitMs: 0,
      timeoutMs: 60_000,
      patienceMs: undefined,
    });
  }

  /** Fetches the run over `numStreams` streams, an equal share each. @returns bytes */
  async get(hashes: readonly BlockHash[], numStreams: number): Promise<number> {
    const share = Math.ceil(hashes.length / numStreams);
    const totals = await Promise.all(
      Array.from({ length: numStreams }, (_, i) => this.#read(hashes.slice(i * share, (i + 1) * share))),
    );
    return totals.reduce((sum, one) => sum + one, 0);
  }

  async #read(hashes: readonly BlockHash[]): Promise<number> {
    const release = (slot: number): void => {
      this.#slab.release(slot);
    };
    const acquire = (): number | Promise<number> =>
      this.#slab.allocate(this.#bytes) ?? systemClock.turn().then(acquire);
    const bytes = (slot: number): Uint8Array => slotBytes(this.#slab.memory, slot, this.#bytes);
    let numHere = 0;
    for await (const incoming of this.#open(hashes).records({ acquire, bytes, release })) {
      for (const { slot, fault } of incoming) {
        if (fault !== undefined) throw new Error(fault);
        numHere++;
        release(slot);
      }
    }
    if (numHere < hashes.length) throw new Error(`${numHere} of ${hashes.length} records came`);
    return numHere * this.#bytes;
  }

  /** Until it is known that a block is not there. */
  async missMs(): Promise<number> {
    const { hashes } = recordsOf({ ...this.#layout, format: 'ab'.repeat(16) as RecordLayout['format'] }, 1);
    const times: number[] = [];
    for (let i = 0; i < NUM_MISSES; i++) {
      const startMs = performance.now();
      const records = this.#open(hashes.map((hash) => ({ ...hash, key: (hash.key + 1n) as BlockHash['key'] }))).records(
        {
          acquire: () => Promise.reject(new Error('nothing comes')),
          bytes: () => new Uint8Array(),
          release: () => undefined,
        },
      );
      assert((await records.next()).done, 'nothing comes');
      times.push(performance.now() - startMs);
    }
    return percentile(times, 0.5);
  }

  async close(): Promise<void> {
    this.#stopped.abort();
    this.#line.network.close();
    await this.#line.transferThread.close();
  }
}
