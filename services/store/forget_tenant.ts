/** Deletes the blocks of a tenant from a store: in DRAM, then on disk with its key, then in DRAM what was read from disk meanwhile. */
import type { Clock } from '../../shared/base/clock.ts';
import { DONE, linkSignals } from '../../shared/base/signal.ts';
import type { TenantId } from '../../shared/kv/block_key.ts';
import { forgetRecords } from '../../shared/kv/forget_records.ts';
import type { Forgotten } from '../../shared/net/forget_handler.ts';
import type { StoreTiers } from './tiers.ts';

/** Milliseconds that reads from disk have to end; a disk that hangs must not hold the call. */
const READS_MS = 10_000;

/**
 * Deletes a tenant's blocks. Blocks that an offer brings meanwhile may stay. @throws Failure when the disk has not deleted them; the call is
 * to be made again then.
 */
export async function forgetTenant(
  tiers: StoreTiers,
  tenant: TenantId,
  clock: Clock,
  signal: AbortSignal,
): Promise<Forgotten> {
  const before = await forgetRecords(tiers.dram, tenant, clock, signal);
  const disk = await tiers.disk.forget(tenant);
  const waited = linkSignals(signal);
  await Promise.race([tiers.promotionsEnded(), clock.sleep(READS_MS, waited.signal)]);
  waited.abort(DONE);
  waited.release();
  const after = await forgetRecords(tiers.dram, tenant, clock, signal);
  const all = [before.bytes, after.bytes, disk.bytes];
  return {
    blocks: new Set(all.flatMap((one) => [...one.keys()])).size,
    bytes: all.flatMap((one) => [...one.values()]).reduce((sum, bytes) => sum + bytes, 0),
    inUse: after.numPinned,
    isFinal: disk.isFinal,
  };
}
