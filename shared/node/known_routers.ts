/** Routers that a member hears of, one entry per incarnation: what each has answered, and the stores that it counts. */
import type { Clock } from '../base/clock.ts';
import type { Member } from '../protocol/membership.ts';

/** A router that says nothing for so long is not there. */
const SILENCE_MS = 5_000;
/** Routers (P1). */
const MAX_ROUTERS = 64;

/** One incarnation of a router. */
export interface KnownRouter {
  heardMs: number;
  isJoined: boolean;
  /** Whether this router has answered the inquiry, favourably or not. */
  hasAnswered: boolean;
  isAsking: boolean;
  /** When it first said that another process of this name is heard. */
  waitsSinceMs: number | undefined;
  /** Number of the last change of its stores that is known here. */
  version: number;
  stores: readonly Member[];
}

interface StoresChange {
  readonly version: number;
  readonly came: readonly Member[];
  readonly gone: readonly { readonly name: string; readonly epoch: string }[];
}

/** Routers that a member hears, at most MAX_ROUTERS of them (P1). */
export class KnownRouters {
  readonly #clock: Clock;
  /** Keyed by epoch. */
  readonly #routers = new Map<string, KnownRouter>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get size(): number {
    return this.#routers.size;
  }

  get(epoch: string): KnownRouter | undefined {
    return this.#routers.get(epoch);
  }

  all(): [epoch: string, KnownRouter][] {
    return [...this.#routers];
  }

  /** Whether some router counts this process among its members. */
  get isJoined(): boolean {
    return this.#some(({ isJoined }) => isJoined);
  }

  /** Whether some router has spoken lately. */
  get isHeard(): boolean {
    return this.#some((known) => !this.#isSilent(known));
  }

  /** Whether this incarnation is known still, and has spoken lately. */
  isThere(epoch: string, known: KnownRouter): boolean {
    return this.#routers.get(epoch) === known && !this.#isSilent(known);
  }

  /** A router speaks; silent ones are forgotten, since one that speaks knows who is there. Undefined: MAX_ROUTERS are known. */
  hear(epoch: string): KnownRouter | undefined {
    for (const [other, known] of this.#routers)
      if (other !== epoch && this.#isSilent(known)) this.#routers.delete(other);
    const known = this.#routers.get(epoch) ?? this.#meet(epoch);
    if (known) known.heardMs = this.#clock.nowMs();
    return known;
  }

  /** A router has said goodbye. The last one's stores are kept until another speaks. */
  left(epoch: string): void {
    const known = this.#routers.get(epoch);
    if (known) Object.assign(known, { heardMs: -Infinity, isJoined: false });
  }

  /** A router's stores change. A member that has missed a change hears the next notice's version, and asks for all. */
  change(epoch: string, { version, came, gone }: StoresChange): void {
    const known = this.#routers.get(epoch);
    if (!known?.isJoined || version !== known.version + 1) return;
    const isGone = (store: Member): boolean =>
      gone.some(({ name, epoch: own }) => store.name === name && store.epoch === own);
    Object.assign(known, { version, stores: [...known.stores.filter((one) => !isGone(one)), ...came] });
  }

  /** Stores of every router that is heard, and of the last one that was when none is; one per name. */
  stores(): readonly Member[] {
    const all = [...this.#routers.values()].flatMap(({ stores }) => stores);
    return [...new Map(all.map((one) => [one.name, one])).values()];
  }

  #meet(epoch: string): KnownRouter | undefined {
    if (this.#routers.size >= MAX_ROUTERS) return undefined;
    const known: KnownRouter = {
      ...{ heardMs: 0, isJoined: false, hasAnswered: false, isAsking: false },
      ...{ waitsSinceMs: undefined, version: -1, stores: [] },
    };
    this.#routers.set(epoch, known);
    return known;
  }

  #isSilent({ heardMs }: KnownRouter): boolean {
    return heardMs < this.#clock.nowMs() - SILENCE_MS;
  }

  #some(is: (known: KnownRouter) => boolean): boolean {
    return [...this.#routers.values()].some(is);
  }
}
