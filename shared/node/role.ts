/** Contract between a role and the process it runs in. A role is a function of its {@link Host} and depends on nothing else. */
import type { Clock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import type { Random } from '../base/random.ts';
import type { Threads } from '../base/threads.ts';
import type { OpenBus } from '../bus/bus.ts';
import type { TransferLimits } from '../net/fetch/transfer_bounds.ts';
import type { Network } from '../net/network.ts';
import type { TlsTexts } from '../net/tls_texts.ts';
import type { Role } from '../protocol/membership.ts';
import type { ProcessConfig } from './options.ts';

/** A folder that a process has to itself. */
export interface DataFolder {
  readonly path: string;
  release(): void;
}

/** Data folders on this machine, each used by one process at a time. */
export interface DataFolders {
  /** @throws Error when a process that can be seen from here has it. */
  refuseShared(dataDir: string, name: string): void;
  /** `onLost`: another has it now. @throws Error when another live process has it, or it cannot be made. */
  claim(dataDir: string, name: string, onLost: (error: Error) => void): Promise<DataFolder>;
}

/** Limits that tests narrow; an absent one has its production value. */
export interface HostLimits {
  readonly transfer?: TransferLimits;
  /** Published while the hub does not read, and kept for it. */
  readonly backlogBytes?: number;
  /** Bits of a block key, as KeyChain takes them. */
  readonly keyBits?: number;
}

/** The machine as a process sees it. `services/cli` builds the real one, tests build theirs. */
export interface Host {
  readonly clock: Clock;
  readonly random: Random;
  /** Names for what must differ: requests, epochs. */
  readonly newId: () => string;
  readonly log: Log;
  readonly network: Network;
  /** PEM texts with which this process identifies itself to peers; undefined when traffic between processes is not encrypted. */
  readonly tls: TlsTexts | undefined;
  /** The cluster's bus where a server is it; without one the router is the hub. */
  readonly openBus: OpenBus | undefined;
  readonly threads: Threads;
  readonly folders: DataFolders;
  /** This process, and this incarnation of it. */
  readonly identity: { readonly pid: number; readonly epoch: string };
  /** Bounds that tests narrow. */
  readonly limits?: HostLimits;
  /** Shows people how far loading is, where they look on. */
  readonly showLoading?: (doneBytes: number, totalBytes: number) => void;
  /** Ends the process at once, without a destructor. */
  readonly die: () => void;
  /** Ends a process that one of this one's threads has started. */
  readonly kill: (pid: number) => void;
}

/** Host and configuration that a role starts with; the configuration comes from the role's own option table. */
export interface RoleContext<Config extends ProcessConfig = ProcessConfig> extends Host {
  readonly role: Role;
  readonly config: Config;
  /** The process cannot go on: says why and ends it. */
  readonly fail: (error: unknown) => void;
  /** Everything the role promised is finished: ends the process. */
  readonly drain: () => void;
}

/** Description of a process that is ready, for the log line and the parent process. */
export interface Ready {
  readonly name: string;
  /** HOST:PORT of its calls; for a router that is the hub, that of the hub. */
  readonly address: string;
  /** Router only: the bus that other processes join, in words, such as `hub HOST:PORT`. */
  readonly bus?: string;
  /** Only the router has one. */
  readonly url?: string;
  readonly device?: string;
  readonly model?: string;
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
