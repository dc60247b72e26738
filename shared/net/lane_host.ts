/**
 * A holder's side of lanes, in its control thread: who may come, and which records lie ready for them in the slab until they are sent.
 *
 * Bounds (P1): a stream has so many records ready at once (readyOf); lanes that nobody takes are forgotten.
 */
import type { Clock } from '../base/clock.ts';
import { Condition } from '../base/condition.ts';
import { Failure, messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import { OVER } from '../base/signal.ts';
import type { LaneReply, LaneRequest } from '../protocol/messages.ts';
import { readyOf } from './fetch/transfer_window.ts';
import { LANE_TOKEN_BYTES } from './mover/lane_frames.ts';
import type { Mover } from './mover/mover.ts';
import type { MoverEvent } from './mover/mover_worker.ts';
import type { OfferedRecords } from './mover/served_lanes.ts';

/** A record in its slot, or a frame of one, that can be asked for; whoever sent it releases it. */
export interface ReadyRecord {
  readonly index: number;
  readonly slot: number;
  readonly release: () => void;
}

const COME_WITHIN_MS = 10_000;
/** A record that is still being written so long after its call has ended: its reader is gone, and its lane is cut. */
const END_WITHIN_MS = 10_000;

export interface LaneHostOptions {
  readonly mover: Mover;
  /** Where lanes are listened for; port 0: any. */
  readonly host: string;
  readonly port: number;
  /** Records may go through memory that both ends share. */
  readonly isShared: boolean;
  readonly newId: () => string;
  readonly clock: Clock;
  readonly log: Log;
  readonly signal: AbortSignal;
}

export class LaneHost {
  readonly #options: LaneHostOptions;
  #port: Promise<number> | undefined;
  /** By lane, its streams. */
  readonly #lanes = new Map<number, Map<number, ServedStream>>();
  /** Lanes that somebody may still come for, in the order in which they were given. */
  readonly #given: { readonly lane: number; readonly untilMs: number }[] = [];

  constructor(options: LaneHostOptions) {
    this.#options = options;
    options.mover.listeners.add((event) => {
      this.#on(event);
    });
  }

  /** Listens, if nothing does yet. @throws Error, when it cannot. */
  bind(): Promise<number> {
    const { mover, host, port } = this.#options;
    this.#port ??= mover.call('listen', { host, port });
    return this.#port;
  }

  /** @throws Failure when nobody can be listened for. */
  async open({ host }: LaneRequest): Promise<LaneReply> {
    const { mover, newId, clock, log } = this.#options;
    const bound = await this.bind().catch((error: unknown) => {
      log.warn({ error: messageOf(error) }, 'no lanes: blocks go over calls');
      this.#port = undefined;
      throw new Failure('not_found', `no lanes here: ${messageOf(error)}`);
    });
    // Not one that another incarnation of this process gave.
    const lane = Number.parseInt(newId().slice(0, 8), 16) || 1;
    if (this.#lanes.has(lane)) throw new Failure('overloaded', 'try again');
    let token = '';
    while (token.length < LANE_TOKEN_BYTES) token += newId();
    token = token.slice(0, LANE_TOKEN_BYTES);
    this.#lanes.set(lane, new Map());
    const memory = await mover.call('admit', { lane, token, host: this.#options.isShared ? host : '' });
    this.#given.push({ lane, untilMs: clock.nowMs() + COME_WITHIN_MS });
    if (this.#given.length === 1) void this.#dismissLate();
    return { lane, port: bound, token, memory };
  }

  /** One sleep for all lanes: the signal lives as long as the process, and each sleep is a listener of it. */
  async #dismissLate(): Promise<void> {
    const { mover, clock, signal } = this.#options;
    for (let next = this.#given[0]; next; next = this.#given[0]) {
      await clock.sleep(Math.max(0, next.untilMs - clock.nowMs()), signal);
      this.#given.shift();
      // Whoever is there by now stays.
      mover.tell('dismiss', next.lane);
    }
  }

  /** What a Fetch call sends over a lane; undefined: it knows no such lane. */
  stream(lane: number, number: number): ServedStream | undefined {
    const streams = this.#lanes.get(lane);
    if (!streams || streams.has(number)) return undefined;
    const { mover, clock } = this.#options;
    const stream = new ServedStream({ mover, clock, lane, number, onOver: () => streams.delete(number) });
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

interface ServedStreamOptions {
  readonly mover: Mover;
  readonly clock: Clock;
  readonly lane: number;
  readonly number: number;
  readonly onOver: () => void;
}

export class ServedStream {
  readonly #options: ServedStreamOptions;
  /** Offered and not sent, and what releases each. */
  readonly #ready = new Map<number, () => void>();
  readonly #changed = new Condition();
  readonly #over = new AbortController();

  constructor(options: ServedStreamOptions) {
    this.#options = options;
  }

  get #isOver(): boolean {
    return this.#over.signal.aborted;
  }

  get numReady(): number {
    return this.#ready.size;
  }

  /** So many more records of this size may lie ready. */
  room(recordBytes: number): number {
    return this.#isOver ? 0 : readyOf(recordBytes) - this.#ready.size;
  }

  /** From now on they can be asked for: all of them, or the same part of each. */
  offer(ready: readonly ReadyRecord[], { offset, bytes }: Pick<OfferedRecords, 'offset' | 'bytes'>): void {
    if (this.#isOver) {
      for (const { release } of ready) release();
      return;
    }
    for (const { index, release } of ready) this.#ready.set(index, release);
    const [indices, slots] = [ready.map(({ index }) => index), ready.map(({ slot }) => slot)];
    const { mover, lane, number } = this.#options;
    mover.tell('offer', { lane, stream: number, records: { indices, slots, offset, bytes } });
  }

  /** Until no more than `most` lie ready. @throws Failure when the lane is lost, or `signal` aborts. */
  async until(most: number, signal: AbortSignal): Promise<void> {
    await this.#changed.until(() => this.#ready.size <= most || this.#isOver, signal);
    if (this.#isOver || signal.aborted) throw new Failure('session_broken', 'the lane is lost, or its reader left');
  }

  sent(indices: readonly number[]): void {
    for (const index of indices) {
      this.#ready.get(index)?.();
      this.#ready.delete(index);
    }
    this.#changed.notify();
  }

  /** The call has ended. */
  end(): void {
    if (this.#isOver) return;
    const { mover, clock, lane, number } = this.#options;
    mover.tell('retract', { lane, stream: number });
    void clock.sleep(END_WITHIN_MS, this.#over.signal).then(() => {
      if (!this.#isOver) mover.tell('cut', lane);
    });
  }

  /** Nothing of it is read any more. */
  over(): void {
    if (this.#isOver) return;
    this.#over.abort(OVER);
    for (const release of this.#ready.values()) release();
    this.#ready.clear();
    this.#options.onOver();
    this.#changed.notify();
  }
}
