/** Deletes the records of a tenant from host memory, as soon as nobody reads them or writes them down. */
import type { Clock } from '../base/clock.ts';
import type { BlockKey, TenantId } from './block_key.ts';
import type { RecordCache } from './record_cache.ts';

/** Milliseconds between two looks at records that are pinned, and until they are left as they are. */
const LOOK_MS = 20;
const PATIENCE_MS = 10_000;

/** Bytes of the records that were deleted, by key; and how many are still pinned. */
export interface ForgottenRecords {
  readonly bytes: ReadonlyMap<BlockKey, number>;
  readonly numPinned: number;
}

/** Deletes a tenant's records. Waits up to PATIENCE_MS, or until `signal` aborts, for those that are pinned. */
export async function forgetRecords(
  cache: RecordCache,
  tenant: TenantId,
  clock: Clock,
  signal: AbortSignal,
): Promise<ForgottenRecords> {
  const bytes = new Map<BlockKey, number>();
  const untilMs = clock.nowMs() + PATIENCE_MS;
  for (;;) {
    const { removed, numPinned } = cache.forget(tenant);
    for (const record of removed) bytes.set(record.hash.key, record.bytes);
    if (numPinned === 0 || signal.aborted || clock.nowMs() >= untilMs) return { bytes, numPinned };
    await clock.sleep(LOOK_MS, signal);
  }
}
