/** A cluster that has started, by whatever runs its roles. */
export interface RunningCluster {
  readonly url: string;
  /** Those of all routers, where there are several. */
  readonly urls?: readonly string[];
  /** Address at which other processes join. */
  readonly hub: string;
  /** Lines that it has printed on standard error. */
  readonly errors: string[];
  pidOf(name: string): number;
  kill(name: string, signal: NodeJS.Signals): void;
  /** Drains it. */
  end(): Promise<void>;
  /** Ends it at once. */
  crash(): Promise<void>;
}
