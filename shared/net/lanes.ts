/**
 * An asker's lanes, in its control thread: one or a few to each holder that has any, opened when it is first asked.
 *
 * Bounds (P1): MAX_LANES to one holder, MAX_HOLDERS. A holder that cannot be reached this way,
 * or not at once, is fetched from over calls, and tried again after RETRY_MS; one whose lane broke, after BROKEN_RETRY_MS.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import { OVER } from '../base/signal.ts';
import type { LaneReply } from '../protocol/messages.ts';
import { Lane } from './lane.ts';
import type { Mover } from './mover/mover.ts';
import type { MoverEvent } from './mover/mover_worker.ts';
import { askOnce, type Network } from './network.ts';

const MAX_LANES = 4;
const MAX_HOLDERS = 4_096;
const RETRY_MS = 30_000;
const BROKEN_RETRY_MS = 1_000;
const OPEN_TIMEOUT_MS = 3_000;
/** A fetch waits for the first lane so long; it is opened all the same, for the next one. */
const PATIENCE_MS = 100;
/** The same of one for blocks that are being computed. */
const LONG_PATIENCE_MS = 1_000;

export interface LanesOptions {
  readonly network: Network;
  readonly mover: Mover;
  /** Records may come through memory that both ends share. */
  readonly isShared: boolean;
  readonly clock: Clock;
  readonly log: Log;
  readonly signal: AbortSignal;
}

interface Holder {
  readonly lanes: Set<Lane>;
  /** While one is being opened. */
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
  /** Which one this is on; empty: memory is not shared. */
  readonly #host: Promise<string>;

  constructor(options: LanesOptions) {
    this.#options = options;
    this.#host = options.isShared ? options.mover.call('host', undefined) : Promise.resolve('');
    // Who opens a lane hears of it.
    this.#host.catch(() => undefined);
    options.mover.listeners.add((event) => {
      this.#on(event);
    });
  }

  /** To all holders. */
  get numSocketStreams(): number {
    let count = 0;
    for (const lane of this.#open.values()) count += lane.numSocketStreams;
    return count;
  }

  /** A lane to the holder at this address, the idlest; undefined: fetch over calls. `hasTime`: there is nothing yet. Never throws. */
  async to(address: string, hasTime = false): Promise<Lane | undefined> {
    const holder = this.#holder(address);
    if (holder.lanes.size === 0) await this.#opened(address, holder, hasTime ? LONG_PATIENCE_MS : PATIENCE_MS);
    let best: Lane | undefined;
    for (const lane of holder.lanes) if (!best || lane.numStreams < best.numStreams) best = lane;
    // The next one finds another.
    if (best && best.numStreams > 0 && holder.lanes.size < MAX_LANES) void this.#opened(address, holder, 0);
    return best;
  }

  /** Until one more is open, or is not waited for. */
  async #opened(address: string, holder: Holder, patienceMs: number): Promise<void> {
    const { clock, signal } = this.#options;
    if (clock.nowMs() < holder.retryMs || signal.aborted) return;
    const opening = (holder.opening ??= this.#connect(address, holder).finally(() => {
      holder.opening = undefined;
    }));
    const isThere = new AbortController();
    await Promise.race([opening, clock.sleep(patienceMs, isThere.signal)]);
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
      const host = await this.#host;
      reply = await askOnce(network, address, 'openLane', { host }, { signal, timeoutMs: OPEN_TIMEOUT_MS });
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
    const { port, token, memory } = reply;
    mover.tell('connect', { lane: number, host, port, token, memory });
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
      for (const arrived of event.arrivals) this.#open.get(arrived.lane)?.arrived(arrived);
    else if (event.kind === 'dropped') this.#open.get(event.lane)?.dropped(event.stream);
  }
}
