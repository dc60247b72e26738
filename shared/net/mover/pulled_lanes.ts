/**
 * An asker's end of lanes, in its mover thread: records are asked for, come into slots of the slab, and are verified as soon as they are
 * there (K2), frame by frame, while they are in the processor's cache.
 */
import type { Clock } from '../../base/clock.ts';
import { messageOf } from '../../base/failure.ts';
import type { Digest } from '../../kv/block_key.ts';
import type { FrameSpec } from '../../kv/kv_spec.ts';
import { Arrivals, type ArrivedRecords } from './arrivals.ts';
import type { BorrowedMemory, HostMemory, OwnMemory } from './host_memory.ts';
import { asksOf, MEMORY_STREAM, placeOf, READ, type RecordHead } from './lane_frames.ts';
import { LaneReader, type Behind } from './lane_reader.ts';
import { MemoryReads, type CopyHelper } from './memory_reads.ts';
import { arrivalOf, type SlottedRecord } from './record_copy.ts';
import type { ByteSocket, SocketListener, Sockets } from './sockets.ts';

const CONNECT_TIMEOUT_MS = 2_000;
/** Streams that nobody wants any more, and whose records may come all the same, that are remembered; an older one's record costs the lane. */
const MAX_UNWANTED = 1_024;

/** Records that are to come, or one frame of each, and what they must be: in columns, since threads tell each other of many. */
export interface WantedRecords {
  /** As lane_frames.ts numbers what is asked for. */
  readonly indices: readonly number[];
  readonly slots: readonly number[];
  readonly digests: readonly Digest[];
  /** That come, of each. */
  readonly bytes: number;
  /** The frame that each of them is, with the headers that their holder sent; absent: whole records. */
  readonly frame?: { readonly spec: FrameSpec; readonly headers: readonly Uint8Array[] };
}

export type PulledEvent =
  | { readonly kind: 'opened'; readonly lane: number }
  | { readonly kind: 'arrived'; readonly arrivals: readonly ArrivedRecords[] }
  /** None of the stream's slots is written any more. */
  | { readonly kind: 'dropped'; readonly lane: number; readonly stream: number }
  /** It is gone, and writes no slot: it could not be opened, or its connection ended. */
  | { readonly kind: 'lost'; readonly lane: number; readonly reason: string };

interface Expected extends SlottedRecord {
  readonly stream: number;
  readonly index: number;
}

interface Pulled {
  socket: ByteSocket | undefined;
  readonly expected: Map<number, Expected>;
  /** Streams whose records are not wanted any more, and may come all the same. */
  readonly unwanted: Set<number>;
  isClosed: boolean;
  /** The stream that was dropped while one of its records was coming. */
  droppedStream: number | undefined;
  arriving: Expected | undefined;
  memory: BorrowedMemory | undefined;
  /** Records of it that were read and are not told of. */
  read: { readonly stream: number; readonly index: number }[];
}

/** Records of one codec have one size: another is none of them. */
function isOfSize({ bytes }: Pick<RecordHead, 'bytes'>, expected: Expected): boolean {
  return bytes === expected.bytes;
}

/** Nothing that comes of it means anything any more. */
function cut(pulled: Pulled): void {
  pulled.isClosed = true;
  pulled.socket?.destroy();
}

export class PulledLanes {
  readonly #sockets: Sockets;
  readonly #hostMemory: HostMemory;
  readonly #own: () => OwnMemory;
  readonly #emit: (event: PulledEvent) => void;
  readonly #lanes = new Map<number, Pulled>();
  readonly #arrivals: Arrivals;
  readonly #reads: MemoryReads;
  readonly #clock: Pick<Clock, 'turn'>;

