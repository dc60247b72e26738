/** One process at a time brings the files of a model; the others wait, and find them there. */
import { join } from 'node:path';
import type { Clock } from '../base/clock.ts';
import { claimLease, LeaseTaken, type LeaseProcess } from '../base/file_lease.ts';

const LEASE = '.penstock.lock';
const POLL_MS = 250;
/** A download whose process cannot be seen is over when its lease has not been renewed for so long. */
const WATCH_MS = 15_000;

/** Settings and callbacks of the lease under which one process downloads a model. */
export interface ModelLeaseOptions {
  readonly clock: Clock;
  /** This process, which leases a model while it brings its files. */
  readonly lease: Omit<LeaseProcess, 'clock'>;
  readonly signal?: AbortSignal;
  /** For people: what goes otherwise than planned. */
  readonly onNote?: (note: string) => void;
}

/**
 * Resolves when this process may bring the model. @returns a function that ends the lease.
 * @throws the signal's reason; Error when the folder takes no files.
 */
export async function leaseModel(
  folder: string,
  { clock, lease, signal, onNote }: ModelLeaseOptions,
): Promise<() => void> {
  const path = join(folder, LEASE);
  let hasSaid = false;
  const onWatching = (): void => {
    if (!hasSaid) onNote?.(`another process is bringing it already (${path}); waiting`);
    hasSaid = true;
  };
  const onLost = (owner: string): void => onNote?.(`${owner} brings it too: this one stood still`);
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
