/**
 * Records between two processes of this machine, each transport: bytes a second, and CPU-seconds a gigabyte of both ends; beside a plain
 * socket whose reader checks XXH64 too, and beside copying and checking in memory.
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
import { xxh64 } from '../../shared/kv/hash.ts';
import { sealRecord, verifyRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { Slab, slotBytes, slotLength } from '../../shared/kv/slab.ts';
import type { ArrivalSlot } from '../../shared/net/fetch_attempt.ts';
import { openFetch, type FetchLine } from '../../shared/net/fetch_client.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { Lanes } from '../../shared/net/lanes.ts';
import { windowOf } from '../../shared/net/mover/lane_frames.ts';
import { startMover } from '../../shared/net/mover/mover.ts';
import { projectPath } from '../support/project.ts';
import { percentile, withReference, type Figure } from './figures.ts';
import { layoutOf, recordsOf, type TransferEnds } from './transfer_records.ts';

export interface TransferBenchOptions {
  readonly recordKiBs: readonly number[];
  readonly numStreams: readonly number[];
  /** What the holder has. */
  readonly totalBytes: number;
  /** Of each figure. */
  readonly measureMs: number;
  readonly onFigure: (figure: Figure) => void;
}

const NUM_MISSES = 300;
const PLACES = 32;
const MAX_STREAMS = 8;
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
    const inMemory = copyAndCheck(layout, bytes, hashes[0]!);
    push({ name: `${size}/copy and XXH64 in memory`, value: (inMemory * 1_000) / GB, unit: 'GB/s' });
    await withHolder(recordKiB, hashes.length, async (ends, cpuMs) => {
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
        const memory = Array.from({ length: count }, () => new SharedArrayBuffer(PLACES * bytes));
        const plain = await measured(() => plainSockets(ends.port, bytes, memory));
        push({ name: `${name}/plain socket, XXH64 checked`, value: (plain.bytesPerMs * 1_000) / GB, unit: 'GB/s' });
        push({ name: `${name}/plain socket, XXH64 checked/cpu`, value: plain.cpuSecondsPerGb, unit: 's/GB' });
        for (const transport of ['grpc', 'bulk'] as const) {
          const getter = await Getter.open(transport, ends.address, layout, bytes);
          const cost = await measured(() => getter.get(hashes, count));
          const speed = (cost.bytesPerMs * 1_000) / GB;
          push(
            withReference(`${name}/${transport}`, speed, 'GB/s', 'the plain socket', (plain.bytesPerMs * 1_000) / GB),
          );
          push({ name: `${name}/${transport}/cpu`, value: cost.cpuSecondsPerGb, unit: 's/GB' });
          if (count === 1) push({ name: `${name}/${transport}/a miss, p50`, value: await getter.missMs(), unit: 'ms' });
          await getter.close();
        }
      }
    });
  }
  return figures;
}

/** Bytes a millisecond, on one core. */
function copyAndCheck(layout: RecordLayout, bytes: number, hash: BlockHash): number {
  const [from, to] = [new Uint8Array(bytes).fill(7), new Uint8Array(bytes)];
  sealRecord(from, layout, hash);
  const startMs = performance.now();
  let total = 0;
  for (; performance.now() - startMs < 1_000; total += bytes) {
    to.set(from);
    verifyRecord(to);
  }
  return total / (performance.now() - startMs);
}

async function withHolder(
  recordKiB: number,
  count: number,
  use: (ends: TransferEnds, cpuMs: () => Promise<number>) => Promise<void>,
): Promise<void> {
  const child = fork(projectPath('dist/test/bench/transfer_holder.js'), [String(recordKiB), String(count)]);
  try {
    const [ends] = (await once(child, 'message')) as [TransferEnds];
    await use(ends, async () => {
      child.send('cpu');
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
        ...{ port, host: '127.0.0.1' },
        onread: {
          buffer: () => record.subarray(numHere),
          callback: (numRead) => {
            numHere += numRead;
            total += numRead;
            if (numHere === bytes) {
              xxh64(record);
              place = (place + 1) % PLACES;
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
  readonly mover: ReturnType<typeof startMover>;
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

  static async open(transport: 'grpc' | 'bulk', address: string, layout: RecordLayout, bytes: number): Promise<Getter> {
    const slab = new Slab(MAX_STREAMS * windowOf(bytes) * slotLength(bytes));
    const mover = startMover(workerThreads, (error) => {
      throw error;
    });
    await mover.call('attach', slab.memory);
    const network = new GrpcNetwork('', systemClock);
    const stopped = new AbortController();
    const { signal } = stopped;
    const lanes =
      transport === 'bulk' ? new Lanes({ network, mover, clock: systemClock, log: silentLog, signal }) : undefined;
    const line = { network, mover, lanes, clock: systemClock, random: new Random(1) };
    return new Getter(line, address, layout, bytes, slab, stopped);
  }

  #open(hashes: readonly BlockHash[]): ReturnType<typeof openFetch> {
    return openFetch(this.#line, this.#address, {
      context: { requestId: 'r', tenant: '', priority: 0, timeoutMs: 60_000, traceId: '', router: '', placement: 0 },
      ...{ format: this.#layout.format, hashes, signal: this.#stopped.signal, recordBytes: this.#bytes },
      ...{ waitMs: 0, timeoutMs: 60_000, patienceMs: undefined },
    });
  }

  /** So many streams, each a share of the run. @returns bytes. */
  async get(hashes: readonly BlockHash[], numStreams: number): Promise<number> {
    const share = Math.ceil(hashes.length / numStreams);
    const totals = await Promise.all(
      Array.from({ length: numStreams }, (_, i) => this.#read(hashes.slice(i * share, (i + 1) * share))),
    );
    return totals.reduce((sum, one) => sum + one, 0);
  }

  async #read(hashes: readonly BlockHash[]): Promise<number> {
    const giveBack = (slot: number): void => {
      this.#slab.release(slot);
    };
    const take = async (): Promise<ArrivalSlot> => {
      for (;;) {
        const slot = this.#slab.allocate(this.#bytes);
        if (slot !== undefined) return { slot, bytes: slotBytes(this.#slab.memory, slot, this.#bytes) };
        await systemClock.turn();
      }
    };
    let numHere = 0;
    for await (const { slot, fault } of this.#open(hashes).records({ take, giveBack })) {
      if (fault !== undefined) throw new Error(fault);
      numHere++;
      giveBack(slot);
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
          take: () => Promise.reject(new Error('nothing comes')),
          giveBack: () => undefined,
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
    await this.#line.mover.close();
  }
}
