/** Contract between a role and the process it runs in. A role is a function of its {@link Host} and depends on nothing else. */
import type { Clock } from '../base/clock.ts';
import type { Current } from '../base/current.ts';
import type { Log } from '../base/log.ts';
import type { Random } from '../base/random.ts';
import type { Threads } from '../base/threads.ts';
import type { Tracing } from '../base/tracing/tracing.ts';
import type { OpenBus } from '../bus/bus.ts';
import type { TransferLimits } from '../net/fetch/transfer_bounds.ts';
import type { Network } from '../net/network.ts';
import type { ServerTexts, TlsTexts } from '../net/tls_texts.ts';
import type { Role } from '../protocol/membership.ts';
import type { ProcessConfig } from './options.ts';

/** The access that other users of the machine had to a folder, as it was found. */
export interface FolderAccess {
  /** Files and folders that others could use, and can no longer. */
  readonly narrowed: readonly string[];
  /** Those that others can use still, because this process may not change them. */
  readonly open: readonly { readonly path: string; readonly why: string }[];
}

/** A folder that a process has to itself. */
export interface DataFolder extends FolderAccess {
  readonly path: string;
  /** Lets other processes use the folder. */
  release(): void;
}

/** Data folders on this machine, each used by one process at a time. */
export interface DataFolders {
  /** Checks that nobody else uses the folder. @throws Error when another process that is visible from here has it. */
  refuseShared(dataDir: string, name: string): void;
  /**
   * Claims the folder for this process; `onLost` is called when another process has taken it over. @throws Error when another live
   * process has it, or it cannot be created.
   */
  claim(dataDir: string, name: string, onLost: (error: Error) => void): Promise<DataFolder>;
}

/** Limits that tests narrow; an absent one has its production value. */
export interface HostLimits {
  readonly transfer?: TransferLimits;
  /** Most bytes of published messages that are kept while the hub does not read. */
  readonly backlogBytes?: number;
  /** Bits of a block key, as KeyChain takes them. */
  readonly keyBits?: number;
}

/**
 * Serves `text` at `/metrics` of an address, HOST:PORT. Rejects with an Error that names the address when it cannot listen there.
 */
export type ServeMetrics = (
  bind: string,
  text: () => Promise<string>,
) => Promise<{ readonly url: string; readonly close: () => Promise<void> }>;

/** Files that belong together, and what their texts make; read again when they change. */
export interface WatchedFiles<T> {
  /** Name of what they hold, for the log, such as "certificate of this process". */
  readonly name: string;
  readonly files: readonly string[];
  /** Most bytes of each (P1), at the start and later; left out: 1 MiB later. */
  readonly maxBytes?: number;
  /** Whether `read` may take texts later that it refuses now, such as a certificate that is not valid yet; left out: never. */
  readonly dependsOnTime?: boolean;
  /**
   * Returns what the texts of the files make, in their order. `old` is used now; undefined at the start. @throws Error with what to do, when
   * they cannot be used.
   */
  readonly read: (texts: readonly string[], old: T | undefined) => T;
  /** Returns fields of the log that tell what is used now; no secrets. */
  readonly shown: (value: T) => object;
  /** Words for the log on who is concerned by a change; left out: connections that begin now use it. */
  readonly effect?: string;
}

/**
 * Reads files, and again within two seconds of each change until `signal` aborts. What cannot be used later is reported, and the last that
 * could is kept. @throws ConfigError for files that cannot be used at the start
 */
export type WatchFiles = <T>(files: WatchedFiles<T>, flag: string, signal: AbortSignal) => Current<T>;

/** A file that only grows, such as a log of requests. Callers append one text at a time. */
export interface Appender {
  /**
   * Appends a text to the file of this name: one that was renamed or removed since is opened anew. Rejects with the error of the machine,
   * and has then appended nothing of the text as far as the disk lets it be taken back.
   */
  append(text: string): Promise<void>;
  /** Closes the file. */
  close(): Promise<void>;
}

/**
 * Opens a file to append to; a new one is for this user alone. Rejects with a ConfigError that names `flag` and what to do where it cannot be
 * written.
 */
export type OpenAppender = (file: string, flag: string) => Promise<Appender>;

/** The machine as a process sees it. `services/cli` builds the real one, tests build theirs. */
export interface Host {
  readonly clock: Clock;
  readonly random: Random;
  /** Returns a new unique id, for requests and epochs. */
  readonly newId: () => string;
  readonly log: Log;
  readonly network: Network;
  /** PEM texts with which this process identifies itself to peers; undefined when traffic between processes is not encrypted. */
  readonly tls: Current<TlsTexts> | undefined;
  /** Certificate with which a router serves its HTTP API; undefined without --https-cert, and absent for other roles. */
  readonly https?: Current<ServerTexts> | undefined;
  /** Tokens of the cluster (cluster_tokens.ts), under which messages of its bus are sealed. */
  readonly clusterTokens: Current<string>;
  /** 128 random bits that name this process's end of the bus (ClusterBus): never the same for two processes. */
  readonly busEpoch: Buffer;
  /** Opens the cluster's bus on a NATS server; undefined when the router is the hub. */
  readonly openBus: OpenBus | undefined;
  /** Serves the series of this process over HTTP at an address of `--metrics-bind`. */
  readonly serveMetrics: ServeMetrics;
  readonly threads: Threads;
  readonly watchFiles: WatchFiles;
  readonly openAppender: OpenAppender;
  /** Destination of spans; undefined without `--otlp-endpoint`. */
  readonly tracing?: Tracing | undefined;
  readonly folders: DataFolders;
  /** This process, and this incarnation of it. */
  readonly identity: { readonly pid: number; readonly epoch: string };
  /** Bounds that tests narrow. */
  readonly limits?: HostLimits;
  /** Reports loading progress to the parent process, or on a terminal. */
  readonly showLoading?: (doneBytes: number, totalBytes: number) => void;
  /** Ends the process at once, without a destructor. */
  readonly die: () => void;
  /** Kills a process that a thread of this process has started. */
  readonly kill: (pid: number) => void;
}

/** Host and configuration that a role starts with; the configuration comes from the role's own option table. */
export interface RoleContext<Config extends ProcessConfig = ProcessConfig> extends Host {
  readonly role: Role;
  readonly config: Config;
  /** Logs why the process cannot go on, and ends it. */
  readonly fail: (error: unknown) => void;
  /** Begins to drain the process, which ends when running work is finished; a second call does nothing. */
  readonly drain: () => void;
}

/** Description of a process that is ready, for the log line and the parent process. */
export interface Ready {
  readonly name: string;
  /** HOST:PORT at which the process serves calls; for a router that is the hub, the hub's address. */
  readonly address: string;
  /** Router only: the bus that other processes join, in words, such as `hub HOST:PORT`. */
  readonly bus?: string;
  /** Router only: URL of its HTTP API. */
  readonly url?: string;
  readonly device?: string;
  readonly model?: string;
  /** Router only: resolves when it can answer requests, because an instance that generates has joined, or `signal` aborts. */
  readonly serves?: (signal: AbortSignal) => Promise<void>;
}

/** A role that has joined its cluster and serves. */
export interface RunningRole {
  readonly ready: Ready;
  /** Finishes what runs, takes nothing new; resolves when nothing is left. */
  drain(): Promise<void>;
}

/**
 * Type of the function that `services/ROLE/main.ts` exports as `start`. @throws Error when the role cannot start, before it promises
 * anything.
 */
export type StartRole<Config extends ProcessConfig> = (context: RoleContext<Config>) => Promise<RunningRole>;
