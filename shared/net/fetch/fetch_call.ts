/**
 * One Fetch call for a run of blocks, with its data channel stream if it has one. Performs the actions of {@link FetchMachine}:
 * records go into slots as they arrive, a bounded number ahead of the reader, in order.
 */
import { asFailure, Failure } from '../../base/failure.ts';
import type { Clock } from '../../base/clock.ts';
import { Condition } from '../../base/condition.ts';
import type { Link } from '../../base/signal.ts';
import type { Digest } from '../../kv/block_key.ts';
import type { FetchReply } from '../../protocol/messages.ts';
import type { ChannelStream } from '../data_channel.ts';
import type { TransferThread } from '../transfer_thread/transfer_thread.ts';
import type { Arrived, ReceivedItems, FetchEvent } from './fetch_events.ts';
import { FetchMachine, type FetchMachineOptions } from './fetch_machine.ts';
import type { LinkMeter } from './link_meter.ts';
import type { Patience } from './patience.ts';
import { CallTransfer, type Moved, type Slots } from './transfer.ts';

/** Options of one {@link FetchCall}: its open call, its stream of a data channel if any, and its dependencies. */
export interface FetchCallOptions extends Omit<FetchMachineOptions, 'hasChannel'> {
  readonly transferThread: Pick<TransferThread, 'call'>;
  readonly format: Digest;
  readonly call: AsyncIterableIterator<FetchReply>;
  readonly stream: ChannelStream | undefined;
  readonly moved: Moved;
  readonly meter: LinkMeter;
  readonly clock: Pick<Clock, 'nowMs'>;
  /** Ends the call. */
  readonly link: Link;
  readonly patience: Patience;
}

/** One Fetch call in progress: performs the actions of its {@link FetchMachine} and yields records in order. */
export class FetchCall {
  readonly #options: FetchCallOptions;
  readonly #machine: FetchMachine;
  readonly #changed = new Condition();
  /** Whether a slot has been requested and is not granted yet. */
  #isAcquiring = false;
  #isPumping = false;
  /** Whether the reader has left. */
  #isOver = false;

  constructor(options: FetchCallOptions) {
    this.#options = options;
    this.#machine = new FetchMachine({ ...options, hasChannel: options.stream !== undefined });
  }

  /**
   * Yields batches of records that have arrived, in order; call once, and consume each batch at once. The reader owns a slot once it has
   * read the last item of the slot's block.
   * @throws Failure when the call or its data channel breaks.
   */
  async *records(slots: Slots): AsyncGenerator<Iterable<Arrived>> {
    const driver = this.#drive(slots);
    void this.#readCall(driver);
    try {
      for (let front = this.#machine.front; front !== 'over'; front = this.#machine.front) {
        if (front === 'received') yield this.#received(driver);
        else if (front === 'waiting') await this.#changed.changed();
        else await this.#options.patience.watch(this.#changed.changed(), () => false);
      }
    } finally {
      this.#leave(slots);
    }
  }

  /** Closes the stream of a call that was never read. */
  abandon(): void {
    void this.#options.stream?.close();
  }

