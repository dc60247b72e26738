/** This process as its leases name it. */
import { systemClock } from '../../shared/base/clock.ts';
import type { LeaseProcess } from '../../shared/base/file_lease.ts';
import { newId } from '../../shared/base/identity.ts';

/** Identity of this process in the leases that it claims, with the functions that leases need. */
export const leaseProcess: LeaseProcess = { clock: systemClock, newId, pid: process.pid, isRunning };

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    // A process of another user runs too.
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
