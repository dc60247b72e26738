/**
 * One data channel as its asker's control thread sees it, and streams of records over it, a stream for each Fetch call. One that nobody uses for
 * IDLE_MS is closed.
 */
import type { Clock } from '../base/clock.ts';
import { Failure } from '../base/failure.ts';
import { DONE } from '../base/signal.ts';
import type { Digest } from '../kv/block_key.ts';
import type { ReceivedItems } from './fetch/fetch_events.ts';
import type { Transfer, TransferListener } from './fetch/transfer.ts';
import type { ReceivedBatch } from './transfer_thread/received_records.ts';
import type { TransferThread } from './transfer_thread/transfer_thread.ts';
import type { WantedRecords } from './transfer_thread/channel_client.ts';

const IDLE_MS = 120_000;
/** Milliseconds to wait for a record that was arriving when its stream was dropped; after that the data channel is closed. */
const DROP_TIMEOUT_MS = 5_000;

/** One data channel to a holder: opens streams, and passes the transfer thread's events to them. */
export class DataChannel {
  /** Number of this data channel in the own transfer thread; `id` is its number at the holder. */
  readonly number: number;
  readonly id: number;
  readonly #transferThread: TransferThread;
  readonly #clock: Clock;
  /** Called when the channel takes no more streams; `isBroken` is false when it was idle. */
  readonly #onEnd: (isBroken: boolean) => void;
  readonly #streams = new Map<number, ChannelStream>();
  #nextStream = 1;
  readonly #lost = new AbortController();
  #isRetired = false;
  /** Whether the last record came through shared memory. */
  #isShared = false;

  constructor(
    transferThread: TransferThread,
    clock: Clock,
    number: number,
    id: number,
    onEnd: (isBroken: boolean) => void,
  ) {
    this.#transferThread = transferThread;
    this.#clock = clock;
    this.number = number;
    this.id = id;
    this.#onEnd = onEnd;
    void this.#closeWhenIdle();
  }

  get #isLost(): boolean {
    return this.#lost.signal.aborted;
  }

  get numStreams(): number {
    return this.#streams.size;
  }

  /** Number of streams with records on their way through the socket; 0 while records come through shared memory. */
  get numSocketStreams(): number {
    if (this.#isShared) return 0;
    let count = 0;
    for (const { numComing } of this.#streams.values()) if (numComing > 0) count++;
    return count;
  }

  open(format: Digest): ChannelStream {
    const number = this.#nextStream++;
    const stream = new ChannelStream(number, {
      ask: (records) => {
        if (this.#isLost) stream.lost('the data channel is lost');
        else this.#transferThread.notify('ask', { channel: this.number, stream: number, format, records });
      },
      drop: () => this.#drop(stream),
    });
    this.#streams.set(number, stream);
    return stream;
  }

  /** Stops opening streams after one broke or received nothing in time; closes the channel when its remaining streams have ended. */
  retire(): void {
    if (this.#isLost || this.#isRetired) return;
    this.#isRetired = true;
    this.#onEnd(true);
    this.#closeIfUnused();
  }

  #closeIfUnused(): void {
    if (this.#streams.size === 0) this.#transferThread.notify('close', this.number);
  }

  #drop(stream: ChannelStream): void {
    if (this.#isLost) {
      stream.lost('the data channel is lost');
      return;
    }
    this.#transferThread.notify('drop', { channel: this.number, stream: stream.number });
    void this.#clock.sleep(DROP_TIMEOUT_MS, stream.ended).then(() => {
      if (!stream.ended.aborted) this.#transferThread.notify('close', this.number);
    });
  }

  arrived({ stream, indices, faults, isShared }: ReceivedBatch): void {
    this.#isShared = isShared;
    this.#streams.get(stream)?.arrived({ indices, faults, way: isShared ? 'memory' : 'socket' });
  }

  dropped(stream: number): void {
    this.#streams.get(stream)?.over();
    this.#streams.delete(stream);
    if (this.#isRetired) this.#closeIfUnused();
  }

  async #closeWhenIdle(): Promise<void> {
    for (let last = 0; this.#streams.size > 0 || this.#nextStream !== last;) {
      last = this.#nextStream;
      await this.#clock.sleep(IDLE_MS, this.#lost.signal);
      if (this.#isLost || this.#isRetired) return;
    }
    this.#isRetired = true;
    this.#onEnd(false);
    this.#closeIfUnused();
  }

  lost(reason: string): void {
    this.#lost.abort(DONE);
    this.#onEnd(this.#streams.size > 0);
    for (const stream of this.#streams.values()) stream.lost(reason);
    this.#streams.clear();
  }
}

interface StreamLine {
  readonly ask: (records: WantedRecords) => void;
  readonly drop: () => void;
}

/** Records of one Fetch call over a data channel. */
export class ChannelStream implements Transfer {
  readonly number: number;
  readonly #line: StreamLine;
  #listener: TransferListener | undefined;
  /** Records or frames that have been asked for and have not arrived. */
  numComing = 0;
  readonly #end = new AbortController();
  #isClosed = false;
  #lost: Failure | undefined;

  constructor(number: number, line: StreamLine) {
    this.number = number;
    this.#line = line;
  }

  /** Aborts when none of the stream's slots is written any more. */
  get ended(): AbortSignal {
    return this.#end.signal;
  }

  /** Sets the listener for all later events; called once. A stream that is already lost reports its failure at once. */
  listen(listener: TransferListener): void {
    this.#listener = listener;
    if (this.#lost) listener.broken(this.#lost);
  }

  /** Asks for records, each into its slot. @throws Failure `cancelled` after `close`. */
  ask(records: WantedRecords): void {
    // A record asked for now would be written into a slot that is being released.
    if (this.#isClosed) throw new Failure('cancelled', 'the fetch was cancelled');
    this.numComing += records.indices.length;
    this.#line.ask(records);
  }

  close(): Promise<void> {
    const isFirst = !this.#isClosed;
    this.#isClosed = true;
    this.numComing = 0;
    const ended = new Promise<void>((resolve) => {
      if (this.ended.aborted) resolve();
      else
        this.ended.addEventListener('abort', () => {
          resolve();
        });
    });
    if (isFirst && !this.ended.aborted) this.#line.drop();
    return ended;
  }

  arrived(items: ReceivedItems): void {
    this.numComing = Math.max(0, this.numComing - items.indices.length);
    this.#listener?.arrived(items);
  }

  lost(reason: string): void {
    this.numComing = 0;
    this.#lost = new Failure('session_broken', reason);
    this.#listener?.broken(this.#lost);
    this.over();
  }

  over(): void {
    this.#end.abort(DONE);
  }
}
