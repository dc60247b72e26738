/** Identity of this process for file leases, and the kept cluster tokens of its user. */
import { join } from 'node:path';
import { systemClock } from '../../shared/base/clock.ts';
import { dataHome } from '../../shared/base/data_home.ts';
import type { LeaseProcess } from '../../shared/base/file_lease.ts';
import { newId } from '../../shared/base/identity.ts';
import { ClusterTokens } from './cluster_tokens.ts';

/** Identity of this process in the leases that it claims, with the functions that leases need. */
export const leaseProcess: LeaseProcess = { clock: systemClock, newId, pid: process.pid, isRunning };

/** Cluster tokens that `penstock up` keeps for the commands of this user. */
export const clusterTokens = new ClusterTokens(join(dataHome, 'clusters'), leaseProcess);

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    // EPERM: the process exists and belongs to another user.
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
