/** Deletes the blocks of a tenant from an instance: in the device, and then in the outbox. Blocks that a sequence uses stay. */
import type { Clock } from '../base/clock.ts';
import { Failure } from '../base/failure.ts';
import type { LoopEvent, ToEngine } from '../engine/engine_messages.ts';
import type { TenantId } from '../kv/block_key.ts';
import { forgetRecords } from '../kv/forget_records.ts';
import type { RecordLayout } from '../kv/record.ts';
import type { RecordCache } from '../kv/record_cache.ts';
import type { Forgotten } from '../net/forget_handler.ts';

type Answer = Extract<LoopEvent, { kind: 'forgotten' }>;

/** Calls that wait for the engine at once, at most (P1). */
const MAX_WAITING = 64;

/** Parts of an instance that keep blocks. */
export interface TenantForgettingOptions {
  readonly outbox: { readonly cache: RecordCache };
  readonly layout: RecordLayout;
  readonly clock: Clock;
  readonly sendToEngine: (message: ToEngine) => void;
}

/** Deletes tenants' blocks; the engine answers in the order of the calls. */
export class TenantForgetting {
  readonly #options: TenantForgettingOptions;
  readonly #waiting: ((answer: Answer) => void)[] = [];

  constructor(options: TenantForgettingOptions) {
    this.#options = options;
  }

  /** Handles the engine's answer to the oldest call. */
  onForgotten(answer: Answer): void {
    this.#waiting.shift()?.(answer);
  }

  /** @throws Failure `overloaded` when too many calls wait. */
  async forget(tenant: TenantId, signal: AbortSignal): Promise<Forgotten> {
    const { outbox, layout, clock, sendToEngine } = this.#options;
    if (this.#waiting.length >= MAX_WAITING) throw new Failure('overloaded', 'too many calls delete blocks at once');
    const answer = new Promise<Answer>((resolve) => this.#waiting.push(resolve));
    sendToEngine({ kind: 'forget', tenant });
    const { numFreed, numUsed } = await answer;
    const records = await forgetRecords(outbox.cache, tenant, clock, signal);
    const sizes = [...records.bytes.values()];
    return {
      // A block is in the device, in the outbox or in both.
      blocks: Math.max(numFreed, sizes.length),
      bytes: numFreed * layout.spec.payloadBytes + sizes.reduce((sum, bytes) => sum + bytes, 0),
      inUse: Math.max(numUsed, records.numPinned),
      isFinal: true,
    };
  }
}
