/** Lets one process at a time download the files of a model; the others wait and then find them in the cache. */
import { join } from 'node:path';
import type { Clock } from '../base/clock.ts';
import { claimLease, LeaseTaken, type LeaseProcess } from '../base/file_lease.ts';

const LEASE = '.penstock.lock';
const POLL_MS = 250;
/** Milliseconds without a renewal after which the lease of a process outside this process table is taken over. */
const WATCH_MS = 15_000;

/** Settings and callbacks of the lease under which one process downloads a model. */
export interface ModelLeaseOptions {
  readonly clock: Clock;
  /** This process, as the owner of leases. */
  readonly lease: Omit<LeaseProcess, 'clock'>;
  readonly signal?: AbortSignal;
  /** Called with a message for the user when something unexpected happens, for instance a wait. */
  readonly onNote?: (note: string) => void;
}

/**
 * Waits until this process may download the model. @returns a function that releases the lease.
 * @throws the signal's reason; Error when the folder is not writable.
 */
export async function leaseModel(
  folder: string,
  { clock, lease, signal, onNote }: ModelLeaseOptions,
): Promise<() => void> {
  const path = join(folder, LEASE);
  let hasNoted = false;
  const onWatching = (): void => {
    if (!hasNoted) onNote?.(`another process is already downloading this model (${path}); waiting for it`);
    hasNoted = true;
  };
  const onLost = (owner: string): void =>
    onNote?.(`${owner} downloads this model too, because this process stood still and lost its lease`);
  for (;;) {
    signal?.throwIfAborted();
    try {
      const held = await claimLease(path, { ...lease, clock }, { watchMs: WATCH_MS, onLost, onWatching, signal });
      return held.release;
    } catch (error) {
      if (!(error instanceof LeaseTaken)) throw error;
    }
    onWatching();
    await clock.sleep(POLL_MS, signal);
  }
}
