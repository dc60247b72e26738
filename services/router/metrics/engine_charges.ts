/**
 * Milliseconds of engines that requests take, by the step times that instances have fitted: a step costs constant + row·rows + pair·pairs +
 * context·tokens of KV + sequence·sequences (shared/protocol/instance_work.ts). A request is charged for its own rows, pairs and tokens of KV,
 * and for an equal part of the constant, by the sequences that its instance said it generates for at its last heartbeat. Tokens that were hit or
 * fetched cost nothing, since no row of theirs was computed.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { expectedMs, rowsMs } from '../../../shared/engine/engine_time.ts';
import type { InstanceWork } from '../../../shared/protocol/instance_work.ts';
import type { Instance } from '../../../shared/placement/instance.ts';

/** A row that gives a token. */
const TOKEN = { length: 1 };
/** Milliseconds for which the members are not listed again: a charge comes with each token. */
const LISTED_MS = 200;

/** Rows of a prompt that an instance computed. */
export interface ComputedRows {
  /** Position of the first one. */
  readonly start: number;
  readonly count: number;
}

/** Charges of the instances of a cluster. */
export class EngineCharges {
  readonly #clock: Pick<Clock, 'nowMs'>;
  readonly #instances: () => readonly Pick<Instance, 'member' | 'load'>[];
  #works: ReadonlyMap<string, InstanceWork> = new Map();
  #listedMs = -Infinity;

  constructor(clock: Pick<Clock, 'nowMs'>, instances: () => readonly Pick<Instance, 'member' | 'load'>[]) {
    [this.#clock, this.#instances] = [clock, instances];
  }

  /** Returns the milliseconds of the row that gives a token, and reads the KV of so many; 0 where the instance has measured no steps. */
  tokenMs(instance: string, contextTokens: number): number {
    const work = this.#workOf(instance);
    if (!work) return 0;
    const { step, generating } = work;
    const row = { start: contextTokens - 1, count: 1, sampled: TOKEN };
    return rowsMs(step, row, Math.max(1, generating.sequences));
  }

  /** Returns the milliseconds of rows of a prompt, in steps as full as the instance has them; 0 where it has measured none. */
  promptMs(instance: string, { start, count }: ComputedRows): number {
    const work = this.#workOf(instance);
    if (!work || count <= 0) return 0;
    const { step, generating, chunkTokens } = work;
    const sizes = { chunkTokens: Math.max(1, chunkTokens), numSequences: 1 + generating.sequences };
    return expectedMs(step, { start, promptRows: count, tokens: 0 }, sizes);
  }

  #workOf(instance: string): InstanceWork | undefined {
    const nowMs = this.#clock.nowMs();
    if (nowMs - this.#listedMs > LISTED_MS) {
      const known = this.#instances().flatMap(({ member, load }) =>
        load?.work ? [[member.name, load.work] as const] : [],
      );
      this.#works = new Map(known);
      this.#listedMs = nowMs;
    }
    return this.#works.get(instance);
  }
}
