/**
 * An asker's end of data channels, in its transfer thread: records are asked for, come into slots of the slab, and are verified as soon as they are
 * there (K2), frame by frame, while they are in the processor's cache.
 */
import type { Clock } from '../../base/clock.ts';
import { messageOf } from '../../base/failure.ts';
import type { Digest } from '../../kv/block_key.ts';
import type { FrameSpec } from '../../kv/kv_spec.ts';
import { ReceivedRecords, type ReceivedBatch } from './received_records.ts';
import type { BorrowedMemory, HostMemory, OwnMemory } from './host_memory.ts';
import { asksOf, MEMORY_STREAM, placeOf, READ, type RecordHead } from './channel_messages.ts';
import { ChannelReader, type Behind } from './channel_reader.ts';
import { MemoryReads, type CopyHelper } from './memory_reads.ts';
import { receivedFrom, type SlotRecord } from './record_copy.ts';
import type { ByteSocket, SocketListener, Sockets } from './sockets.ts';

const CONNECT_TIMEOUT_MS = 2_000;
/** Streams that nobody wants any more, and whose records may come all the same, that are remembered; an older one's record costs the data channel. */
const MAX_UNWANTED = 1_024;

/** Records that are to come, or one frame of each, and what they must be: in columns, since threads tell each other of many. */
export interface WantedRecords {
  /** Record or frame numbers, as frameIdOf in channel_messages.ts makes them. */
  readonly indices: readonly number[];
  readonly slots: readonly number[];
  readonly digests: readonly Digest[];
  /** Exact bytes of each record or frame; a head with another size closes the data channel. */
  readonly bytes: number;
  /** The frame that each of them is, with the headers that their holder sent; absent: whole records. */
  readonly frame?: { readonly spec: FrameSpec; readonly headers: readonly Uint8Array[] };
}

/** Events of a {@link ChannelClient}, for the control thread. */
export type PulledEvent =
  | { readonly kind: 'opened'; readonly channel: number }
  | { readonly kind: 'arrived'; readonly incoming: readonly ReceivedBatch[] }
  /** None of the stream's slots is written any more. */
  | { readonly kind: 'dropped'; readonly channel: number; readonly stream: number }
  /** It is gone, and writes no slot: it could not be opened, or its connection ended. */
  | { readonly kind: 'lost'; readonly channel: number; readonly reason: string };

