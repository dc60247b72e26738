/** Logs whether the router can call this process at its address, each time that changes. */
import type { Log } from '../base/log.ts';

/** Logs each change of whether the router can call this process: a warning with the cause, or an info line once it can. */
export class ReachNotice {
  readonly #log: Log;
  readonly #address: string;
  /** The cause that was logged last; undefined: none, or the router has reached this process since. */
  #cause: string | undefined;

  constructor(log: Log, address: string) {
    this.#log = log;
    this.#address = address;
  }

  /** `cause` undefined: the router reaches this process. */
  show(cause: string | undefined): void {
    if (cause === this.#cause) return;
    this.#cause = cause;
    const address = this.#address;
    if (cause === undefined) this.#log.info({ address }, 'the router reaches this process');
    else
      this.#log.warn(
        { address, cause },
        'the router cannot call this process, so it gets no requests: set --advertise HOST:PORT to an address that the router can reach; with TLS, check that its certificate names that host',
      );
  }
}
