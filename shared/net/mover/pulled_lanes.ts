/**
 * An asker's end of lanes, in its mover thread: records are asked for, come into slots of the slab, and are verified as soon as they are
 * there (K2), frame by frame, while they are in the processor's cache.
 */
import { messageOf } from '../../base/failure.ts';
import type { Digest } from '../../kv/block_key.ts';
import { ArrivingFrame, ArrivingRecord, type FrameRange } from '../../kv/record.ts';
import type { BorrowedMemory, HostMemory } from './host_memory.ts';
import { asksOf, HEAD_BYTES, MEMORY_OPEN, MEMORY_STREAM, placeOf, readHead, type RecordHead } from './lane_frames.ts';
import type { ByteSocket, SocketListener, Sockets } from './sockets.ts';

const CONNECT_TIMEOUT_MS = 2_000;
/** For records that nobody wants any more: they come all the same. */
const SCRATCH_BYTES = 256 << 10;
/** Of a record in shared memory: so much is copied and verified while it is in the processor's cache. */
const PIECE_BYTES = 256 << 10;
/** Streams that are remembered for that; an older one's record costs the lane. */
const MAX_UNWANTED = 1_024;

/** A record that is to come, or a frame of one, and what it must be. */
export interface WantedRecord {
  /** As lane_frames.ts numbers what is asked for. */
  readonly index: number;
  readonly slot: number;
  /** That come. */
  readonly bytes: number;
  readonly digest: Digest;
  /** It is this one: `said` as its holder describes it, at `offset` of the slot. */
  readonly frame?: { readonly range: FrameRange; readonly offset: number; readonly said: Uint8Array };
}

/** It is in its slot; `fault` says why it cannot be used. */
export interface ArrivedRecord {
  readonly lane: number;
  readonly stream: number;
  readonly index: number;
  readonly fault: string | undefined;
  /** Through memory that both ends share; else over the socket. */
  readonly isShared: boolean;
}

export type PulledEvent =
  | { readonly kind: 'opened'; readonly lane: number }
  | { readonly kind: 'arrived'; readonly records: readonly ArrivedRecord[] }
  /** None of the stream's slots is written any more. */
  | { readonly kind: 'dropped'; readonly lane: number; readonly stream: number }
  /** It is gone, and writes no slot: it could not be opened, or its connection ended. */
  | { readonly kind: 'lost'; readonly lane: number; readonly reason: string };

/** Where it comes, and what judges it on the way. */
interface Coming {
  readonly target: Uint8Array;
  readonly judge: ArrivingRecord | ArrivingFrame;
}

interface Expected extends WantedRecord {
  readonly stream: number;
  readonly format: Digest;
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
  /** Places of it that were read and are not told of. */
  read: number[];
}

