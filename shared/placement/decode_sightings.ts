/** When instances that generate were last in the cluster: a request waits for one that may come back, and not for one that never was. */
import type { Clock } from '../base/clock.ts';
import type { Role } from '../protocol/membership.ts';
import type { Instance } from './instance.ts';

/** Upper bound of the remembered departures, one per role, model, numerics class and context length (P1). */
const MAX_LEFT = 1_024;
/**
 * Milliseconds after a decode instance was last seen during which another is expected: a supervisor restarts it, or a rolling update
 * replaces it.
 */
export const EXPECTED_MS = 60_000;

interface Sighting {
  readonly role: Role;
  readonly model: string | undefined;
  /** The longest prompt and output together, in tokens. */
  readonly maxModelLen: number;
  readonly numericsClass: string;
  readonly lastMs: number;
}

/** Whether an instance may generate. */
type MayGenerate = (one: Pick<Instance, 'role' | 'model' | 'numericsClass'>) => boolean;

/** Remembers when engines were last in the cluster, by role, model, numerics class and context length. */
export class DecodeSightings {
  readonly #clock: Clock;
  /** The last instance that left, by role, model, numerics class and context. */
  readonly #left = new Map<string, Sighting>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Records the departure of an instance. An instance that never answered a call is ignored, since its return is not expected. */
  left({ role, model, maxModelLen, numericsClass, isCounted, countedMs }: Instance): void {
    const lastMs = isCounted ? this.#clock.nowMs() : countedMs;
    if (role === 'store' || lastMs === undefined) return;
    const key = `${role} ${maxModelLen} ${numericsClass} ${model}`;
    // The last one that left comes last.
    this.#left.delete(key);
    this.#left.set(key, { role, model, maxModelLen, numericsClass, lastMs });
    const [oldest] = this.#left.keys();
    if (this.#left.size > MAX_LEFT && oldest !== undefined) this.#left.delete(oldest);
  }

  /**
   * Returns which instances may generate where prefill instances may too: those of the numerics classes in which the decode instances of
   * their model generate, so that equal requests have equal answers (E2). `decodes`: decode instances that are members; those that left
   * a moment ago are expected back. A model without any is served by its prefill instances.
   */
  generatingAsDecodes(decodes: readonly Instance[]): MayGenerate {
    const expectedMs = this.#clock.nowMs() - EXPECTED_MS;
    const left = [...this.#left.values()].filter(({ role, lastMs }) => role === 'decode' && lastMs > expectedMs);
    const classes = new Map<string | undefined, Set<string>>();
    for (const { model, numericsClass } of [...decodes, ...left]) {
      const own = classes.get(model);
      if (own) own.add(numericsClass);
      else classes.set(model, new Set([numericsClass]));
    }
    return ({ role, model, numericsClass }) =>
      role === 'decode' || (role === 'prefill' && classes.get(model)?.has(numericsClass) !== false);
  }

  /**
   * When an instance that may generate, with a context of `numTokens`, was last in the cluster; undefined: never. `present`: those that
   * are members now. `model` undefined: of any model.
   */
  lastMs(
    mayGenerate: MayGenerate,
    present: readonly Instance[],
    numTokens: number,
    model: string | undefined,
  ): number | undefined {
    const isAble = (one: Pick<Sighting, 'model' | 'maxModelLen'>): boolean =>
      (model === undefined || one.model === model) && one.maxModelLen >= numTokens;
    const able = present.filter((one) => mayGenerate(one) && isAble(one));
    if (able.some(({ isCounted }) => isCounted)) return this.#clock.nowMs();
    const left = [...this.#left.values()].filter((one) => mayGenerate(one) && isAble(one));
    const times = left.map(({ lastMs }) => lastMs);
    times.push(...able.flatMap(({ countedMs }) => countedMs ?? []));
    return times.length > 0 ? Math.max(...times) : undefined;
  }
}
