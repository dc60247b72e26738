/** Surroundings of the page as an argument of what depends on time and network: the browser (browser.ts), or those of a test. */

/** Connection that receives server-sent events. */
export interface EventConnection {
  /** Ends the connection. */
  close(): void;
}

/** Receivers of what an event connection brings. */
export interface EventReceiver {
  /** Called with the data of each event `tick`. */
  onTick(data: string): void;
  /** Called once when the connection failed or ended; it is closed then. `refusal`: the router's words where it refused the connection. */
  onEnd(refusal?: string): void;
}

/** Surroundings of the page. */
export interface Host {
  /** Milliseconds since 1970. */
  now(): number;
  /** Calls `run` after `ms`. @returns a function that prevents it. */
  later(ms: number, run: () => void): () => void;
  /** Whether somebody can see the page. */
  isVisible(): boolean;
  /** Calls `changed` whenever the page becomes visible or hidden, for as long as the page lives. */
  onVisibility(changed: () => void): void;
  /** Opens server-sent events from `path`. */
  openEvents(path: string, receiver: EventReceiver): EventConnection;
}
