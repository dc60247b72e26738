/**
 * An asker's side of lanes, in its control thread: one lane or a few to each holder that has any, opened when it is first asked, and streams
 * of records over them.
 *
 * Bounds (P1): MAX_LANES to one holder, MAX_HOLDERS; one that nobody uses for IDLE_MS is closed. A holder that cannot be reached this way,
 * or not at once, is fetched from over calls, and tried again after RETRY_MS; one whose lane broke, after BROKEN_RETRY_MS.
 */
import type { Clock } from '../base/clock.ts';
import { asFailure, Failure, messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import { OVER } from '../base/signal.ts';
import type { Digest } from '../kv/block_key.ts';
import type { LaneReply } from '../protocol/messages.ts';
import type { Mover } from './mover/mover.ts';
import type { MoverEvent } from './mover/mover_worker.ts';
import type { ArrivedRecord, WantedRecord } from './mover/pulled_lanes.ts';
import { askOnce, type Network } from './network.ts';

const MAX_LANES = 4;
const MAX_HOLDERS = 4_096;
const RETRY_MS = 30_000;
const BROKEN_RETRY_MS = 1_000;
const OPEN_TIMEOUT_MS = 3_000;
/** A fetch waits for the first lane so long; it is opened all the same, for the next one. */
const PATIENCE_MS = 100;
const IDLE_MS = 120_000;
/** A record that is dropped while it comes, and takes longer than this: its lane is given up. */
const DROP_TIMEOUT_MS = 5_000;

export interface LanesOptions {
  readonly network: Network;
  readonly mover: Mover;
  readonly clock: Clock;
  readonly log: Log;
  readonly signal: AbortSignal;
}

interface Holder {
  readonly lanes: Set<Lane>;
  /** While the first one is being opened. */
  opening: Promise<void> | undefined;
  /** Not tried before. */
  retryMs: number;
}

export class Lanes {
  readonly #options: LanesOptions;
  readonly #holders = new Map<string, Holder>();
  /** By the number that the mover knows. */
  readonly #open = new Map<number, Lane>();
  /** Lanes that are being opened: told true or false. */
  readonly #coming = new Map<number, (isOpen: boolean) => void>();
  #next = 1;

  constructor(options: LanesOptions) {
    this.#options = options;
    options.mover.listeners.add((event) => {
      this.#on(event);
    });
  }

  /** A lane to the holder at this address, the idlest; undefined: fetch over calls. Never throws. */
  async to(address: string): Promise<Lane | undefined> {
    const holder = this.#holder(address);
    if (holder.lanes.size === 0) await this.#opened(address, holder);
    let best: Lane | undefined;
    for (const lane of holder.lanes) if (!best || lane.numStreams < best.numStreams) best = lane;
    // The next one finds another.
    if (best && best.numStreams > 0 && holder.lanes.size < MAX_LANES) void this.#opened(address, holder);
    return best;
  }

  /** Until one more is open, or is not waited for. */
  async #opened(address: string, holder: Holder): Promise<void> {
    const { clock, signal } = this.#options;
    if (clock.nowMs() < holder.retryMs || signal.aborted) return;
    const opening = (holder.opening ??= this.#connect(address, holder).finally(() => {
      holder.opening = undefined;
    }));
    const isThere = new AbortController();
    await Promise.race([opening, clock.sleep(PATIENCE_MS, isThere.signal)]);
    isThere.abort(OVER);
  }

  #holder(address: string): Holder {
    const known = this.#holders.get(address);
    if (known) return known;
    const holder: Holder = { lanes: new Set(), opening: undefined, retryMs: -Infinity };
    this.#holders.set(address, holder);
    if (this.#holders.size > MAX_HOLDERS) {
      const idle = [...this.#holders].find(
        ([, { lanes, opening }]) => !opening && [...lanes].every(({ numStreams }) => numStreams === 0),
      );
      if (idle) {
        for (const { number } of idle[1].lanes) this.#options.mover.tell('close', number);
        this.#holders.delete(idle[0]);
      }
    }
    return holder;
  }

  async #connect(address: string, holder: Holder): Promise<void> {
    const { network, mover, clock, log, signal } = this.#options;
    let reply: LaneReply;
    try {
      reply = await askOnce(network, address, 'openLane', {}, { signal, timeoutMs: OPEN_TIMEOUT_MS });
    } catch (error) {
      holder.retryMs = clock.nowMs() + RETRY_MS;
      log.debug({ address, error: messageOf(error) }, 'no lane: blocks come over calls');
      return;
    }
    const number = this.#next++;
    const answered = new AbortController();
    const opened = new Promise<boolean>((resolve) => {
      this.#coming.set(number, resolve);
      void clock.sleep(OPEN_TIMEOUT_MS, answered.signal).then(() => {
        resolve(false);
      });
    });
    const host = address.slice(0, address.lastIndexOf(':')).replace(/^\[|\]$/g, '');
    mover.tell('connect', { lane: number, host, port: reply.port, token: reply.token });
    const isOpen = await opened;
    answered.abort(OVER);
    this.#coming.delete(number);
    if (!isOpen) {
      mover.tell('close', number);
      holder.retryMs = clock.nowMs() + RETRY_MS;
      log.warn({ address, port: reply.port }, 'the lane cannot be opened: blocks come over calls');
      return;
    }
    const lane = new Lane(mover, clock, number, reply.lane, (isBroken) => {
      holder.lanes.delete(lane);
      if (isBroken) holder.retryMs = clock.nowMs() + BROKEN_RETRY_MS;
    });
    this.#open.set(number, lane);
    holder.lanes.add(lane);
  }

  #on(event: MoverEvent): void {
    if (event.kind === 'opened' || event.kind === 'lost') {
      this.#coming.get(event.lane)?.(event.kind === 'opened');
    }
    if (event.kind === 'lost') {
      this.#open.get(event.lane)?.lost(event.reason);
      this.#open.delete(event.lane);
    } else if (event.kind === 'arrived')
      for (const record of event.records) this.#open.get(record.lane)?.arrived(record);
    else if (event.kind === 'dropped') this.#open.get(event.lane)?.dropped(event.stream);
  }
}

