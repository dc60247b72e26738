/** Routers that a member hears on the bus, one entry per incarnation: what each has answered, and the stores that it lists. */
import type { Clock } from '../base/clock.ts';
import type { Member } from '../protocol/membership.ts';

/** Milliseconds without a notice after which a router counts as gone. */
const SILENCE_MS = 5_000;
/** Most routers that a member tracks (P1). */
const MAX_ROUTERS = 64;

/** One incarnation of a router. */
export interface KnownRouter {
  heardMs: number;
  isJoined: boolean;
  /** Whether this router has answered the inquiry favourably. */
  hasAnswered: boolean;
  /** Reason of the refusal that was this router's last reply; undefined while it has not decided, or has accepted this process. */
  refusal: string | undefined;
  isAsking: boolean;
  /**
   * Time of the router's first `wait` reply, which means that another live process has this name; undefined when its last reply was
   * not `wait`.
   */
  waitsSinceMs: number | undefined;
  /** Version of the router's store list that `stores` holds; -1 before the router has accepted this process. */
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

  /** Whether some router that is heard has refused this process, and whether all of them have. */
  get refusals(): { readonly some: boolean; readonly all: boolean } {
    const heard = [...this.#routers.values()].filter((known) => !this.#isSilent(known));
    const refused = heard.filter(({ refusal }) => refusal !== undefined);
    return { some: refused.length > 0, all: refused.length > 0 && refused.length === heard.length };
  }

  /** Whether this incarnation is known still, and has spoken lately. */
  isThere(epoch: string, known: KnownRouter): boolean {
    return this.#routers.get(epoch) === known && !this.#isSilent(known);
  }

  /**
   * Records a notice from the router `epoch` and returns its entry, a new one if needed; undefined when MAX_ROUTERS others are known.
   * Removes silent routers, because the router that spoke has the current list of stores.
   */
  hear(epoch: string): KnownRouter | undefined {
    for (const [other, known] of this.#routers)
      if (other !== epoch && this.#isSilent(known)) this.#routers.delete(other);
    const known = this.#routers.get(epoch) ?? this.#meet(epoch);
    if (known) known.heardMs = this.#clock.nowMs();
    return known;
  }

  /** Marks a router that said goodbye as silent. Its stores stay listed until another router sends a notice. */
  left(epoch: string): void {
    const known = this.#routers.get(epoch);
    if (known) Object.assign(known, { heardMs: -Infinity, isJoined: false });
  }

  /**
   * Applies a router's change of its store list, and ignores a change that is not the next version. The router's next notice then
   * names a version that differs from the entry's, and the member registers again to get the whole list.
   */
  change(epoch: string, { version, came, gone }: StoresChange): void {
    const known = this.#routers.get(epoch);
    if (!known?.isJoined || version !== known.version + 1) return;
    const isGone = (store: Member): boolean =>
      gone.some(({ name, epoch: own }) => store.name === name && store.epoch === own);
    Object.assign(known, { version, stores: [...known.stores.filter((one) => !isGone(one)), ...came] });
  }

  /** Returns the stores of all known routers, one per name. When no router is heard, the entries of the last ones are still known. */
  stores(): readonly Member[] {
    const all = [...this.#routers.values()].flatMap(({ stores }) => stores);
    return [...new Map(all.map((one) => [one.name, one])).values()];
  }

  #meet(epoch: string): KnownRouter | undefined {
    if (this.#routers.size >= MAX_ROUTERS) return undefined;
    const known: KnownRouter = {
      heardMs: 0,
      isJoined: false,
      hasAnswered: false,
      isAsking: false,
      refusal: undefined,
      waitsSinceMs: undefined,
      version: -1,
      stores: [],
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
