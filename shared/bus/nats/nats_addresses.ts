/** The servers of a NATS cluster: those that were configured, those that a connected one announced, and the credentials for them. */
import { messageOf } from '../../base/failure.ts';
import type { Log } from '../../base/log.ts';
import { withoutAccounts } from '../../base/options.ts';
import { addressesOf, type NatsServers } from './nats_options.ts';

/** Servers that are known besides the configured ones (P1). */
const MAX_DISCOVERED = 64;

/** Servers with credentials; a function is asked at each connection, so that secrets can be renewed in their files. */
export type ServersSource = NatsServers | (() => NatsServers);

/** Chooses the server of each attempt to connect. */
export class NatsAddresses {
  readonly #source: ServersSource;
  readonly #log: Log;
  /** The last credentials and addresses that could be read. */
  #known: NatsServers;
  /** Further servers, as the connected one announced them last (HOST:PORT each). */
  #discovered: readonly string[] = [];
  /** Number of the attempt. */
  #turn = 0;

  constructor(source: ServersSource, log: Log) {
    this.#source = source;
    this.#log = log;
    this.#known = typeof source === 'function' ? source() : source;
  }

  /** Names of the configured servers, without users, passwords and tokens. */
  get name(): string {
    return this.#known.urls.map(withoutAccounts).join();
  }

  /** Returns the server to try next, and whether each one has been tried by then. */
  next(): { readonly address: string; readonly isLast: boolean } {
    // Configured servers are never forgotten.
    const all = [...new Set([...addressesOf(this.#known), ...this.#discovered])];
    const address = all[this.#turn++ % all.length] ?? '';
    return { address, isLast: this.#turn % all.length === 0 };
  }

  /** Returns servers and credentials as they are now; the last ones where they cannot be read. */
  servers(): NatsServers {
    if (typeof this.#source !== 'function') return this.#known;
    try {
      this.#known = this.#source();
    } catch (error) {
      this.#log.warn({ error: messageOf(error) }, 'credentials of the bus cannot be read: the last ones are used');
    }
    return this.#known;
  }

  /** Learns which servers the connected one announces. */
  learn(announced: readonly string[] | undefined): void {
    if (announced && announced.length > 0) this.#discovered = announced.slice(0, MAX_DISCOVERED);
  }
}
