/**
 * A holder's end of data channels, in its transfer thread: records that were offered go out of the slab when they are asked for.
 *
 * Bounds (P1): MAX_CHANNELS; MAX_UNAUTHENTICATED that have not said a token yet, of which the oldest goes; MAX_ASKED asks per data channel for what is not
 * offered yet: who sends more, or a wrong token, is cut off. What is being read in shared memory was offered, which has a bound of its own.
 */
import { timingSafeEqual } from 'node:crypto';
import type { HostMemory, OwnMemory } from './host_memory.ts';
import {
  ASK_BYTES,
  headOf,
  CHANNEL_TOKEN_BYTES,
  MEMORY_STREAM,
  placeOf,
  READ,
  readAsk,
  streamOf,
} from './channel_messages.ts';
import type { ByteSocket, SocketListener, Sockets } from './sockets.ts';

const MAX_CHANNELS = 1_024;
const MAX_ASKED = 4_096;
const MAX_UNAUTHENTICATED = 64;
/** Streams whose end is remembered: what is still asked of them is on its way no longer than these last. */
const MAX_ENDED = 1_024;
/** Records that are told of together while others are being written. */
const TOLD_TOGETHER = 32;

/** Records in their slots, or the same part of each: in columns, since threads tell each other of many. */
export interface OfferedRecords {
  readonly indices: readonly number[];
  readonly slots: readonly number[];
  /** Byte offset of the offered part within each slot, 0 for complete records; `bytes` is the part's length. */
  readonly offset: number;
  readonly bytes: number;
}

interface OfferedRecord {
  readonly index: number;
  /** Byte of the slab at which it begins. */
  readonly start: number;
  readonly bytes: number;
}

/** Events of a {@link ChannelServer}, for the control thread. */
export type ServedEvent =
  | { readonly kind: 'sent'; readonly channel: number; readonly stream: number; readonly indices: readonly number[] }
  /** None of the stream's slots is read any more. */
  | { readonly kind: 'retracted'; readonly channel: number; readonly stream: number }
  | { readonly kind: 'left'; readonly channel: number };

interface Writing {
  count: number;
  sent: number[];
}

interface Served {
  readonly token: Buffer;
  socket: ByteSocket | undefined;
  readonly offered: Map<number, OfferedRecord>;
  readonly asked: Set<number>;
  /** Records being written, and records written but not yet reported as sent, by stream. */
  readonly writing: Map<number, Writing>;
  readonly retracted: Set<number>;
  readonly ended: Set<number>;
  /** Whether the asker received the name of this process's shared memory. */
  readonly mayShare: boolean;
  /** Whether the asker has opened this process's shared memory. */
  isMemoryOpen: boolean;
  /** Records that it reads where they are, by place; called when it has. */
  readonly reading: Map<number, () => void>;
}

/** Holder's end of data channels: admits askers by token and sends offered records when they are asked for. */
export class ChannelServer {
  readonly #sockets: Sockets;
  readonly #hostMemory: Pick<HostMemory, 'host'>;
  readonly #own: () => OwnMemory;
  readonly #emit: (event: ServedEvent) => void;
  readonly #channels = new Map<number, Served>();
  /** Sockets without a data channel, the oldest first. */
  readonly #unauthenticated = new Set<ByteSocket>();

  constructor(
    sockets: Sockets,
    hostMemory: Pick<HostMemory, 'host'>,
    own: () => OwnMemory,
    emit: (event: ServedEvent) => void,
  ) {
    this.#sockets = sockets;
    this.#hostMemory = hostMemory;
    this.#own = own;
    this.#emit = emit;
  }

