/** When decode instances were last in the cluster: a request waits for one that may come back, and not for one that never was. */
import type { Clock } from '../../../shared/base/clock.ts';
import type { Instance } from './instance.ts';

/** Upper bound of the remembered departures, one per model and context length (P1). */
const MAX_LEFT = 1_024;

interface Sighting {
  readonly model: string | undefined;
  /** The longest prompt and output together, in tokens. */
  readonly maxModelLen: number;
  readonly lastMs: number;
}

/** Remembers when decode instances were last in the cluster, by model and context length. */
export class DecodeSightings {
  readonly #clock: Clock;
  /** The last instance that left, by model and context. */
  readonly #left = new Map<string, Sighting>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Records the departure of a decode instance. An instance that never answered a call is ignored, since its return is not expected. */
  left({ member, model, maxModelLen, isCounted, countedMs }: Instance): void {
    const lastMs = isCounted ? this.#clock.nowMs() : countedMs;
    if (member.role !== 'decode' || lastMs === undefined) return;
    this.#left.set(`${maxModelLen} ${model}`, { model, maxModelLen, lastMs });
    const [oldest] = this.#left.keys();
    if (this.#left.size > MAX_LEFT && oldest !== undefined) this.#left.delete(oldest);
  }

  /**
   * When a decode instance with a context of `numTokens` was last in the cluster; undefined: never. `present`: decode instances that are
   * members now. `model` undefined: of any model.
   */
  lastMs(present: readonly Instance[], numTokens: number, model: string | undefined): number | undefined {
    const isAble = (one: Pick<Sighting, 'model' | 'maxModelLen'>): boolean =>
      (model === undefined || one.model === model) && one.maxModelLen >= numTokens;
    const able = present.filter(isAble);
    if (able.some(({ isCounted }) => isCounted)) return this.#clock.nowMs();
    const times = [...this.#left.values()].filter(isAble).map(({ lastMs }) => lastMs);
    times.push(...able.flatMap(({ countedMs }) => countedMs ?? []));
    return times.length > 0 ? Math.max(...times) : undefined;
  }
}
