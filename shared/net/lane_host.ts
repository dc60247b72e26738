/**
 * A holder's side of lanes, in its control thread: who may come, and which records lie ready for them in the slab until they are sent.
 *
 * Bounds (P1): a stream has MAX_READY records ready at once; lanes that nobody takes are forgotten.
 */
import type { Clock } from '../base/clock.ts';
import { Failure, messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import type { Lent } from '../kv/record_cache.ts';
import type { LaneReply } from '../protocol/messages.ts';
import { LANE_TOKEN_BYTES } from './mover/lane_frames.ts';
import type { Mover } from './mover/mover.ts';
import type { MoverEvent } from './mover/mover_worker.ts';

/** Enough that a lane never waits for the calls beside it; they are told of more when half of them are gone. */
export const MAX_READY = 32;
const COME_WITHIN_MS = 10_000;

export interface LaneHostOptions {
  readonly mover: Mover;
  /** Where lanes are listened for; port 0: any. */
  readonly host: string;
  readonly port: number;
  readonly newId: () => string;
  readonly clock: Clock;
  readonly log: Log;
  readonly signal: AbortSignal;
}

export class LaneHost {
  readonly #options: LaneHostOptions;
  #port: Promise<number> | undefined;
  #nextLane = 1;
  /** By lane, its streams. */
  readonly #lanes = new Map<number, Map<number, ServedStream>>();

  constructor(options: LaneHostOptions) {
    this.#options = options;
    options.mover.listeners.add((event) => {
      this.#on(event);
    });
  }

  /** @throws Failure when nobody can be listened for. */
  async open(): Promise<LaneReply> {
    const { mover, host, port, newId, clock, log, signal } = this.#options;
    this.#port ??= mover.call('listen', { host, port }).catch((error: unknown) => {
      log.warn({ error: messageOf(error) }, 'no lanes: blocks go over calls');
      throw new Failure('not_found', `no lanes here: ${messageOf(error)}`);
    });
    const bound = await this.#port;
    const lane = this.#nextLane++;
    let token = '';
    while (token.length < LANE_TOKEN_BYTES) token += newId();
    token = token.slice(0, LANE_TOKEN_BYTES);
    this.#lanes.set(lane, new Map());
    mover.tell('admit', { lane, token });
    void clock.sleep(COME_WITHIN_MS, signal).then(() => {
      // Whoever is there by now stays.
      if (this.#lanes.get(lane)?.size === 0) mover.tell('dismiss', lane);
    });
    return { lane, port: bound, token };
  }

  /** What a Fetch call sends over a lane; undefined: it knows no such lane. */
  stream(lane: number, number: number): ServedStream | undefined {
    const streams = this.#lanes.get(lane);
    if (!streams || streams.has(number)) return undefined;
    const stream = new ServedStream(this.#options.mover, lane, number, () => streams.delete(number));
    streams.set(number, stream);
    return stream;
  }

  #on(event: MoverEvent): void {
    if (event.kind === 'sent') this.#lanes.get(event.lane)?.get(event.stream)?.sent(event.indices);
    else if (event.kind === 'retracted') this.#lanes.get(event.lane)?.get(event.stream)?.over();
    else if (event.kind === 'left') {
      const streams = this.#lanes.get(event.lane);
      this.#lanes.delete(event.lane);
      for (const stream of streams?.values() ?? []) stream.over();
    }
  }
}

export class ServedStream {
  readonly #mover: Mover;
  readonly #lane: number;
  readonly #number: number;
  readonly #onOver: () => void;
  /** Offered and not sent. */
  readonly #ready = new Map<number, Lent>();
  #wake: () => void = () => undefined;
  #isOver = false;

  constructor(mover: Mover, lane: number, number: number, onOver: () => void) {
    this.#mover = mover;
    this.#lane = lane;
    this.#number = number;
    this.#onOver = onOver;
  }

  /** So many more may lie ready. */
  get room(): number {
    return this.#isOver ? 0 : MAX_READY - this.#ready.size;
  }

  /** From now on they can be asked for. */
  offer(first: number, lents: readonly (Lent & { readonly slot: number })[]): void {
    if (this.#isOver) {
      for (const { release } of lents) release();
      return;
    }
    const records = lents.map(({ slot, record }, i) => ({ index: first + i, slot, bytes: record.length }));
    lents.forEach((lent, i) => this.#ready.set(first + i, lent));
    this.#mover.tell('offer', { lane: this.#lane, stream: this.#number, records });
  }

  /** Until no more than `most` lie ready. @throws Failure when the lane is lost, or `signal` aborts. */
  async until(most: number, signal: AbortSignal): Promise<void> {
    const isLeft = (): boolean => signal.aborted;
    const wake = (): void => {
      this.#wake();
    };
    signal.addEventListener('abort', wake);
    try {
      while (this.#ready.size > most && !this.#isOver && !isLeft()) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
    } finally {
      signal.removeEventListener('abort', wake);
    }
    if (this.#isOver || isLeft()) throw new Failure('session_broken', 'the lane is lost, or its reader left');
  }

  sent(indices: readonly number[]): void {
    for (const index of indices) {
      this.#ready.get(index)?.release();
      this.#ready.delete(index);
    }
    this.#wake();
  }

  /** The call has ended. */
  end(): void {
    if (this.#isOver) return;
    this.#mover.tell('retract', { lane: this.#lane, stream: this.#number, indices: [...this.#ready.keys()] });
  }

  /** Nothing of it is read any more. */
  over(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const { release } of this.#ready.values()) release();
    this.#ready.clear();
    this.#onOver();
    this.#wake();
  }
}
