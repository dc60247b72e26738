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
import { asksOf, MEMORY_STREAM, itemKeyOf, READ, type RecordHead } from './channel_messages.ts';
import { ChannelReader, type AfterHead } from './channel_reader.ts';
import { MemoryReads, type CopyHelper } from './memory_reads.ts';
import { receivedFrom, type SlotRecord } from './record_copy.ts';
import type { ByteSocket, SocketListener, Sockets } from './sockets.ts';

const CONNECT_TIMEOUT_MS = 2_000;
/**
 * Most dropped streams that are remembered, because their records may still arrive (P1). A record of a forgotten stream closes the
 * data channel.
 */
const MAX_UNWANTED = 1_024;

/**
 * Records to receive, or one frame of each, with the digests that verify them. Stored in columns, because one message between threads
 * covers many records.
 */
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
export type ChannelClientEvent =
  | { readonly kind: 'opened'; readonly channel: number }
  | { readonly kind: 'arrived'; readonly incoming: readonly ReceivedBatch[] }
  /** None of the stream's slots is written any more. */
  | { readonly kind: 'dropped'; readonly channel: number; readonly stream: number }
  /** The channel is gone and writes no slot: it could not be opened, or its connection ended. */
  | { readonly kind: 'lost'; readonly channel: number; readonly reason: string };

interface Expected extends SlotRecord {
  readonly stream: number;
  readonly index: number;
}

interface ClientChannel {
  socket: ByteSocket | undefined;
  readonly expected: Map<number, Expected>;
  /** Streams whose records are not wanted any more, and may come all the same. */
  readonly unwanted: Set<number>;
  isClosed: boolean;
  /** The stream that was dropped while one of its records was coming. */
  droppedStream: number | undefined;
  arriving: Expected | undefined;
  memory: BorrowedMemory | undefined;
  /** Records read from the shared memory that are not reported to the holder yet. */
  read: { readonly stream: number; readonly index: number }[];
}

/** Whether the head names the expected size; all records of a format have the same size. */
function isOfSize({ bytes }: Pick<RecordHead, 'bytes'>, expected: Expected): boolean {
  return bytes === expected.bytes;
}

/** Closes the data channel; bytes that still arrive are ignored. */
function cut(clientChannel: ClientChannel): void {
  clientChannel.isClosed = true;
  clientChannel.socket?.destroy();
}

/** Asker's end of data channels: connects, asks for records, verifies them on arrival and reports them. */
export class ChannelClient {
  readonly #sockets: Sockets;
  readonly #hostMemory: HostMemory;
  readonly #own: () => OwnMemory;
  readonly #emit: (event: ChannelClientEvent) => void;
  readonly #channels = new Map<number, ClientChannel>();
  readonly #incoming: ReceivedRecords;
  readonly #reads: MemoryReads;
  readonly #clock: Pick<Clock, 'turn'>;

  constructor(
    sockets: Sockets,
    hostMemory: HostMemory,
    clock: Pick<Clock, 'turn' | 'sleep'>,
    own: () => OwnMemory,
    emit: (event: ChannelClientEvent) => void,
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

  /** Connects a data channel. `memory` is the name of the holder's shared memory, empty when there is none. */
  async connect(channel: number, host: string, port: number, token: string, memory: string): Promise<void> {
    const clientChannel: ClientChannel = {
      socket: undefined,
      expected: new Map(),
      unwanted: new Set(),
      droppedStream: undefined,
      arriving: undefined,
      isClosed: false,
      memory: undefined,
      read: [],
    };
    this.#channels.set(channel, clientChannel);
    try {
      clientChannel.socket = await this.#sockets.connect(
        host,
        port,
        CONNECT_TIMEOUT_MS,
        this.#listener(channel, clientChannel),
      );
      if (clientChannel.isClosed) clientChannel.socket.destroy();
      else {
        clientChannel.socket.write([Buffer.from(token)]);
        clientChannel.memory = memory === '' ? undefined : this.#hostMemory.open(memory);
        if (clientChannel.memory) {
          this.#reads.open(channel, memory);
          clientChannel.socket.write([asksOf(MEMORY_STREAM, [0])]);
        }
      }
    } catch (error) {
      this.#channels.delete(channel);
      clientChannel.socket?.destroy();
      this.#emit({ kind: 'lost', channel, reason: messageOf(error) });
    }
  }

  ask(channel: number, stream: number, format: Digest, { indices, slots, digests, bytes, frame }: WantedRecords): void {
    const clientChannel = this.#channels.get(channel);
    // The data channel was lost meanwhile, which a 'lost' event reports.
    if (!clientChannel?.socket) return;
    for (const [i, index] of indices.entries()) {
      const [slot, digest, header] = [slots[i], digests[i], frame?.headers[i]];
      if (slot === undefined || digest === undefined) continue;
      const part = frame && header && { spec: frame.spec, header };
      clientChannel.expected.set(itemKeyOf(stream, index), { stream, index, slot, bytes, digest, format, frame: part });
    }
    clientChannel.socket.write([asksOf(stream, indices)]);
  }

