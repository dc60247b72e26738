/**
 * A holder's end of data channels, in its transfer thread: sends offered records out of the slab when they are asked for.
 *
 * Bounds (P1): MAX_CHANNELS; MAX_UNAUTHENTICATED sockets that have not sent a token yet, of which the oldest is closed; MAX_ASKED
 * asks per data channel for records that are not offered yet. An asker that sends more, or a wrong token, is disconnected. Records
 * being read in shared memory count as offered, which ChannelHost bounds.
 */
import { timingSafeEqual } from 'node:crypto';
import type { HostMemory, OwnMemory } from './host_memory.ts';
import {
  ASK_BYTES,
  headOf,
  CHANNEL_TOKEN_BYTES,
  MEMORY_STREAM,
  itemKeyOf,
  READ,
  readAsk,
  streamOf,
} from './channel_messages.ts';
import type { ByteSocket, SocketListener, Sockets } from './sockets.ts';

const MAX_CHANNELS = 1_024;
const MAX_ASKED = 4_096;
const MAX_UNAUTHENTICATED = 64;
/** Most ended streams that are remembered (P1), so that asks for them that are still on their way are ignored. */
const MAX_ENDED = 1_024;
/** Sent records that are reported together while others are being written. */
const MAX_BATCH = 32;

/** Records in their slots, or the same byte range of each. Stored in columns, because one message between threads covers many records. */
export interface OfferedRecords {
  readonly indices: readonly number[];
  readonly slots: readonly number[];
  /** Byte offset of the offered part within each slot, 0 for complete records; `bytes` is the part's length. */
  readonly offset: number;
  readonly bytes: number;
}

interface OfferedRecord {
  readonly index: number;
  /** Byte offset of the record or frame in the slab. */
  readonly start: number;
  readonly bytes: number;
}

/** Events of a {@link ChannelServer}, for the control thread. */
export type ChannelServerEvent =
  | { readonly kind: 'sent'; readonly channel: number; readonly stream: number; readonly indices: readonly number[] }
  /** None of the stream's slots is read any more. */
  | { readonly kind: 'retracted'; readonly channel: number; readonly stream: number }
  | { readonly kind: 'left'; readonly channel: number };

interface Writing {
  count: number;
  sent: number[];
}

interface ServerChannel {
  readonly token: Buffer;
  socket: ByteSocket | undefined;
  readonly offered: Map<number, OfferedRecord>;
  readonly asked: Set<number>;
  /** Records being written, and records written but not yet reported as sent, by stream. */
  readonly writing: Map<number, Writing>;
  readonly retracted: Set<number>;
  readonly ended: Set<number>;
  /** Whether the reader received the name of this process's shared memory. */
  readonly mayShare: boolean;
  /** Whether the reader has opened this process's shared memory. */
  isMemoryOpen: boolean;
  /** Records that the reader is reading in shared memory, by itemKeyOf; each callback is called when the reader has read its record. */
  readonly reading: Map<number, () => void>;
}

/** Holder's end of data channels: admits askers by token and sends offered records when they are asked for. */
export class ChannelServer {
  readonly #sockets: Sockets;
  readonly #hostMemory: Pick<HostMemory, 'host'>;
  readonly #own: () => OwnMemory;
  readonly #emit: (event: ChannelServerEvent) => void;
  readonly #channels = new Map<number, ServerChannel>();
  /** Sockets without a data channel, the oldest first. */
  readonly #unauthenticated = new Set<ByteSocket>();

  constructor(
    sockets: Sockets,
    hostMemory: Pick<HostMemory, 'host'>,
    own: () => OwnMemory,
    emit: (event: ChannelServerEvent) => void,
  ) {
    this.#sockets = sockets;
    this.#hostMemory = hostMemory;
    this.#own = own;
    this.#emit = emit;
  }

  /** @returns the port. */
  listen(host: string, port: number): Promise<number> {
    return this.#sockets.listen(host, port, (socket) => this.#accept(socket));
  }

