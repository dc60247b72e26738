/** Deletes the records of a tenant from the disk tier, and its key where there is a disk key. */
import { Failure, messageOf } from '../../shared/base/failure.ts';
import type { Thread } from '../../shared/base/threads.ts';
import type { BlockKey, TenantId } from '../../shared/kv/block_key.ts';
import type { DiskIndex } from './disk_index.ts';
import type { DiskEntry } from './disk_process.ts';
import type { DiskEnvironment, DiskEnvironmentOptions } from './disk_environment.ts';
import type { DiskReader } from './disk_reader.ts';

/** Bytes of the records that were deleted, by key; and whether no copy of them can be read any more. */
export interface ForgottenOnDisk {
  readonly bytes: ReadonlyMap<BlockKey, number>;
  readonly isFinal: boolean;
}

/** Parts of a disk tier that take part. */
export interface DiskForgettingOptions extends Pick<DiskEnvironmentOptions, 'worker'> {
  readonly readers: readonly Pick<Thread<DiskReader>, 'call'>[];
  readonly budgetBytes: number;
  readonly index: DiskIndex;
  readonly environment: DiskEnvironment;
  /** Resolves when the puts that are under way have ended: they may be of the tenant. */
  readonly putsEnded: () => Promise<unknown>;
  /** Counts and logs a failure of the disk. */
  readonly failed: (error: unknown, what: string) => Promise<void>;
}

/** Deletes tenants' records. */
export class DiskForgetting {
  readonly #options: DiskForgettingOptions;

  constructor(options: DiskForgettingOptions) {
    this.#options = options;
  }

  /** @throws Failure when the disk cannot be used, or has not deleted them; then the call is to be made again. */
  async forget(tenant: TenantId): Promise<ForgottenOnDisk> {
    const { index, environment, worker, readers, budgetBytes, putsEnded, failed } = this.#options;
    const bytes = new Map<BlockKey, number>();
    if (budgetBytes === 0) return { bytes, isFinal: true };
    await putsEnded();
    const fault = this.#fault();
    if (fault !== undefined) throw new Failure('overloaded', `its disk cannot be used now: ${fault}`);
    const { generation } = environment;
    const dropped = this.#drop(tenant);
    try {
      const { isSealed } = await environment.answered(worker.call('forget', tenant));
      for (const entry of [...dropped, ...this.#drop(tenant)]) bytes.set(entry.key, entry.bytes);
      for (const reader of readers) void reader.call('dropKeys', undefined).catch(() => undefined);
      return { bytes, isFinal: isSealed };
    } catch (error) {
      await failed(error, 'the records of a tenant could not be deleted');
      if (this.#fault() === undefined && generation === environment.generation)
        for (const entry of dropped) index.add(entry);
      throw new Failure('overloaded', `its disk has not deleted them: ${messageOf(error)}`);
    }
  }

  #fault(): string | undefined {
    return this.#options.environment.fault;
  }

  /** Takes the tenant's records from the index, so that nobody reads them any more. */
  #drop(tenant: TenantId): DiskEntry[] {
    const { index } = this.#options;
    const entries = index.keysOf(tenant).flatMap((key) => index.get(key) ?? []);
    for (const { key } of entries) index.forget(key);
    return entries;
  }
}