  /** Yields the records at the front of the queue that have arrived. */
  *#received({ pumpSoon }: FetchDriver): Generator<Arrived> {
    const { moved, meter } = this.#options;
    for (let next = this.#machine.read(); next; next = this.#machine.read()) {
      const { way, bytes, ...arrived } = next;
      moved[way] += bytes;
      meter.read(next);
      void pumpSoon();
      yield arrived;
    }
  }

  #drive(slots: Slots): FetchDriver {
    const { stream, link, meter } = this.#options;
    const { signal } = link;
    const on = (event: FetchEvent): void => {
      if (this.#isOver) return;
      for (const action of this.#machine.on(event)) {
        if (action.kind === 'slice') overCall.slice(action.offset, action.data);
        else if (action.over === 'channel') {
          meter.asked(action.records.indices.length);
          stream?.ask(action.records);
        } else overCall.ask(action.records);
      }
      pump();
      this.#changed.notify();
    };
    const listener = {
      arrived: (items: ReceivedItems): void => {
        if (items.way !== 'call') meter.arrived(items.indices.length, items.way);
        on({ kind: 'arrived', ...items });
      },
      broken: (error: Failure): void => {
        on({ kind: 'broken', error });
      },
    };
    const overCall = new CallTransfer(this.#options, slots, listener);
    const pump = (): void => {
      this.#acquireSlots(slots, on);
    };
    const pumpSoon = async (): Promise<void> => {
      if (this.#isPumping) return;
      this.#isPumping = true;
      // One microtask's delay lets all reads of a batch free their slots first, so that the next records are asked for together.
      await Promise.resolve();
      this.#isPumping = false;
      pump();
    };
    stream?.listen(listener);
    const abort = (): void => {
      on({ kind: 'broken', error: asFailure(signal.reason) });
    };
    signal.addEventListener('abort', abort);
    if (signal.aborted) abort();
    return { on, pumpSoon };
  }

  /** Acquires slots for promised blocks: all that are free now in one event, then one more when it becomes free. */
  #acquireSlots(slots: Slots, on: (event: FetchEvent) => void): void {
    if (this.#isAcquiring || this.#isOver) return;
    const received: number[] = [];
    for (let left = this.#machine.numWanted; left > 0 && !this.#isAcquiring; left--) {
      const taken = slots.acquire();
      if (typeof taken === 'number') received.push(taken);
      else {
        this.#isAcquiring = true;
        void this.#wait(taken, slots, on);
      }
    }
    if (received.length > 0) on({ kind: 'slots', slots: received });
  }

  async #wait(taken: Promise<number>, slots: Slots, on: (event: FetchEvent) => void): Promise<void> {
    try {
      const slot = await taken;
      this.#isAcquiring = false;
      // The reader has left, or no promised block needs a slot any more.
      if (this.#isOver || this.#machine.numWanted === 0) slots.release(slot);
      else on({ kind: 'slots', slots: [slot] });
    } catch (error) {
      this.#isAcquiring = false;
      on({ kind: 'broken', error: asFailure(error) });
    }
  }

  async #readCall({ on }: FetchDriver): Promise<void> {
    const { call, stream, patience, meter, clock } = this.#options;
    const isGoingOn = (): boolean => (stream?.numComing ?? 0) > 0;
    meter.reads();
    try {
      for (let [isFirst, wasReading] = [true, true]; ; isFirst = false) {
        const fromMs = clock.nowMs();
        const next = await patience.watch(call.next(), isGoingOn);
        if (next.done || this.#isOver) break;
        meter.answered(next.value, wasReading ? clock.nowMs() - fromMs : undefined, isFirst);
        on({ kind: 'reply', reply: next.value });
        wasReading = this.#machine.isReading;
        await this.#changed.until(() => this.#machine.isReading || this.#isOver);
        if (this.#machine.isBroken) return;
      }
      on({ kind: 'ended' });
    } catch (error) {
      on({ kind: 'broken', error: asFailure(error) });
    }
  }

  #leave(slots: Slots): void {
    const { link, stream } = this.#options;
    this.#isOver = true;
    link.abort(new Failure('cancelled', 'the fetch was cancelled'));
    link.release();
    this.#changed.notify();
    const releaseAll = (): void => {
      for (const slot of this.#machine.leave()) slots.release(slot);
    };
    // A stream may still write into its slots until it has closed, so the slots are released only then.
    if (stream) void stream.close().then(releaseAll);
    else releaseAll();
  }
}

interface FetchDriver {
  readonly on: (event: FetchEvent) => void;
  /** Acquires more slots in the next microtask, after the reader has read a record. */
  readonly pumpSoon: () => Promise<void>;
}
