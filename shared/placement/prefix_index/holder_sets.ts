/**
 * Sets of holders with their tiers. Equal sets are stored once, so that the index entry of a block is the number of a set.
 *
 *   member   holder number · 8 + one bit per tier; a set is its members, ascending
 *   set 0    nobody
 *
 * A forgotten holder leaves every set at once: `live` maps a set to the set of its remaining holders, computed when it is next
 * asked for.
 * Bounded (P1): at MAX_SETS, sets that no block uses are removed; when none of them is unused, no new set is made.
 */
const TIER_BITS = 8;
const MAX_SETS = 1 << 18;
/** Upper bound of holder numbers, which are not reused; a cluster that restarts one process per second reaches it in eight years. */
const MAX_HOLDERS = 1 << 28;
/** Upper bound of the cached changes from one set to another (P1); a full cache is cleared. */
const MAX_STEPS = 1 << 16;

/** One holder of a block, and the tiers in which it has the block. */
export interface HeldBy {
  readonly holder: string;
  /** One bit per tier. */
  readonly tiers: number;
}

/** How a block went that nobody holds any more: its last holder, and when. */
export interface Gone {
  readonly holder: string;
  /** `lost` with the holder; `evicted`: the holder has removed it, or does not have it by its newest snapshot. */
  readonly how: 'lost' | 'evicted';
  /** Time in ms, on the clock of the caller that forgets holders. */
  readonly atMs: number;
  /** One bit per tier in which the holder had the block. */
  readonly tiers: number;
}

/** Upper bound of the forgotten holders whose blocks can be explained (P1); the oldest are dropped. */
const MAX_DEPARTED = 4_096;

/** Returned in place of a set number when there is no room for another set. */
export const NO_SET = -1;

/** All sets of holders that blocks have, each stored once and named by a number. */
export class HolderSets {
  readonly #members: (readonly number[])[] = [[]];
  readonly #heldBy: (readonly HeldBy[] | undefined)[] = [[]];
  readonly #ids = new Map<string, number>([['', 0]]);
  /** Blocks that have the set. */
  #counts = new Int32Array(1_024);
  /** For each set, the number of the set of its remaining holders; valid while `#liveAt` of the set equals `#numDeaths`. */
  #live = new Int32Array(1_024);
  #liveAt = new Int32Array(1_024);
  #numDeaths = 0;
  readonly #free: number[] = [];
  /** Number of the set that a change makes, by the change (holder, tier, stored or removed) and the set before it. */
  readonly #steps = new Map<number, number>();
  readonly #numbers = new Map<string, number>();
  readonly #holders = new Map<number, string>();
  /** Forgotten holders by number, the oldest first: how their blocks went, by the bits of the tiers. */
  readonly #departed = new Map<number, readonly Gone[]>();
  #nextNumber = 1;
  readonly #maxSets: number;

  constructor(maxSets = MAX_SETS) {
    this.#maxSets = maxSets;
  }

  /** Number of stored sets, the empty set included. */
  get size(): number {
    return this.#members.length - this.#free.length;
  }

  /** Returns the number of a holder; a new holder gets the next number. */
  numberOf(holder: string): number {
    let number = this.#numbers.get(holder);
    if (number === undefined) {
      number = this.#nextNumber++;
      this.#numbers.set(holder, number);
      this.#holders.set(number, holder);
    }
    return number;
  }

  has(holder: string): boolean {
    return this.#numbers.has(holder);
  }

  /**
   * Renames the holder `from` to `to` in every set; a previous holder of the name `to` is forgotten, as `gone` says. Does nothing
   * when `from` is unknown.
   */
  rename(from: string, to: string, gone?: Omit<Gone, 'tiers'>): void {
    const number = this.#numbers.get(from);
    if (number === undefined) return;
    this.forget(to, gone);
    this.#numbers.delete(from);
    this.#numbers.set(to, number);
    this.#holders.set(number, to);
    this.#heldBy.fill(undefined);
  }

  /** Removes a holder from every set; `gone` says how its blocks go. Returns false when the holder is not known. */
  forget(holder: string, gone?: Omit<Gone, 'tiers'>): boolean {
    const number = this.#numbers.get(holder);
    if (number === undefined) return false;
    this.#numbers.delete(holder);
    this.#holders.delete(number);
    this.#numDeaths++;
    if (!gone) return true;
    this.#departed.set(
      number,
      Array.from({ length: TIER_BITS }, (_, its) => ({ ...gone, tiers: its })),
    );
    const [oldest] = this.#departed.keys();
    if (this.#departed.size > MAX_DEPARTED && oldest !== undefined) this.#departed.delete(oldest);
    return true;
  }