export class PulledLanes {
  readonly #sockets: Sockets;
  readonly #hostMemory: HostMemory;
  readonly #recordIn: (slot: number, bytes: number) => Uint8Array;
  readonly #emit: (event: PulledEvent) => void;
  readonly #lanes = new Map<number, Pulled>();
  /** Of this turn of the loop: told together. */
  #arrivals: ArrivedRecord[] = [];
  readonly #turn: () => Promise<void>;
  readonly #tell = (): void => {
    const records = this.#arrivals;
    this.#arrivals = [];
    if (records.length > 0) this.#emit({ kind: 'arrived', records });
  };

  /** `turn`: when the loop has gone round. */
  constructor(
    sockets: Sockets,
    hostMemory: HostMemory,
    turn: () => Promise<void>,
    recordIn: (slot: number, bytes: number) => Uint8Array,
    emit: (event: PulledEvent) => void,
  ) {
    this.#sockets = sockets;
    this.#hostMemory = hostMemory;
    this.#turn = turn;
    this.#recordIn = recordIn;
    this.#emit = emit;
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
        pulled.memory = memory === '' ? undefined : this.#hostMemory.open(memory, Buffer.from(token));
        if (pulled.memory) pulled.socket.write([asksOf(MEMORY_STREAM, [MEMORY_OPEN])]);
      }
    } catch (error) {
      this.#lanes.delete(lane);
      pulled.socket?.destroy();
      this.#emit({ kind: 'lost', lane, reason: messageOf(error) });
    }
  }

  ask(lane: number, stream: number, format: Digest, records: readonly WantedRecord[]): void {
    const pulled = this.#lanes.get(lane);
    // It was lost meanwhile, and its user is told.
    if (!pulled?.socket) return;
    for (const record of records) pulled.expected.set(placeOf(stream, record.index), { ...record, stream, format });
    const indices = records.map(({ index }) => index);
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
    if (pulled?.arriving?.stream === stream) pulled.droppedStream = stream;
    else this.#emit({ kind: 'dropped', lane, stream });
  }

  close(lane: number): void {
    const pulled = this.#lanes.get(lane);
    if (!pulled) return;
    pulled.isClosed = true;
    pulled.socket?.destroy();
  }

  #listener(lane: number, pulled: Pulled): SocketListener {
    const head = Buffer.alloc(HEAD_BYTES);
    /** What comes now, and how much of it is here. */
    let [kind, target, numBytes, numHere]: ['head' | 'record' | 'unwanted', Uint8Array, number, number] = [
      ...(['head', head, HEAD_BYTES, 0] as const),
    ];
    let coming: Coming['judge'] | undefined;
    let scratch: Uint8Array | undefined;
    let isWelcome = false;
    const begin = (next: typeof kind, into: Uint8Array, bytes: number): void => {
      [kind, target, numBytes, numHere] = [next, into, bytes, 0];
    };
    const behindHead = (read: RecordHead | undefined): void => {
      if (!isWelcome && read?.bytes === 0) {
        isWelcome = true;
        begin('head', head, HEAD_BYTES);
        this.#emit({ kind: 'opened', lane });
        return;
      }
      if (read?.place !== undefined) {
        this.#fromMemory(lane, pulled, read, read.place);
        begin('head', head, HEAD_BYTES);
        return;
      }
      const place = read && placeOf(read.stream, read.index);
      const expected = place === undefined ? undefined : pulled.expected.get(place);
      if (read && expected?.bytes === read.bytes && place !== undefined) {
        pulled.expected.delete(place);
        pulled.arriving = expected;
        const { target: into, judge } = this.#comingOf(expected);
        begin('record', into, read.bytes);
        coming = judge;
      } else if (read && !expected && pulled.unwanted.has(read.stream) && read.bytes > 0) {
        scratch ??= new Uint8Array(SCRATCH_BYTES);
        begin('unwanted', scratch, read.bytes);
      } else {
        // Nobody knows where the next record begins.
        begin('head', head, HEAD_BYTES);
        pulled.isClosed = true;
        pulled.socket?.destroy();
      }
    };
    return {
      into: () =>
        kind === 'unwanted'
          ? target.subarray(0, Math.min(target.length, numBytes - numHere))
          : target.subarray(numHere),
      onBytes: (count) => {
        if (pulled.isClosed) {
          // It means nothing, and has to go somewhere: a socket that deciphers would ask for ever where.
          begin('head', head, HEAD_BYTES);
          return;
        }
        numHere += count;
        if (kind === 'record') coming?.took(numHere);
        if (numHere < numBytes) return;
        if (kind === 'head') {
          behindHead(readHead(head));
          return;
        }
        if (kind === 'record') this.#arrived(lane, pulled, coming?.fault, false);
        begin('head', head, HEAD_BYTES);
      },
      onClosed: (reason) => {
        pulled.isClosed = true;
        pulled.memory?.close();
        this.#lanes.delete(lane);
        // What came before comes before.
        this.#tell();
        this.#emit({ kind: 'lost', lane, reason });
      },
    };
  }

  /** It lies in the memory that both share: nothing of it comes behind its head. */
  #fromMemory(lane: number, pulled: Pulled, { stream, index, bytes }: RecordHead, place: number): void {
    const wanted = placeOf(stream, index);
    const expected = pulled.expected.get(wanted);
    const isWanted = expected?.bytes === bytes;
    if (!pulled.memory || (!isWanted && !pulled.unwanted.has(stream))) {
      pulled.socket?.destroy();
      return;
    }
    pulled.read.push(place);
    if (pulled.read.length === 1) void this.#turn().then(() => this.#tellRead(pulled));
    if (!isWanted) return;
    pulled.expected.delete(wanted);
    const { target, judge } = this.#comingOf(expected);
    for (let at = 0; at < bytes; at += PIECE_BYTES) {
      const end = Math.min(bytes, at + PIECE_BYTES);
      pulled.memory.get(place, at, target.subarray(at, end));
      judge.took(end);
    }
    pulled.arriving = expected;
    this.#arrived(lane, pulled, judge.fault, true);
  }

  #comingOf({ slot, bytes, digest, format, frame }: Expected): Coming {
    if (frame) {
      const { range, offset, said } = frame;
      const target = this.#recordIn(slot, offset + bytes).subarray(offset);
      return { target, judge: new ArrivingFrame(target, said, { ...range, digest }) };
    }
    const target = this.#recordIn(slot, bytes);
    return { target, judge: new ArrivingRecord(target, { format, digest }) };
  }

  #tellRead(pulled: Pulled): void {
    const places = pulled.read;
    pulled.read = [];
    if (!pulled.isClosed) pulled.socket?.write([asksOf(MEMORY_STREAM, places)]);
  }

  #arrived(lane: number, pulled: Pulled, fault: string | undefined, isShared: boolean): void {
    const { arriving } = pulled;
    if (!arriving) return;
    const { stream, index } = arriving;
    pulled.arriving = undefined;
    if (pulled.droppedStream === stream) {
      pulled.droppedStream = undefined;
      this.#emit({ kind: 'dropped', lane, stream });
      return;
    }
    this.#arrivals.push({ lane, stream, index, fault, isShared });
    if (this.#arrivals.length === 1) void this.#turn().then(this.#tell);
  }
}
