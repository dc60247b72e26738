/**
 * The page's connection to `/api/stream`: open while the page is visible, opened again after a failure, and watched, because a router that
 * hangs closes nothing. Values are stale when no tick came for three seconds.
 */
import type { StreamTick } from '../../shared/protocol/router_api.ts';
import type { EventConnection, Host } from './host.ts';
import type { Store } from './store.ts';

/** Milliseconds without a tick after which values are stale. */
const STALE_MS = 3_000;
/** Milliseconds without a tick after which the connection is opened again. */
const HUNG_MS = 10_000;
const CHECK_MS = 250;
const RETRY_MS = { first: 250, max: 2_000 };

/** Connection that keeps a store up to date. */
export class Stream {
  readonly #host: Host;
  readonly #store: Store;
  #connection: EventConnection | undefined;
  #openedAt = 0;
  #failures = 0;
  #cancelCheck = (): void => undefined;
  #cancelRetry = (): void => undefined;

  constructor(store: Store, host: Host) {
    this.#store = store;
    this.#host = host;
  }

  /** Opens the connection now, and whenever the page becomes visible. */
  start(): void {
    this.#host.onVisibility(() => this.#follow());
    this.#follow();
  }

  #follow(): void {
    this.#close();
    if (!this.#host.isVisible()) return;
    this.#failures = 0;
    this.#open();
    this.#check();
  }

  #open(): void {
    this.#cancelRetry();
    this.#connection?.close();
    this.#openedAt = this.#host.now();
    let isFirst = true;
    this.#connection = this.#host.openEvents('api/stream', {
      onTick: (data) => {
        this.#failures = 0;
        this.#store.apply(JSON.parse(data) as StreamTick, isFirst);
        this.#store.heardAt.value = this.#host.now();
        this.#store.liveness.value = 'live';
        this.#store.refusal.value = null;
        isFirst = false;
      },
      onEnd: (refusal) => {
        this.#connection = undefined;
        this.#store.refusal.value = refusal ?? null;
        if (refusal !== undefined) this.#store.liveness.value = 'stale';
        const wait = Math.min(RETRY_MS.max, RETRY_MS.first * 2 ** this.#failures++);
        this.#cancelRetry = this.#host.later(wait, () => this.#open());
      },
    });
  }

  #check(): void {
    const now = this.#host.now();
    const heardAt = this.#store.heardAt.peek();
    if (now - (heardAt ?? this.#openedAt) > STALE_MS) this.#store.liveness.value = 'stale';
    if (this.#connection && now - Math.max(heardAt ?? 0, this.#openedAt) > HUNG_MS) this.#open();
    this.#cancelCheck = this.#host.later(CHECK_MS, () => this.#check());
  }

  #close(): void {
    this.#cancelCheck();
    this.#cancelRetry();
    this.#connection?.close();
    this.#connection = undefined;
  }
}
