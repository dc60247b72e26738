/**
 * Random cluster tokens of `penstock up`, kept for the other commands of the same user: one file per hub address, readable by its owner
 * only. Two hubs of a machine never have one address, so clusters are not mixed up.
 *
 *   up ──keep──► clusters/127.0.0.1_8001.json ──find──► policy, prefill, decode, store
 *    └──ends, or is started anew──► removed, overwritten        └── its `up` has ended: the token is not used, and messages say why
 */
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { markOf, stateOf, type LeaseProcess, type ProcessMark } from '../../shared/base/file_lease.ts';

/** Most files that are looked at for tokens of clusters that have ended (P1). */
const MAX_LOOKED_AT = 1_024;
/** Hosts by which a hub of this machine is reached as by 127.0.0.1. */
const LOCAL_HOST = /^(localhost|0\.0\.0\.0|\[::1?\])(?=:\d+$)/;

/** Token of a cluster, or why there is none. */
export interface FoundToken {
  /** Empty where none is kept, or its cluster has ended. */
  readonly token: string;
  /** For people, to be added to a message: which file was read, or missed; never the token. */
  readonly hint: string;
  /** Whether there is a file, of a cluster that does not run here any more. */
  readonly isOver: boolean;
}

/** Content of a token file. */
interface Kept extends ProcessMark {
  readonly address: string;
  readonly token: string;
}

/** The kept tokens of one user. */
export class ClusterTokens {
  readonly #folder: string;
  readonly #process: Pick<LeaseProcess, 'pid' | 'isRunning'>;

  /** `folder` is made when a token is kept. */
  constructor(folder: string, process: Pick<LeaseProcess, 'pid' | 'isRunning'>) {
    this.#folder = folder;
    this.#process = process;
  }

  /**
   * Keeps the token of the cluster whose hub listens at `address` (HOST:PORT), and removes those of clusters that have ended. Returns
   * the function that removes it again. @throws Error when the file cannot be written.
   */
  keep(address: string, token: string): () => void {
    mkdirSync(this.#folder, { recursive: true, mode: 0o700 });
    this.#removeEnded();
    const file = this.#fileOf(address);
    const kept: Kept = { address: normalised(address), token, ...markOf(this.#process.pid) };
    const text = `${JSON.stringify(kept)}\n`;
    // Renamed when it is complete: readers see all of it or nothing.
    const written = `${file}.${this.#process.pid}`;
    rmSync(written, { force: true });
    writeFileSync(written, text, { mode: 0o600, flag: 'wx' });
    renameSync(written, file);
    return () => {
      // A later cluster at this address has a file of its own.
      if (textOf(file) === text) rmSync(file, { force: true });
    };
  }

  /** Returns the token of the running cluster whose hub is reached at `address`. */
  find(address: string): FoundToken {
    const file = this.#fileOf(address);
    const kept = parse(textOf(file));
    const remedy = 'set PENSTOCK_CLUSTER_TOKEN to the token of the cluster';
    if (!kept)
      return { token: '', hint: `${remedy}: no \`penstock up\` of this user has left one in ${file}`, isOver: false };
    const state = stateOf(kept, this.#process.isRunning);
    if (kept.address === normalised(address) && state === 'running')
      return { token: kept.token, hint: `the token is from ${file}, of process ${kept.pid}`, isOver: false };
    const why = state === 'elsewhere' ? 'is of another container or machine' : 'has ended';
    const hint = `${remedy}: the \`penstock up\` of ${file} (process ${kept.pid}) ${why}`;
    return { token: '', hint, isOver: true };
  }

  #fileOf(address: string): string {
    return join(this.#folder, `${normalised(address).replaceAll(/[^A-Za-z0-9._-]/g, '_')}.json`);
  }

  #removeEnded(): void {
    for (const name of readdirSync(this.#folder).slice(0, MAX_LOOKED_AT)) {
      const file = join(this.#folder, name);
      const kept = parse(textOf(file));
      if (kept && stateOf(kept, this.#process.isRunning) === 'ended') rmSync(file, { force: true });
    }
  }
}

function normalised(address: string): string {
  return address.replace(LOCAL_HOST, '127.0.0.1');
}

function textOf(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    // Absent, or not this user's.
    return undefined;
  }
}

/** @returns undefined for a file that `keep` did not write. */
function parse(text: string | undefined): Kept | undefined {
  if (text === undefined) return undefined;
  try {
    const kept = JSON.parse(text) as Partial<Kept> | null;
    const isKept =
      Number.isInteger(kept?.pid) &&
      [kept?.start, kept?.namespace, kept?.boot, kept?.address, kept?.token].every((one) => typeof one === 'string');
    return isKept ? (kept as Kept) : undefined;
  } catch {
    return undefined;
  }
}
