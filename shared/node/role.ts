/** What a role is to the process it runs in, and the process to it. A role is a function of its host: it touches nothing else. */
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

export interface DataFolders {
  /** @throws Error when a process that can be seen from here has it. */
  refuseShared(dataDir: string, name: string): void;
  /** `onLost`: another has it now. @throws Error when another live process has it, or it cannot be made. */
  claim(dataDir: string, name: string, onLost: (error: Error) => void): Promise<DataFolder>;
}

/** What a process takes at once; absent: what is right for real ones. */
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
  /** What is shown to others, where traffic between processes is encrypted. */
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

/** What a role gets; its configuration is that of its own table. */
export interface RoleContext<Config extends ProcessConfig = ProcessConfig> extends Host {
  readonly role: Role;
  readonly config: Config;
  /** The process cannot go on: says why and ends it. */
  readonly fail: (error: unknown) => void;
  /** Everything the role promised is finished: ends the process. */
  readonly drain: () => void;
}

export interface Ready {
  readonly name: string;
  /** HOST:PORT of its calls; for a router that is the hub, that of the hub. */
  readonly address: string;
  /** Of a router: where the others find it. */
  readonly bus?: string;
  /** Only the router has one. */
  readonly url?: string;
  readonly device?: string;
  readonly model?: string;
}

export interface RunningRole {
  readonly ready: Ready;
  /** Finishes what runs, takes nothing new; resolves when nothing is left. */
  drain(): Promise<void>;
}

/** What `services/ROLE/main.ts` exports as `start`. @throws Error before anything is promised. */
export type StartRole<Config extends ProcessConfig> = (context: RoleContext<Config>) => Promise<RunningRole>;