  /** Returns how the blocks of a set went whose members are all forgotten: with the one forgotten last. Undefined where that is not known. */
  goneWith(set: number): Gone | undefined {
    let last: Gone | undefined;
    for (const member of this.#members[set]!) {
      const gone = this.#departed.get(Math.floor(member / TIER_BITS))?.[member % TIER_BITS];
      if (gone && (!last || gone.atMs >= last.atMs)) last = gone;
    }
    return last;
  }

  /** Calls `visit` for each set that has blocks, with the holder of a set that has one alone. Time grows with the number of sets. */
  eachOnly(visit: (holder: string, numBlocks: number) => void): void {
    for (let set = 1; set < this.#members.length; set++) {
      const numBlocks = this.#counts[set]!;
      if (numBlocks === 0) continue;
      const [only, ...others] = this.heldBy(this.live(set));
      if (only && others.length === 0) visit(only.holder, numBlocks);
    }
  }

  /** Returns the set that is left of `set` without forgotten holders; 0 when none is left, or there is no room for another set. */
  live(set: number): number {
    if (set === 0 || this.#liveAt[set] === this.#numDeaths) return this.#live[set]!;
    const members = this.#members[set]!;
    const left = members.filter((member) => this.#holders.has(Math.floor(member / TIER_BITS)));
    const id = left.length === members.length ? set : this.#intern(left);
    // Without room for another set, its blocks count as held by nobody.
    this.#live[set] = id === NO_SET ? 0 : id;
    this.#liveAt[set] = this.#numDeaths;
    return this.#live[set];
  }

  heldBy(set: number): readonly HeldBy[] {
    return (this.#heldBy[set] ??= this.#members[set]!.flatMap((member) => {
      const holder = this.#holders.get(Math.floor(member / TIER_BITS));
      return holder === undefined ? [] : [{ holder, tiers: member % TIER_BITS }];
    }));
  }

  /**
   * Returns the number of the set in which holder `number` has the tier `bit` added or removed; {@link NO_SET} when there is no room.
   * `set` must be a live set.
   */
  step(set: number, number: number, bit: number, isStored: boolean): number {
    const step = (set * 16 + bit * 2 + (isStored ? 1 : 0)) * MAX_HOLDERS + number;
    const known = this.#steps.get(step);
    if (known !== undefined) return known;
    const members = this.#members[set]!;
    const mine = members.find((member) => Math.floor(member / TIER_BITS) === number);
    const before = mine === undefined ? 0 : mine % TIER_BITS;
    const after = isStored ? before | bit : before & ~bit;
    let id = set;
    if (after !== before) {
      const others = members.filter((member) => member !== mine);
      id = this.#intern(after === 0 ? others : [...others, number * TIER_BITS + after].sort((a, b) => a - b));
    }
    if (id !== NO_SET) {
      if (this.#steps.size >= MAX_STEPS) this.#steps.clear();
      this.#steps.set(step, id);
    }
    return id;
  }

  /** Adds `by` to the number of blocks that have the set. */
  count(set: number, by: number): void {
    this.#counts[set]! += by;
  }

  #intern(members: readonly number[]): number {
    const name = members.join();
    const known = this.#ids.get(name);
    if (known !== undefined) return known;
    if (this.#free.length === 0 && this.#members.length >= this.#maxSets) this.#takeOutUnused();
    let id = this.#free.pop();
    if (id === undefined) {
      if (this.#members.length >= this.#maxSets) return NO_SET;
      id = this.#members.length;
      if (id >= this.#counts.length) this.#grow();
    }
    this.#members[id] = members;
    this.#heldBy[id] = undefined;
    this.#ids.set(name, id);
    this.#counts[id] = 0;
    this.#live[id] = id;
    this.#liveAt[id] = this.#numDeaths;
    return id;
  }

  #grow(): void {
    const larger = (values: Int32Array): Int32Array<ArrayBuffer> => {
      const to = new Int32Array(2 * values.length);
      to.set(values);
      return to;
    };
    this.#counts = larger(this.#counts);
    this.#live = larger(this.#live);
    this.#liveAt = larger(this.#liveAt);
  }

  #takeOutUnused(): void {
    this.#steps.clear();
    for (let id = 1; id < this.#members.length; id++) {
      if (this.#counts[id] !== 0) continue;
      this.#ids.delete(this.#members[id]!.join());
      this.#members[id] = [];
      this.#free.push(id);
    }
    // Invalidate `#live`, which may refer to a removed set.
    this.#numDeaths++;
  }
}
