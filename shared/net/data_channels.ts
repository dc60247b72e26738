/**
 * An asker's data channels, in its control thread: one or a few to each holder that has any, opened when it is first asked.
 *
 * Bounds (P1): MAX_CHANNELS to one holder, MAX_HOLDERS. A holder that cannot be reached this way,
 * or not at once, is fetched from over calls, and tried again after RETRY_MS; one whose data channel broke, after BROKEN_RETRY_MS.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import { DONE } from '../base/signal.ts';
import type { ChannelReply } from '../protocol/messages.ts';
import { DataChannel } from './data_channel.ts';
import type { TransferThread } from './transfer_thread/transfer_thread.ts';
import type { TransferThreadEvent } from './transfer_thread/transfer_worker.ts';
import { askOnce, type Network } from './network.ts';

const MAX_CHANNELS = 4;
const MAX_HOLDERS = 4_096;
const RETRY_MS = 30_000;
const BROKEN_RETRY_MS = 1_000;
const OPEN_TIMEOUT_MS = 3_000;
/** A fetch waits for the first data channel so long; it is opened all the same, for the next one. */
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
  /** While one is being opened. */
  opening: Promise<void> | undefined;
  /** Not tried before. */
  retryMs: number;
}

/** Asker's side of data channels: opens a few to each holder on demand and shares them among the fetches of this process. */
export class DataChannels {
  readonly #options: DataChannelsOptions;
  readonly #holders = new Map<string, Holder>();
  /** Open data channels, by their number in the transfer thread. */
  readonly #open = new Map<number, DataChannel>();
  /** Data channels that are being opened: told true or false. */
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

  /** To all holders. */
  get numSocketStreams(): number {
    let count = 0;
    for (const channel of this.#open.values()) count += channel.numSocketStreams;
    return count;
  }

  /** A data channel to the holder at this address, the idlest; undefined: fetch over calls. `hasTime`: there is nothing yet. Never throws. */
  async to(address: string, hasTime = false): Promise<DataChannel | undefined> {
    const holder = this.#holder(address);
    if (holder.channels.size === 0) await this.#opened(address, holder, hasTime ? LONG_PATIENCE_MS : PATIENCE_MS);
    let best: DataChannel | undefined;
    for (const channel of holder.channels) if (!best || channel.numStreams < best.numStreams) best = channel;
    // The next one finds another.
    if (best && best.numStreams > 0 && holder.channels.size < MAX_CHANNELS) void this.#opened(address, holder, 0);
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
      log.warn({ address, port: reply.port }, 'the data channel cannot be opened: blocks come over calls');
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