interface Expected extends SlotRecord {
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

/** Closes the data channel; bytes that still arrive are ignored. */
function cut(pulled: Pulled): void {
  pulled.isClosed = true;
  pulled.socket?.destroy();
}

/** Asker's end of data channels: connects, asks for records, verifies them on arrival and reports them. */
export class ChannelClient {
  readonly #sockets: Sockets;
  readonly #hostMemory: HostMemory;
  readonly #own: () => OwnMemory;
  readonly #emit: (event: PulledEvent) => void;
  readonly #channels = new Map<number, Pulled>();
  readonly #incoming: ReceivedRecords;
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
    this.#incoming = new ReceivedRecords(clock, (incoming) => {
      emit({ kind: 'arrived', incoming });
    });
    this.#reads = new MemoryReads(clock, own, helper);
  }

  /** `memory`: how the holder's is found; empty: there is none. */
  async connect(channel: number, host: string, port: number, token: string, memory: string): Promise<void> {
    const pulled: Pulled = {
      ...{ socket: undefined, expected: new Map(), unwanted: new Set(), droppedStream: undefined, arriving: undefined },
      ...{ isClosed: false, memory: undefined, read: [] },
    };
    this.#channels.set(channel, pulled);
    try {
      pulled.socket = await this.#sockets.connect(host, port, CONNECT_TIMEOUT_MS, this.#listener(channel, pulled));
      if (pulled.isClosed) pulled.socket.destroy();
      else {
        pulled.socket.write([Buffer.from(token)]);
        pulled.memory = memory === '' ? undefined : this.#hostMemory.open(memory);
        if (pulled.memory) {
          this.#reads.open(channel, memory);
          pulled.socket.write([asksOf(MEMORY_STREAM, [0])]);
        }
      }
    } catch (error) {
      this.#channels.delete(channel);
      pulled.socket?.destroy();
      this.#emit({ kind: 'lost', channel, reason: messageOf(error) });
    }
  }

  ask(channel: number, stream: number, format: Digest, { indices, slots, digests, bytes, frame }: WantedRecords): void {
    const pulled = this.#channels.get(channel);
    // The data channel was lost meanwhile, which a 'lost' event reports.
    if (!pulled?.socket) return;
    for (const [i, index] of indices.entries()) {
      const [slot, digest, header] = [slots[i], digests[i], frame?.headers[i]];
      if (slot === undefined || digest === undefined) continue;
      const part = frame && header && { spec: frame.spec, header };
      pulled.expected.set(placeOf(stream, index), { stream, index, slot, bytes, digest, format, frame: part });
    }
    pulled.socket.write([asksOf(stream, indices)]);
  }

  /** Cancels what the stream has asked for and not received. Emits 'dropped' once none of the stream's slots is written any more. */
  drop(channel: number, stream: number): void {
    const pulled = this.#channels.get(channel);
    if (pulled) {
      for (const [place, expected] of pulled.expected) {
        if (expected.stream === stream) pulled.expected.delete(place);
      }
      pulled.unwanted.add(stream);
      const [oldest] = pulled.unwanted;
      if (pulled.unwanted.size > MAX_UNWANTED && oldest !== undefined) pulled.unwanted.delete(oldest);
    }
    const copied = this.#reads.giveUp(channel, stream);
    const dropped = (): void => {
      if (pulled?.arriving?.stream === stream) pulled.droppedStream = stream;
      else this.#emit({ kind: 'dropped', channel, stream });
    };
    if (copied) void copied.then(dropped);
    else dropped();
  }

  close(channel: number): void {
    const pulled = this.#channels.get(channel);
    if (pulled) cut(pulled);
  }

  #listener(channel: number, pulled: Pulled): SocketListener {
    let isWelcome = false;
    const reader = new ChannelReader({
      isClosed: () => pulled.isClosed,
      isShared: () => pulled.memory !== undefined,
      onHead: (head) => {
        if (isWelcome || head?.bytes !== 0) return this.#behind(channel, pulled, head);
        isWelcome = true;
        this.#emit({ kind: 'opened', channel });
        return undefined;
      },
      onRecord: (fault) => {
        this.#arrived(channel, pulled, fault);
      },
    });
    return {
      into: () => reader.into(),
      onBytes: (count) => {
        reader.took(count);
      },
      onClosed: (reason) => {
        pulled.isClosed = true;
        const copied = this.#reads.giveUp(channel);
        if (pulled.memory) this.#reads.close(channel);
        pulled.memory?.close();
        this.#channels.delete(channel);
        const lost = (): void => {
          // Records that arrived before the loss are reported before it.
          this.#incoming.notify();
          this.#emit({ kind: 'lost', channel, reason });
        };
        if (copied) void copied.then(lost);
        else lost();
      },
    };
  }

  #behind(channel: number, pulled: Pulled, head: RecordHead | undefined): Behind | undefined {
    if (head?.place !== undefined) {
      this.#fromMemory(channel, pulled, head, head.place);
      return undefined;
    }
    const place = head && placeOf(head.stream, head.index);
    const expected = place === undefined ? undefined : pulled.expected.get(place);
    if (head && expected && isOfSize(head, expected) && place !== undefined) {
      pulled.expected.delete(place);
      pulled.arriving = expected;
      return receivedFrom(this.#own(), { ...expected, bytes: head.bytes });
    }
    if (head && !expected && pulled.unwanted.has(head.stream) && head.bytes > 0) return { unwantedBytes: head.bytes };
    // Nobody knows where the next record begins.
    cut(pulled);
    return undefined;
  }

  /** Queues the copy of a record that lies in shared memory; no bytes follow its head on the socket. */
  #fromMemory(channel: number, pulled: Pulled, { stream, index, bytes }: RecordHead, place: number): void {
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
      ...{ channel, place, bytes, memory: pulled.memory },
      done: (how, fault) => {
        this.#read(pulled, stream, index);
        if (how === 'given up' || pulled.unwanted.has(stream)) return;
        // A turn copies many, and tells of them.
        this.#incoming.add({ channel, stream, isShared: true }, index, fault, true);
      },
    });
  }

  /** Reports to the holder, with others of this event-loop turn, that a record has been read and its memory may be released. */
  #read(pulled: Pulled, stream: number, index: number): void {
    pulled.read.push({ stream, index });
    if (pulled.read.length === 1)
      void this.#clock.turn().then(() => {
        this.#notifyRead(pulled);
      });
  }

  #notifyRead(pulled: Pulled): void {
    const asks = pulled.read.map(({ stream, index }) => asksOf(stream + READ, [index]));
    pulled.read = [];
    if (!pulled.isClosed) pulled.socket?.write([Buffer.concat(asks)]);
  }

  #arrived(channel: number, pulled: Pulled, fault: string | undefined): void {
    const { arriving } = pulled;
    if (!arriving) return;
    const { stream, index, frame } = arriving;
    pulled.arriving = undefined;
    if (pulled.droppedStream === stream) {
      pulled.droppedStream = undefined;
      this.#emit({ kind: 'dropped', channel, stream });
      return;
    }
    this.#incoming.add(
      { channel, stream, isShared: false },
      index,
      fault,
      frame !== undefined || pulled.expected.size === 0,
    );
  }
}
