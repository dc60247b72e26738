/** The tenants of a run: whose share each request takes, and what the engines worked for each. */
import type { Sharer } from '../../shared/engine/fair_order.ts';
import type { Trace } from '../../shared/trace/trace.ts';
import { TenantLedger, type TenantTime } from './tenant_ledger.ts';

/** Weights of tenants by name; those that are not named have 1. */
export type TenantWeights = ReadonlyMap<string, number>;

/** Sharers of a trace's requests, and the ledgers of a run's instances. */
export class RunTenants {
  readonly #tenantIds: Int32Array | undefined;
  readonly #sharers: readonly Sharer[];
  readonly #nobody: Sharer;
  readonly #ledgers: TenantLedger[] = [];
  readonly #weights: TenantWeights;

  constructor({ columns }: Trace, weights: TenantWeights = new Map()) {
    this.#weights = weights;
    this.#tenantIds = columns.tenantIds;
    this.#sharers = columns.tenants.map((tenant) => ({ tenant, weight: weights.get(tenant) ?? 1 }));
    this.#nobody = { tenant: '', weight: weights.get('') ?? 1 };
  }

  /** Returns whose share request `i` takes. */
  sharerOf(i: number): Sharer {
    return this.#sharers[this.#tenantIds?.[i] ?? -1] ?? this.#nobody;
  }

  /** Returns the ledger of a further instance. */
  readonly ledgerOf = (): TenantLedger => {
    const ledger = new TenantLedger((tenant) => this.#weights.get(tenant) ?? 1);
    this.#ledgers.push(ledger);
    return ledger;
  };

  /** Returns the milliseconds of each tenant over all instances. */
  times(): ReadonlyMap<string, Readonly<TenantTime>> {
    const sums = new Map<string, TenantTime>();
    for (const ledger of this.#ledgers)
      for (const [tenant, { engineMs, contendedMs, entitledMs }] of ledger.times()) {
        const sum = sums.get(tenant) ?? { engineMs: 0, contendedMs: 0, entitledMs: 0 };
        sum.engineMs += engineMs;
        sum.contendedMs += contendedMs;
        sum.entitledMs += entitledMs;
        sums.set(tenant, sum);
      }
    return sums;
  }
}

/** Whether the requests of a trace are of several tenants. */
export function hasTenants({ tenantIds, tenants }: Trace['columns']): boolean {
  return tenants.length > 1 || (tenants.length === 1 && tenantIds?.includes(-1) === true);
}