/** One connection. */
export class Lane {
  /** As the mover knows it, and as its holder does. */
  readonly number: number;
  readonly id: number;
  readonly #mover: Mover;
  readonly #clock: Clock;
  /** No more streams go over it. */
  readonly #onEnd: (isBroken: boolean) => void;
  readonly #streams = new Map<number, PulledStream>();
  #nextStream = 1;
  readonly #lost = new AbortController();
  #isRetired = false;

  constructor(mover: Mover, clock: Clock, number: number, id: number, onEnd: (isBroken: boolean) => void) {
    this.#mover = mover;
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

  open(format: Digest): PulledStream {
    const number = this.#nextStream++;
    const stream = new PulledStream(number, {
      ask: (records) => {
        if (this.#isLost) stream.lost('the lane is lost');
        else this.#mover.tell('ask', { lane: this.number, stream: number, format, records });
      },
      drop: () => this.#drop(stream),
    });
    this.#streams.set(number, stream);
    return stream;
  }

  /** A stream of it broke, or got nothing: no other goes over it, and it is closed when those that do are through. */
  retire(): void {
    if (this.#isLost || this.#isRetired) return;
    this.#isRetired = true;
    this.#onEnd(true);
    this.#closeIfUnused();
  }

  #closeIfUnused(): void {
    if (this.#streams.size === 0) this.#mover.tell('close', this.number);
  }

  #drop(stream: PulledStream): void {
    if (this.#isLost) {
      stream.lost('the lane is lost');
      return;
    }
    this.#mover.tell('drop', { lane: this.number, stream: stream.number });
    void this.#clock.sleep(DROP_TIMEOUT_MS, stream.ended).then(() => {
      if (!stream.ended.aborted) this.#mover.tell('close', this.number);
    });
  }

  arrived({ stream, index, fault }: ArrivedRecord): void {
    this.#streams.get(stream)?.arrived(index, fault);
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
    this.#lost.abort(OVER);
    this.#onEnd(this.#streams.size > 0);
    for (const stream of this.#streams.values()) stream.lost(reason);
    this.#streams.clear();
  }
}

interface Waiter {
  readonly resolve: (fault: string | undefined) => void;
  readonly reject: (error: Error) => void;
}

interface StreamLine {
  readonly ask: (records: readonly WantedRecord[]) => void;
  readonly drop: () => void;
}

/** Records of one Fetch call over a lane. */
export class PulledStream {
  readonly number: number;
  readonly #line: StreamLine;
  readonly #waiting = new Map<number, Waiter>();
  readonly #end = new AbortController();
  #isClosed = false;

  constructor(number: number, line: StreamLine) {
    this.number = number;
    this.#line = line;
  }

  /** Aborts when no slot of it is written any more. */
  get ended(): AbortSignal {
    return this.#end.signal;
  }

  /** Asked for and not here. */
  get numComing(): number {
    return this.#waiting.size;
  }

  /** Of each, when it is here, what is wrong with it. Rejects with a Failure when the lane is lost. */
  ask(records: readonly WantedRecord[]): Promise<string | undefined>[] {
    // What it is asked for now would come into slots that are given back.
    if (this.#isClosed) throw new Failure('cancelled', 'nobody reads it any more');
    const faults = records.map(
      ({ index }) =>
        new Promise<string | undefined>((resolve, reject) => {
          this.#waiting.set(index, { resolve, reject });
        }),
    );
    // Whoever gives up before does not hear of it.
    for (const fault of faults) fault.catch(() => undefined);
    this.#line.ask(records);
    return faults;
  }

  /** Nobody waits for what is still to come; it may come all the same. */
  giveUp(reason: unknown): void {
    for (const { reject } of this.#waiting.values()) reject(asFailure(reason));
    this.#waiting.clear();
  }

  /** What is still to come is not wanted. Resolves when none of its slots is written any more. */
  close(): Promise<void> {
    this.#isClosed = true;
    const ended = new Promise<void>((resolve) => {
      if (this.ended.aborted) resolve();
      else
        this.ended.addEventListener('abort', () => {
          resolve();
        });
    });
    if (!this.ended.aborted) this.#line.drop();
    return ended;
  }

  arrived(index: number, fault: string | undefined): void {
    this.#waiting.get(index)?.resolve(fault);
    this.#waiting.delete(index);
  }

  lost(reason: string): void {
    this.giveUp(new Failure('session_broken', reason));
    this.over();
  }

  over(): void {
    this.#end.abort();
  }
}