  /** @returns the port. */
  listen(host: string, port: number): Promise<number> {
    return this.#sockets.listen(host, port, (socket) => this.#take(socket));
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
      ...{ token: Buffer.from(token), socket: undefined, offered: new Map(), asked: new Set(), reading: new Map() },
      ...{ writing: new Map(), retracted: new Set(), ended: new Set(), mayShare, isMemoryOpen: false },
    });
    return mayShare ? this.#own().name : '';
  }

  /** The time to come is over. */
  dismiss(channel: number): void {
    if (this.#channels.get(channel)?.socket) return;
    this.#channels.delete(channel);
    this.#emit({ kind: 'left', channel });
  }

  offer(channel: number, stream: number, { indices, slots, offset, bytes }: OfferedRecords): void {
    const served = this.#channels.get(channel);
    // The data channel was lost meanwhile, and its listener is told.
    if (!served) return;
    for (const [i, index] of indices.entries()) {
      const record = { index, start: (slots[i] ?? 0) + offset, bytes };
      const place = placeOf(stream, index);
      if (served.asked.delete(place)) this.#send(channel, served, stream, record);
      else served.offered.set(place, record);
    }
  }

  /** The stream is over: what was offered of it and not asked for is taken back, and what is asked is not heard. */
  retract(channel: number, stream: number): void {
    const served = this.#channels.get(channel);
    if (served) {
      for (const place of served.offered.keys()) if (streamOf(place) === stream) served.offered.delete(place);
      for (const place of served.asked) if (streamOf(place) === stream) served.asked.delete(place);
      served.ended.add(stream);
      const [oldest] = served.ended;
      if (served.ended.size > MAX_ENDED && oldest !== undefined) served.ended.delete(oldest);
    }
    if (served?.writing.has(stream)) served.retracted.add(stream);
    else this.#emit({ kind: 'retracted', channel, stream });
  }

  #send(channel: number, served: Served, stream: number, { index, start, bytes }: OfferedRecord): void {
    const writing = served.writing.get(stream) ?? { count: 0, sent: [] };
    served.writing.set(stream, writing);
    writing.count++;
    const done = (): void => {
      writing.count--;
      writing.sent.push(index);
      if (writing.count > 0 && writing.sent.length < TOLD_TOGETHER) return;
      this.#emit({ kind: 'sent', channel, stream, indices: writing.sent });
      writing.sent = [];
      if (writing.count > 0) return;
      served.writing.delete(stream);
      if (served.retracted.delete(stream)) this.#emit({ kind: 'retracted', channel, stream });
    };
    const place = served.isMemoryOpen ? this.#own().placeOf(start, start + bytes) : undefined;
    const head = headOf({ stream, index, bytes, place });
    if (place === undefined) served.socket?.write([head, this.#own().bytes(start, bytes)], done);
    else {
      // The record counts as sent only once the asker reports that it has read it.
      served.reading.set(placeOf(stream, index), done);
      served.socket?.write([head]);
    }
  }

  /** Disconnects the asker of the data channel. */
  cut(channel: number): void {
    this.#channels.get(channel)?.socket?.destroy();
  }

  #take(socket: ByteSocket): SocketListener {
    this.#unauthenticated.add(socket);
    const [oldest] = this.#unauthenticated;
    if (this.#unauthenticated.size > MAX_UNAUTHENTICATED) oldest?.destroy();
    let buffer = Buffer.alloc(CHANNEL_TOKEN_BYTES);
    let numHere = 0;
    let mine: { readonly channel: number; readonly served: Served } | undefined;
    return {
      into: () => buffer.subarray(numHere),
      onBytes: (count) => {
        numHere += count;
        if (numHere < buffer.length) return;
        numHere = 0;
        if (mine) {
          this.#asked(mine.channel, mine.served, buffer);
          return;
        }
        mine = this.#channelOf(buffer);
        if (!mine) {
          socket.destroy();
          return;
        }
        this.#unauthenticated.delete(socket);
        mine.served.socket = socket;
        buffer = Buffer.alloc(ASK_BYTES);
        socket.write([headOf({ stream: 0, index: 0, bytes: 0 })]);
      },
      onClosed: () => {
        this.#unauthenticated.delete(socket);
        if (!mine) return;
        const { channel, served } = mine;
        this.#channels.delete(channel);
        for (const stream of served.retracted) this.#emit({ kind: 'retracted', channel, stream });
        this.#emit({ kind: 'left', channel });
      },
    };
  }

  #channelOf(token: Buffer): { readonly channel: number; readonly served: Served } | undefined {
    for (const [channel, served] of this.#channels)
      if (!served.socket && served.token.length === token.length && timingSafeEqual(served.token, token))
        return { channel, served };
    return undefined;
  }

  #asked(channel: number, served: Served, ask: Buffer): void {
    const { stream, index } = readAsk(ask);
    if (stream === MEMORY_STREAM) {
      if (!served.mayShare || served.isMemoryOpen) served.socket?.destroy();
      served.isMemoryOpen = served.mayShare;
      return;
    }
    if (stream >= READ) {
      const read = placeOf(stream - READ, index);
      const done = served.reading.get(read);
      served.reading.delete(read);
      if (done) done();
      else served.socket?.destroy();
      return;
    }
    const place = placeOf(stream, index);
    const record = served.offered.get(place);
    if (record) {
      served.offered.delete(place);
      this.#send(channel, served, stream, record);
      return;
    }
    if (served.ended.has(stream)) return;
    served.asked.add(place);
    if (served.asked.size > MAX_ASKED) served.socket?.destroy();
  }
}
