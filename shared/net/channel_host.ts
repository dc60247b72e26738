/**
 * A holder's side of data channels, in its control thread: which askers may connect, and which records of the slab are offered to
 * them until they are sent.
 *
 * Bounds (P1): readyOf limits the offered records of a stream; a data channel to which nobody connects within COME_WITHIN_MS is
 * dismissed.
 */
import type { Clock } from '../base/clock.ts';
import { Condition } from '../base/condition.ts';
import { Failure, messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import { DONE } from '../base/signal.ts';
import type { ChannelReply, ChannelRequest } from '../protocol/messages.ts';
import { readyOf } from './fetch/transfer_bounds.ts';
import { CHANNEL_TOKEN_BYTES } from './transfer_thread/channel_messages.ts';
import type { TransferThread } from './transfer_thread/transfer_thread.ts';
import type { TransferThreadEvent } from './transfer_thread/transfer_methods.ts';
import type { OfferedRecords } from './transfer_thread/channel_server.ts';

/**
 * A record in its slot, or one frame of it, that the asker may request. `release` is called when it has been sent, or when its stream
 * is over.
 */
export interface ReadyRecord {
  readonly index: number;
  readonly slot: number;
  readonly release: () => void;
}

const COME_WITHIN_MS = 10_000;
/**
 * Milliseconds within which the last writes of an ended Fetch call must finish; otherwise its reader counts as gone and the data
 * channel is cut.
 */
const END_WITHIN_MS = 10_000;

/** Dependencies and settings of a {@link ChannelHost}. */
export interface ChannelHostOptions {
  readonly transferThread: TransferThread;
  /** Address on which data channels are accepted; port 0 lets the system pick a free port. */
  readonly host: string;
  readonly port: number;
  /** Records may go through memory that both ends share. */
  readonly isShared: boolean;
  readonly newId: () => string;
  readonly clock: Clock;
  readonly log: Log;
  readonly signal: AbortSignal;
}

/** Holder's side of data channels: issues one-time tokens, and owns the streams over which Fetch calls offer records. */
export class ChannelHost {
  readonly #options: ChannelHostOptions;
  #port: Promise<number> | undefined;
  /** Streams of each data channel, by channel number and then stream number. */
  readonly #channels = new Map<number, Map<number, ServedStream>>();
  /** Issued data channels whose deadline to connect has not passed, oldest first. */
  readonly #given: { readonly channel: number; readonly untilMs: number }[] = [];

  constructor(options: ChannelHostOptions) {
    this.#options = options;
    options.transferThread.listeners.add((event) => {
      this.#on(event);
    });
  }

  /** Listens for data channels, unless this host listens already. @returns the port. @throws Error when the port cannot be bound. */
  bind(): Promise<number> {
    const { transferThread, host, port } = this.#options;
    this.#port ??= transferThread.call('listen', { host, port });
    return this.#port;
  }

  /**
   * Issues a data channel with a one-time token. @throws Failure `not_found` when the port cannot be bound, `overloaded` when the
   * drawn channel number is in use.
   */
  async open({ host }: ChannelRequest): Promise<ChannelReply> {
    const { transferThread, newId, clock, log } = this.#options;
    const bound = await this.bind().catch((error: unknown) => {
      log.warn({ error: messageOf(error) }, 'cannot listen for data channels: blocks are sent over gRPC instead');
      this.#port = undefined;
      throw new Failure('not_found', `no data channels here: ${messageOf(error)}`);
    });
    // Random, so that the number of a channel that an earlier incarnation issued does not match.
    const channel = Number.parseInt(newId().slice(0, 8), 16) || 1;
    if (this.#channels.has(channel)) throw new Failure('overloaded', 'try again');
    let token = '';
    while (token.length < CHANNEL_TOKEN_BYTES) token += newId();
    token = token.slice(0, CHANNEL_TOKEN_BYTES);
    this.#channels.set(channel, new Map());
    const memory = await transferThread.call('admit', { channel, token, host: this.#options.isShared ? host : '' });
    this.#given.push({ channel, untilMs: clock.nowMs() + COME_WITHIN_MS });
    if (this.#given.length === 1) void this.#dismissLate();
    return { channel, port: bound, token, memory };
  }

  /**
   * Dismisses data channels whose deadline to connect has passed. One loop serves all channels, because each sleep adds a listener to
   * `signal`, which lives as long as the process.
   */
  async #dismissLate(): Promise<void> {
    const { transferThread, clock, signal } = this.#options;
    for (let next = this.#given[0]; next; next = this.#given[0]) {
      await clock.sleep(Math.max(0, next.untilMs - clock.nowMs()), signal);
      this.#given.shift();
      // The transfer thread keeps a data channel whose asker has connected by now, and dismisses one without a connection.
      transferThread.notify('dismiss', next.channel);
    }
  }

  /**
   * Opens the stream over which a Fetch call offers records; undefined when the data channel is unknown, or already has a stream of
   * this number.
   */
  stream(channel: number, number: number): ServedStream | undefined {
    const streams = this.#channels.get(channel);
    if (!streams || streams.has(number)) return undefined;
    const { transferThread, clock } = this.#options;
    const stream = new ServedStream({ transferThread, clock, channel, number, onEnded: () => streams.delete(number) });
    streams.set(number, stream);
    return stream;
  }

  #on(event: TransferThreadEvent): void {
    if (event.kind === 'sent') this.#channels.get(event.channel)?.get(event.stream)?.sent(event.indices);
    else if (event.kind === 'retracted') this.#channels.get(event.channel)?.get(event.stream)?.ended();
    else if (event.kind === 'left') {
      const streams = this.#channels.get(event.channel);
      this.#channels.delete(event.channel);
      for (const stream of streams?.values() ?? []) stream.ended();
    }
  }
}

interface ServedStreamOptions {
  readonly transferThread: TransferThread;
  readonly clock: Clock;
  readonly channel: number;
  readonly number: number;
  readonly onEnded: () => void;
}

/** One stream of a data channel, owned by its Fetch call. Offered records stay borrowed until they are sent or the stream is over. */
export class ServedStream {
  readonly #options: ServedStreamOptions;
  /** Release function of each record that is offered and not sent, by record or frame number. */
  readonly #ready = new Map<number, () => void>();
  readonly #changed = new Condition();
  readonly #ended = new AbortController();

  constructor(options: ServedStreamOptions) {
    this.#options = options;
  }

  get #isOver(): boolean {
    return this.#ended.signal.aborted;
  }

  get numReady(): number {
    return this.#ready.size;
  }

  /** Returns how many more records of `recordBytes` the stream may offer now; 0 once the stream is over. */
  room(recordBytes: number): number {
    return this.#isOver ? 0 : readyOf(recordBytes) - this.#ready.size;
  }

  /** Offers records to the asker: the bytes [offset, offset + bytes) of each slot. When the stream is over, releases them at once. */
  offer(ready: readonly ReadyRecord[], { offset, bytes }: Pick<OfferedRecords, 'offset' | 'bytes'>): void {
    if (this.#isOver) {
      for (const { release } of ready) release();
      return;
    }
    for (const { index, release } of ready) this.#ready.set(index, release);
    const [indices, slots] = [ready.map(({ index }) => index), ready.map(({ slot }) => slot)];
    const { transferThread, channel, number } = this.#options;
    transferThread.notify('offer', { channel, stream: number, records: { indices, slots, offset, bytes } });
  }

  /**
   * Resolves when at most `most` offered records are left. @throws Failure `session_broken` when the data channel is lost, or `signal`
   * aborts.
   */
  async until(most: number, signal: AbortSignal): Promise<void> {
    await this.#changed.until(() => this.#ready.size <= most || this.#isOver, signal);
    if (this.#isOver || signal.aborted)
      throw new Failure('session_broken', 'the data channel is lost, or its reader left');
  }

  sent(indices: readonly number[]): void {
    for (const index of indices) {
      this.#ready.get(index)?.();
      this.#ready.delete(index);
    }
    this.#changed.notify();
  }

  /**
   * Ends the stream after its Fetch call: retracts what is offered, and cuts the data channel when writes do not finish within
   * END_WITHIN_MS.
   */
  end(): void {
    if (this.#isOver) return;
    const { transferThread, clock, channel, number } = this.#options;
    transferThread.notify('retract', { channel, stream: number });
    void clock.sleep(END_WITHIN_MS, this.#ended.signal).then(() => {
      if (!this.#isOver) transferThread.notify('cut', channel);
    });
  }

  /** Ends the stream when none of its slots is read any more, and releases every record still offered. */
  ended(): void {
    if (this.#isOver) return;
    this.#ended.abort(DONE);
    for (const release of this.#ready.values()) release();
    this.#ready.clear();
    this.#options.onEnded();
    this.#changed.notify();
  }
}
