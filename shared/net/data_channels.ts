/**
 * An asker's data channels, in its control thread: up to MAX_CHANNELS to each holder that serves data channels, opened at the first
 * fetch from it.
 *
 * Bounds (P1): MAX_CHANNELS to one holder, MAX_HOLDERS. While a holder has no open data channel, its blocks come over calls. A
 * failed attempt to open a channel is repeated after RETRY_MS at the earliest, and after BROKEN_RETRY_MS when an open channel broke.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import { DONE } from '../base/signal.ts';
import type { ChannelReply } from '../protocol/messages.ts';
import { DataChannel } from './data_channel.ts';
import type { TransferThread } from './transfer_thread/transfer_thread.ts';
import type { TransferThreadEvent } from './transfer_thread/transfer_methods.ts';
import { askOnce, type Network } from './network.ts';

const MAX_CHANNELS = 4;
const MAX_HOLDERS = 4_096;
const RETRY_MS = 30_000;
const BROKEN_RETRY_MS = 1_000;
const OPEN_TIMEOUT_MS = 3_000;
/** Milliseconds a fetch waits for the first data channel to a holder. The channel is still opened after that, for later fetches. */
const PATIENCE_MS = 100;
/** Milliseconds a fetch of blocks still being computed waits for the first data channel. */
const LONG_PATIENCE_MS = 1_000;

/** Dependencies and settings of {@link DataChannels}. */
export interface DataChannelsOptions {
  readonly network: Network;
  readonly transferThread: TransferThread;
  /** Records may come through memory that both ends share. */
  readonly isShared: boolean;
  readonly clock: Clock;
  readonly log: Log;
  readonly signal: AbortSignal;
}

interface Holder {
  readonly channels: Set<DataChannel>;
  /** Set while a data channel to the holder is being opened. */
  opening: Promise<void> | undefined;
  /** Earliest time of the next attempt to open a data channel. */
  retryMs: number;
}

/** Asker's side of data channels: opens a few to each holder on demand and shares them among the fetches of this process. */
export class DataChannels {
  readonly #options: DataChannelsOptions;
  readonly #holders = new Map<string, Holder>();
  /** Open data channels, by their number in the transfer thread. */
  readonly #open = new Map<number, DataChannel>();
  /** Data channels that are being opened, by number; each callback receives whether the channel opened. */
  readonly #coming = new Map<number, (isOpen: boolean) => void>();
  #next = 1;
  /** Id of the host this process runs on; empty when memory is not shared. */
  readonly #host: Promise<string>;

  constructor(options: DataChannelsOptions) {
    this.#options = options;
    this.#host = options.isShared ? options.transferThread.call('host', undefined) : Promise.resolve('');
    // The failure is reported when a data channel is opened; this handler only keeps the rejection from being unhandled.
    this.#host.catch(() => undefined);
    options.transferThread.listeners.add((event) => {
      this.#on(event);
    });
  }

  /** Number of streams, over all data channels of this process, whose records are on their way through a socket. */
  get numSocketStreams(): number {
    let count = 0;
    for (const channel of this.#open.values()) count += channel.numSocketStreams;
    return count;
  }

  /**
   * Returns the data channel with the fewest streams to the holder at this address; undefined when blocks must come over calls. With
   * `hasTime`, when the blocks are still being computed, it waits longer for the first channel. Never throws.
   */
  async to(address: string, hasTime = false): Promise<DataChannel | undefined> {
    const holder = this.#holder(address);
    if (holder.channels.size === 0) await this.#opened(address, holder, hasTime ? LONG_PATIENCE_MS : PATIENCE_MS);
    let best: DataChannel | undefined;
    for (const channel of holder.channels) if (!best || channel.numStreams < best.numStreams) best = channel;
    // Every open channel is in use: open one more for the next fetch.
    if (best && best.numStreams > 0 && holder.channels.size < MAX_CHANNELS) void this.#opened(address, holder, 0);
    return best;
  }

  /** Opens one more data channel; resolves when it is open, when opening failed, or after `patienceMs`. */
  async #opened(address: string, holder: Holder, patienceMs: number): Promise<void> {
    const { clock, signal } = this.#options;
    if (clock.nowMs() < holder.retryMs || signal.aborted) return;
    const opening = (holder.opening ??= this.#connect(address, holder).finally(() => {
      holder.opening = undefined;
    }));
    const isThere = new AbortController();
    await Promise.race([opening, clock.sleep(patienceMs, isThere.signal)]);
    isThere.abort(DONE);
  }

  #holder(address: string): Holder {
    const known = this.#holders.get(address);
    if (known) return known;
    const holder: Holder = { channels: new Set(), opening: undefined, retryMs: -Infinity };
    this.#holders.set(address, holder);
    if (this.#holders.size > MAX_HOLDERS) {
      const idle = [...this.#holders].find(
        ([, { channels, opening }]) => !opening && [...channels].every(({ numStreams }) => numStreams === 0),
      );
      if (idle) {
        for (const { number } of idle[1].channels) this.#options.transferThread.notify('close', number);
        this.#holders.delete(idle[0]);
      }
    }
    return holder;
  }

  async #connect(address: string, holder: Holder): Promise<void> {
    const { network, transferThread, clock, log, signal } = this.#options;
    let reply: ChannelReply;
    try {
      const host = await this.#host;
      reply = await askOnce(network, address, 'openChannel', { host }, { signal, timeoutMs: OPEN_TIMEOUT_MS });
    } catch (error) {
      holder.retryMs = clock.nowMs() + RETRY_MS;
      log.debug({ address, error: messageOf(error) }, 'no data channel: blocks come over calls');
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
    transferThread.notify('connect', { channel: number, host, port, token, memory });
    const isOpen = await opened;
    answered.abort(DONE);
    this.#coming.delete(number);
    if (!isOpen) {
      transferThread.notify('close', number);
      holder.retryMs = clock.nowMs() + RETRY_MS;
      log.warn(
        { address, port: reply.port },
        'cannot open a data channel: blocks are fetched over gRPC instead; check that the port can be reached (--bulk-port of the other process)',
      );
      return;
    }
    const channel = new DataChannel(transferThread, clock, number, reply.channel, (isBroken) => {
      holder.channels.delete(channel);
      if (isBroken) holder.retryMs = clock.nowMs() + BROKEN_RETRY_MS;
    });
    this.#open.set(number, channel);
    holder.channels.add(channel);
  }

  #on(event: TransferThreadEvent): void {
    if (event.kind === 'opened' || event.kind === 'lost') {
      this.#coming.get(event.channel)?.(event.kind === 'opened');
    }
    if (event.kind === 'lost') {
      this.#open.get(event.channel)?.lost(event.reason);
      this.#open.delete(event.channel);
    } else if (event.kind === 'arrived')
      for (const arrived of event.incoming) this.#open.get(arrived.channel)?.arrived(arrived);
    else if (event.kind === 'dropped') this.#open.get(event.channel)?.dropped(event.stream);
  }
}