  constructor(
    sockets: Sockets,
    hostMemory: HostMemory,
    clock: Pick<Clock, 'turn' | 'sleep'>,
    own: () => OwnMemory,
    emit: (event: PulledEvent) => void,
    helper?: CopyHelper,
  ) {
    this.#sockets = sockets;
    this.#hostMemory = hostMemory;
    this.#clock = clock;
    this.#own = own;
    this.#emit = emit;
    this.#arrivals = new Arrivals(clock, (arrivals) => {
      emit({ kind: 'arrived', arrivals });
    });
    this.#reads = new MemoryReads(clock, own, helper);
  }

  /** `memory`: how the holder's is found; empty: there is none. */
  async connect(lane: number, host: string, port: number, token: string, memory: string): Promise<void> {
    const pulled: Pulled = {
      ...{ socket: undefined, expected: new Map(), unwanted: new Set(), droppedStream: undefined, arriving: undefined },
      ...{ isClosed: false, memory: undefined, read: [] },
    };
    this.#lanes.set(lane, pulled);
    try {
      pulled.socket = await this.#sockets.connect(host, port, CONNECT_TIMEOUT_MS, this.#listener(lane, pulled));
      if (pulled.isClosed) pulled.socket.destroy();
      else {
        pulled.socket.write([Buffer.from(token)]);
        pulled.memory = memory === '' ? undefined : this.#hostMemory.open(memory);
        if (pulled.memory) {
          this.#reads.open(lane, memory);
          pulled.socket.write([asksOf(MEMORY_STREAM, [0])]);
        }
      }
    } catch (error) {
      this.#lanes.delete(lane);
      pulled.socket?.destroy();
      this.#emit({ kind: 'lost', lane, reason: messageOf(error) });
    }
  }

  ask(lane: number, stream: number, format: Digest, { indices, slots, digests, bytes, frame }: WantedRecords): void {
    const pulled = this.#lanes.get(lane);
    // It was lost meanwhile, and its user is told.
    if (!pulled?.socket) return;
    for (const [i, index] of indices.entries()) {
      const [slot, digest, header] = [slots[i], digests[i], frame?.headers[i]];
      if (slot === undefined || digest === undefined) continue;
      const part = frame && header && { spec: frame.spec, header };
      pulled.expected.set(placeOf(stream, index), { stream, index, slot, bytes, digest, format, frame: part });
    }
    pulled.socket.write([asksOf(stream, indices)]);
  }

  /** What has been asked for of the stream and has not come is not wanted. */
  drop(lane: number, stream: number): void {
    const pulled = this.#lanes.get(lane);
    if (pulled) {
      for (const [place, expected] of pulled.expected) {
        if (expected.stream === stream) pulled.expected.delete(place);
      }
      pulled.unwanted.add(stream);
      const [oldest] = pulled.unwanted;
      if (pulled.unwanted.size > MAX_UNWANTED && oldest !== undefined) pulled.unwanted.delete(oldest);
    }
    const copied = this.#reads.giveUp(lane, stream);
    const dropped = (): void => {
      if (pulled?.arriving?.stream === stream) pulled.droppedStream = stream;
      else this.#emit({ kind: 'dropped', lane, stream });
    };
    if (copied) void copied.then(dropped);
    else dropped();
  }

  close(lane: number): void {
    const pulled = this.#lanes.get(lane);
    if (pulled) cut(pulled);
  }

  #listener(lane: number, pulled: Pulled): SocketListener {
    let isWelcome = false;
    const reader = new LaneReader({
      isClosed: () => pulled.isClosed,
      isShared: () => pulled.memory !== undefined,
      onHead: (head) => {
        if (isWelcome || head?.bytes !== 0) return this.#behind(lane, pulled, head);
        isWelcome = true;
        this.#emit({ kind: 'opened', lane });
        return undefined;
      },
      onRecord: (fault) => {
        this.#arrived(lane, pulled, fault);
      },
    });
    return {
      into: () => reader.into(),
      onBytes: (count) => {
        reader.took(count);
      },
      onClosed: (reason) => {
        pulled.isClosed = true;
        const copied = this.#reads.giveUp(lane);
        if (pulled.memory) this.#reads.close(lane);
        pulled.memory?.close();
        this.#lanes.delete(lane);
        const lost = (): void => {
          // What came before comes before.
          this.#arrivals.tell();
          this.#emit({ kind: 'lost', lane, reason });
        };
        if (copied) void copied.then(lost);
        else lost();
      },
    };
  }

  #behind(lane: number, pulled: Pulled, head: RecordHead | undefined): Behind | undefined {
    if (head?.place !== undefined) {
      this.#fromMemory(lane, pulled, head, head.place);
      return undefined;
    }
    const place = head && placeOf(head.stream, head.index);
    const expected = place === undefined ? undefined : pulled.expected.get(place);
    if (head && expected && isOfSize(head, expected) && place !== undefined) {
      pulled.expected.delete(place);
      pulled.arriving = expected;
      return arrivalOf(this.#own(), { ...expected, bytes: head.bytes });
    }
    if (head && !expected && pulled.unwanted.has(head.stream) && head.bytes > 0) return { unwantedBytes: head.bytes };
    // Nobody knows where the next record begins.
    cut(pulled);
    return undefined;
  }

  /** It lies in the memory that both share: nothing of it comes behind its head. */
  #fromMemory(lane: number, pulled: Pulled, { stream, index, bytes }: RecordHead, place: number): void {
    const wanted = placeOf(stream, index);
    const expected = pulled.expected.get(wanted);
    const isWanted = expected !== undefined && isOfSize({ bytes }, expected);
    if (!pulled.memory || (!isWanted && !pulled.unwanted.has(stream))) {
      cut(pulled);
      return;
    }
    if (!isWanted) {
      this.#read(pulled, stream, index);
      return;
    }
    pulled.expected.delete(wanted);
    this.#reads.add({
      ...expected,
      ...{ lane, place, bytes, memory: pulled.memory },
      done: (how, fault) => {
        this.#read(pulled, stream, index);
        if (how === 'given up' || pulled.unwanted.has(stream)) return;
        // A turn copies many, and tells of them.
        this.#arrivals.add({ lane, stream, isShared: true }, index, fault, true);
      },
    });
  }

  /** Its holder is told soon. */
  #read(pulled: Pulled, stream: number, index: number): void {
    pulled.read.push({ stream, index });
    if (pulled.read.length === 1)
      void this.#clock.turn().then(() => {
        this.#tellRead(pulled);
      });
  }

  #tellRead(pulled: Pulled): void {
    const asks = pulled.read.map(({ stream, index }) => asksOf(stream + READ, [index]));
    pulled.read = [];
    if (!pulled.isClosed) pulled.socket?.write([Buffer.concat(asks)]);
  }

  #arrived(lane: number, pulled: Pulled, fault: string | undefined): void {
    const { arriving } = pulled;
    if (!arriving) return;
    const { stream, index, frame } = arriving;
    pulled.arriving = undefined;
    if (pulled.droppedStream === stream) {
      pulled.droppedStream = undefined;
      this.#emit({ kind: 'dropped', lane, stream });
      return;
    }
    this.#arrivals.add(
      { lane, stream, isShared: false },
      index,
      fault,
      frame !== undefined || pulled.expected.size === 0,
    );
  }
}
