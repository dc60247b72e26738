/** Identity of this process for file leases. */
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
    // EPERM: the process exists and belongs to another user.
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
