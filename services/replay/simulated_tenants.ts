/** The tenants of one simulated instance: who waits, and whom the milliseconds of a step are charged to. */
import { rowsMs } from '../../shared/engine/engine_time.ts';
import type { FairOrder } from '../../shared/engine/fair_order.ts';
import { stepMs, type StepTime } from '../../shared/protocol/instance_work.ts';
import type { SimulatedGeneration } from './simulated_generation.ts';
import type { SimulatedSequence } from './simulated_sequence.ts';
import type { TenantLedger } from './tenant_ledger.ts';

const NO_POSITIONS: readonly number[] = [];

/** Tells the ledger of a run, and the fair order where there is one, what becomes of sequences. */
export class SimulatedTenants {
  readonly #ledger: TenantLedger;
  readonly #fair: FairOrder<SimulatedSequence> | undefined;

  constructor(ledger: TenantLedger, fair: FairOrder<SimulatedSequence> | undefined) {
    this.#ledger = ledger;
    this.#fair = fair;
  }

  waits(sequence: SimulatedSequence): void {
    this.#fair?.waits(sequence);
    this.#ledger.waits(sequence.options.sharer.tenant);
  }

  admitted(sequence: SimulatedSequence): void {
    this.#fair?.admitted(sequence);
    this.#ledger.admitted(sequence.options.sharer.tenant);
  }

  ended(sequence: SimulatedSequence): void {
    this.#fair?.ended(sequence);
  }

  /**
   * Charges for a step: the rows of prompts, each as the production engine does, and the sequences that generate by tenant.
   * `numSequences`: those of the step.
   */
  charge(
    time: StepTime,
    prompts: ReadonlyMap<SimulatedSequence, number>,
    generating: SimulatedGeneration['tenants'],
    numSequences: number,
  ): void {
    for (const [{ options, computed }, count] of prompts) {
      // The row that ends a prompt counts as one of a prompt here, too.
      const rows = { start: computed, count, sampled: NO_POSITIONS };
      this.#charge(options.sharer.tenant, rowsMs(time, rows, numSequences));
    }
    for (const [tenant, { sequences, contextTokens }] of generating) {
      const ms = stepMs(time, { rows: sequences, pairs: 0, contextTokens, sequences }) - time.constantMs;
      this.#charge(tenant, ms + (time.constantMs * sequences) / numSequences);
    }
  }

  #charge(tenant: string, ms: number): void {
    this.#ledger.charge(tenant, ms);
    this.#fair?.chargeTenant(tenant, ms);
  }
}
