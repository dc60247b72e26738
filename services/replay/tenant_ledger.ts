/**
 * Milliseconds of one simulated engine by tenant, and how much of them each should have had.
 *
 *   several tenants wait: each is entitled to its weight's part of every millisecond that the engine works
 *   one tenant waits, or none: everybody has what it asks for, and nothing is counted
 */

import type { SequenceRequest } from '../../shared/engine/sequence_request.ts';

/** Milliseconds of an engine for one tenant. */
export interface TenantTime {
  /** All that its requests took. */
  engineMs: number;
  /** Those that they took while requests of it and of another tenant waited, and those of the engine that were its share then. */
  contendedMs: number;
  entitledMs: number;
}

/** Counts the milliseconds of one engine. */
export class TenantLedger {
  readonly #weightOf: (tenant: string) => number;
  /** Those of the trace (P1). */
  readonly #times = new Map<string, TenantTime>();
  /** Sequences of each tenant that wait. */
  readonly #waiting = new Map<string, number>();
  /** Milliseconds that were charged since the set of tenants that wait has changed. */
  #sinceMs = 0;

  constructor(weightOf: (tenant: string) => number) {
    this.#weightOf = weightOf;
  }

  /** A sequence of the tenant waits: it has come. */
  waits(tenant: string): void {
    const count = this.#waiting.get(tenant) ?? 0;
    if (count === 0) this.#divide();
    this.#waiting.set(tenant, count + 1);
  }

  /** A sequence of the tenant waits again. */
  preempted(tenant: string): void {
    this.waits(tenant);
  }

  /** A sequence of the tenant that waited is served. */
  admitted(tenant: string): void {
    const count = this.#waiting.get(tenant) ?? 0;
    if (count > 1) this.#waiting.set(tenant, count - 1);
    else {
      this.#divide();
      this.#waiting.delete(tenant);
    }
  }

  /** Charges for a sequence of a production engine. */
  readonly charged = ({ sharer }: SequenceRequest, ms: number): void => {
    this.charge(sharer?.tenant ?? '', ms);
  };

  charge(tenant: string, ms: number): void {
    const time = this.#of(tenant);
    time.engineMs += ms;
    if (this.#waiting.size < 2) return;
    this.#sinceMs += ms;
    if (this.#waiting.has(tenant)) time.contendedMs += ms;
  }

  /** Returns the milliseconds of each tenant that was charged. */
  times(): ReadonlyMap<string, Readonly<TenantTime>> {
    this.#divide();
    return this.#times;
  }

  /** Divides the milliseconds since the last call among the tenants that waited. */
  #divide(): void {
    if (this.#sinceMs === 0) return;
    let weights = 0;
    for (const tenant of this.#waiting.keys()) weights += this.#weightOf(tenant);
    for (const tenant of this.#waiting.keys())
      this.#of(tenant).entitledMs += (this.#sinceMs * this.#weightOf(tenant)) / weights;
    this.#sinceMs = 0;
  }

  #of(tenant: string): TenantTime {
    let time = this.#times.get(tenant);
    if (!time) this.#times.set(tenant, (time = { engineMs: 0, contendedMs: 0, entitledMs: 0 }));
    return time;
  }
}