  /**
   * Reserves the data channel for the first socket that sends `token`; beyond MAX_CHANNELS emits 'left' instead. @returns the name
   * under which an asker on `host` opens this process's shared memory, or empty when none can be shared.
   */
  admit(channel: number, token: string, host: string): string {
    if (this.#channels.size >= MAX_CHANNELS) {
      this.#emit({ kind: 'left', channel });
      return '';
    }
    const mayShare = host === this.#hostMemory.host && this.#own().name !== '';
    this.#channels.set(channel, {
      token: Buffer.from(token),
      socket: undefined,
      offered: new Map(),
      asked: new Set(),
      reading: new Map(),
      writing: new Map(),
      retracted: new Set(),
      ended: new Set(),
      mayShare,
      isMemoryOpen: false,
    });
    return mayShare ? this.#own().name : '';
  }

  /** Forgets a data channel to which nobody has connected in time; emits 'left'. */
  dismiss(channel: number): void {
    if (this.#channels.get(channel)?.socket) return;
    this.#channels.delete(channel);
    this.#emit({ kind: 'left', channel });
  }

  offer(channel: number, stream: number, { indices, slots, offset, bytes }: OfferedRecords): void {
    const serverChannel = this.#channels.get(channel);
    // The data channel was lost meanwhile, which a 'left' event reports.
    if (!serverChannel) return;
    for (const [i, index] of indices.entries()) {
      const record = { index, start: (slots[i] ?? 0) + offset, bytes };
      const key = itemKeyOf(stream, index);
      if (serverChannel.asked.delete(key)) this.#send(channel, serverChannel, stream, record);
      else serverChannel.offered.set(key, record);
    }
  }

  /**
   * Ends a stream: withdraws what was offered and not asked for, and ignores later asks. Emits 'retracted' once none of the stream's
   * slots is read any more.
   */
  retract(channel: number, stream: number): void {
    const serverChannel = this.#channels.get(channel);
    if (serverChannel) {
      for (const key of serverChannel.offered.keys()) if (streamOf(key) === stream) serverChannel.offered.delete(key);
      for (const key of serverChannel.asked) if (streamOf(key) === stream) serverChannel.asked.delete(key);
      serverChannel.ended.add(stream);
      const [oldest] = serverChannel.ended;
      if (serverChannel.ended.size > MAX_ENDED && oldest !== undefined) serverChannel.ended.delete(oldest);
    }
    if (serverChannel?.writing.has(stream)) serverChannel.retracted.add(stream);
    else this.#emit({ kind: 'retracted', channel, stream });
  }

  #send(channel: number, serverChannel: ServerChannel, stream: number, { index, start, bytes }: OfferedRecord): void {
    const writing = serverChannel.writing.get(stream) ?? { count: 0, sent: [] };
    serverChannel.writing.set(stream, writing);
    writing.count++;
    const done = (): void => {
      writing.count--;
      writing.sent.push(index);
      if (writing.count > 0 && writing.sent.length < MAX_BATCH) return;
      this.#emit({ kind: 'sent', channel, stream, indices: writing.sent });
      writing.sent = [];
      if (writing.count > 0) return;
      serverChannel.writing.delete(stream);
      if (serverChannel.retracted.delete(stream)) this.#emit({ kind: 'retracted', channel, stream });
    };
    const offset = serverChannel.isMemoryOpen ? this.#own().offsetOf(start, start + bytes) : undefined;
    const head = headOf({ stream, index, bytes, offset });
    if (offset === undefined) serverChannel.socket?.write([head, this.#own().bytes(start, bytes)], done);
    else {
      // The record counts as sent only once the reader reports that it has read it.
      serverChannel.reading.set(itemKeyOf(stream, index), done);
      serverChannel.socket?.write([head]);
    }
  }

  /** Disconnects the reader of the data channel. */
  cut(channel: number): void {
    this.#channels.get(channel)?.socket?.destroy();
  }

  #accept(socket: ByteSocket): SocketListener {
    this.#unauthenticated.add(socket);
    const [oldest] = this.#unauthenticated;
    if (this.#unauthenticated.size > MAX_UNAUTHENTICATED) oldest?.destroy();
    let buffer = Buffer.alloc(CHANNEL_TOKEN_BYTES);
    let numHere = 0;
    let mine: { readonly channel: number; readonly serverChannel: ServerChannel } | undefined;
    return {
      into: () => buffer.subarray(numHere),
      onBytes: (count) => {
        numHere += count;
        if (numHere < buffer.length) return;
        numHere = 0;
        if (mine) {
          this.#asked(mine.channel, mine.serverChannel, buffer);
          return;
        }
        mine = this.#channelOf(buffer);
        if (!mine) {
          socket.destroy();
          return;
        }
        this.#unauthenticated.delete(socket);
        mine.serverChannel.socket = socket;
        buffer = Buffer.alloc(ASK_BYTES);
        socket.write([headOf({ stream: 0, index: 0, bytes: 0 })]);
      },
      onClosed: () => {
        this.#unauthenticated.delete(socket);
        if (!mine) return;
        const { channel, serverChannel } = mine;
        this.#channels.delete(channel);
        for (const stream of serverChannel.retracted) this.#emit({ kind: 'retracted', channel, stream });
        this.#emit({ kind: 'left', channel });
      },
    };
  }

  #channelOf(token: Buffer): { readonly channel: number; readonly serverChannel: ServerChannel } | undefined {
    for (const [channel, serverChannel] of this.#channels)
      if (
        !serverChannel.socket &&
        serverChannel.token.length === token.length &&
        timingSafeEqual(serverChannel.token, token)
      )
        return { channel, serverChannel };
    return undefined;
  }

  #asked(channel: number, serverChannel: ServerChannel, ask: Buffer): void {
    const { stream, index } = readAsk(ask);
    if (stream === MEMORY_STREAM) {
      if (!serverChannel.mayShare || serverChannel.isMemoryOpen) serverChannel.socket?.destroy();
      serverChannel.isMemoryOpen = serverChannel.mayShare;
      return;
    }
    if (stream >= READ) {
      const read = itemKeyOf(stream - READ, index);
      const done = serverChannel.reading.get(read);
      serverChannel.reading.delete(read);
      if (done) done();
      else serverChannel.socket?.destroy();
      return;
    }
    const key = itemKeyOf(stream, index);
    const record = serverChannel.offered.get(key);
    if (record) {
      serverChannel.offered.delete(key);
      this.#send(channel, serverChannel, stream, record);
      return;
    }
    if (serverChannel.ended.has(stream)) return;
    serverChannel.asked.add(key);
    if (serverChannel.asked.size > MAX_ASKED) serverChannel.socket?.destroy();
  }
}