  /** Cancels what the stream has asked for and not received. Emits 'dropped' once none of the stream's slots is written any more. */
  drop(channel: number, stream: number): void {
    const clientChannel = this.#channels.get(channel);
    if (clientChannel) {
      for (const [offset, expected] of clientChannel.expected) {
        if (expected.stream === stream) clientChannel.expected.delete(offset);
      }
      clientChannel.unwanted.add(stream);
      const [oldest] = clientChannel.unwanted;
      if (clientChannel.unwanted.size > MAX_UNWANTED && oldest !== undefined) clientChannel.unwanted.delete(oldest);
    }
    const copied = this.#reads.giveUp(channel, stream);
    const dropped = (): void => {
      if (clientChannel?.arriving?.stream === stream) clientChannel.droppedStream = stream;
      else this.#emit({ kind: 'dropped', channel, stream });
    };
    if (copied) void copied.then(dropped);
    else dropped();
  }

  close(channel: number): void {
    const clientChannel = this.#channels.get(channel);
    if (clientChannel) cut(clientChannel);
  }

  #listener(channel: number, clientChannel: ClientChannel): SocketListener {
    let isWelcome = false;
    const reader = new ChannelReader({
      isClosed: () => clientChannel.isClosed,
      isShared: () => clientChannel.memory !== undefined,
      onHead: (head) => {
        if (isWelcome || head?.bytes !== 0) return this.#afterHead(channel, clientChannel, head);
        isWelcome = true;
        this.#emit({ kind: 'opened', channel });
        return undefined;
      },
      onRecord: (fault) => {
        this.#arrived(channel, clientChannel, fault);
      },
    });
    return {
      into: () => reader.into(),
      onBytes: (count) => {
        reader.received(count);
      },
      onClosed: (reason) => {
        clientChannel.isClosed = true;
        const copied = this.#reads.giveUp(channel);
        if (clientChannel.memory) this.#reads.close(channel);
        clientChannel.memory?.close();
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

  #afterHead(channel: number, clientChannel: ClientChannel, head: RecordHead | undefined): AfterHead | undefined {
    if (head?.offset !== undefined) {
      this.#fromMemory(channel, clientChannel, head, head.offset);
      return undefined;
    }
    const key = head && itemKeyOf(head.stream, head.index);
    const expected = key === undefined ? undefined : clientChannel.expected.get(key);
    if (head && expected && isOfSize(head, expected) && key !== undefined) {
      clientChannel.expected.delete(key);
      clientChannel.arriving = expected;
      return receivedFrom(this.#own(), { ...expected, bytes: head.bytes });
    }
    if (head && !expected && clientChannel.unwanted.has(head.stream) && head.bytes > 0)
      return { unwantedBytes: head.bytes };
    // After an unexpected head the start of the next record is unknown, so the channel is closed.
    cut(clientChannel);
    return undefined;
  }

  /** Queues the copy of a record that lies in shared memory; no bytes follow its head on the socket. */
  #fromMemory(
    channel: number,
    clientChannel: ClientChannel,
    { stream, index, bytes }: RecordHead,
    offset: number,
  ): void {
    const wanted = itemKeyOf(stream, index);
    const expected = clientChannel.expected.get(wanted);
    const isWanted = expected !== undefined && isOfSize({ bytes }, expected);
    if (!clientChannel.memory || (!isWanted && !clientChannel.unwanted.has(stream))) {
      cut(clientChannel);
      return;
    }
    if (!isWanted) {
      this.#read(clientChannel, stream, index);
      return;
    }
    clientChannel.expected.delete(wanted);
    this.#reads.add({
      ...expected,
      channel,
      offset,
      bytes,
      memory: clientChannel.memory,
      done: (how, fault) => {
        this.#read(clientChannel, stream, index);
        if (how === 'given up' || clientChannel.unwanted.has(stream)) return;
        // Reported at the end of this event-loop turn, with the other copies of the turn.
        this.#incoming.add({ channel, stream, isShared: true }, index, fault, true);
      },
    });
  }

  /** Reports to the holder, with others of this event-loop turn, that a record has been read and its memory may be released. */
  #read(clientChannel: ClientChannel, stream: number, index: number): void {
    clientChannel.read.push({ stream, index });
    if (clientChannel.read.length === 1)
      void this.#clock.turn().then(() => {
        this.#notifyRead(clientChannel);
      });
  }

  #notifyRead(clientChannel: ClientChannel): void {
    const asks = clientChannel.read.map(({ stream, index }) => asksOf(stream + READ, [index]));
    clientChannel.read = [];
    if (!clientChannel.isClosed) clientChannel.socket?.write([Buffer.concat(asks)]);
  }

  #arrived(channel: number, clientChannel: ClientChannel, fault: string | undefined): void {
    const { arriving } = clientChannel;
    if (!arriving) return;
    const { stream, index, frame } = arriving;
    clientChannel.arriving = undefined;
    if (clientChannel.droppedStream === stream) {
      clientChannel.droppedStream = undefined;
      this.#emit({ kind: 'dropped', channel, stream });
      return;
    }
    this.#incoming.add(
      { channel, stream, isShared: false },
      index,
      fault,
      frame !== undefined || clientChannel.expected.size === 0,
    );
  }
}
