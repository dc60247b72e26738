/**
 * Reuse of blocks: the hit ratio that a pool of any size would have had, from a sample of the keys that requests look up (SHARDS, FAST
 * 2015). A key is followed when its low bits fall under a threshold; the distance of two accesses of it, counted in followed
 * keys, is the size at which a pool that forgets the least recently used block would still have it.
 */

/**
 * Share of the keys that are followed, one in so many, once there are many. At first all are: in a small pool a few popular blocks make most
 * hits, and a sample may lack them. The error of a ratio is about one over the root of the followed keys.
 */
const RATE_OF_MANY = 8;
/** Followed keys at which the share is halved until it is that of many. */
const ENOUGH_KEYS = 4_096;
/** Keys that are followed at most (P1); beyond them the share is halved: one in 64 of two million. */
const MAX_KEYS = 32_768;
/** Distances are counted in classes that grow by this factor, from a distance of one followed key. */
const GROWTH = 1.05;
const NUM_CLASSES = 512;
/** Bits of a key that decide whether it is followed. */
const HASH_BITS = 24;

/** Hit ratio of a pool that has room for so many blocks. */
export interface ReusePoint {
  readonly blocks: number;
  readonly hitRatio: number;
}

/** Follows a sample of the keys of one model. */
export class ReuseCurve {
  /** Time of the last access of each followed key, the least recent first. */
  readonly #lastAt = new Map<number, number>();
  /** Fenwick tree over the times: 1 for each that is the last access of a key. */
  #tree = new Int32Array(4 * MAX_KEYS + 1);
  #time = 0;
  #rate = 1;
  /** Accesses by class of their distance, in followed keys, scaled to all keys at the rate of their time. */
  readonly #hits = new Float64Array(NUM_CLASSES);
  #numAccesses = 0;
  /** Followed accesses, each counting for as many as the rate says. */
  #numFollowed = 0;

  /** Exclusive upper bound of the low bits of the keys that are followed. */
  get #limit(): number {
    return (1 << HASH_BITS) / this.#rate;
  }

  get sampledKeys(): number {
    return this.#lastAt.size;
  }

  /** Accesses of blocks, followed or not. */
  get accesses(): number {
    return this.#numAccesses;
  }

  /** Counts one access of each block of a chain; keys of two words each, the low word first. */
  look(keys: Int32Array): void {
    this.#numAccesses += keys.length / 2;
    for (let i = 0; i < keys.length; i += 2) {
      const low = keys[i] ?? 0;
      if ((low & ((1 << HASH_BITS) - 1)) < this.#limit) this.#access(low, keys[i + 1] ?? 0);
    }
  }

  #access(low: number, high: number): void {
    // 53 bits of a key are enough to tell the followed ones apart.
    const key = (high & 0x1f_ffff) * 2 ** 32 + (low >>> 0);
    const before = this.#lastAt.get(key);
    this.#numFollowed += this.#rate;
    if (before !== undefined) {
      const at = classOf((this.#lastAt.size - this.#count(before)) * this.#rate + 1);
      this.#hits[at] = (this.#hits[at] ?? 0) + this.#rate;
      this.#add(before, -1);
      this.#lastAt.delete(key);
    }
    if (this.#time + 1 >= this.#tree.length) this.#renumber();
    this.#time++;
    this.#add(this.#time, 1);
    this.#lastAt.set(key, this.#time);
    if (this.#lastAt.size > (this.#rate < RATE_OF_MANY ? ENOUGH_KEYS : MAX_KEYS)) this.#halve();
  }

  /** Halves the share of followed keys. */
  #halve(): void {
    this.#rate *= 2;
    for (const key of this.#lastAt.keys()) if (key % (1 << HASH_BITS) >= this.#limit) this.#lastAt.delete(key);
    this.#renumber();
  }

  /** Gives the last accesses the times from 1 on, in their order. */
  #renumber(): void {
    this.#tree = new Int32Array(this.#tree.length);
    this.#time = 0;
    for (const key of this.#lastAt.keys()) {
      this.#lastAt.set(key, ++this.#time);
      this.#add(this.#time, 1);
    }
  }

  #add(time: number, change: number): void {
    for (let at = time; at < this.#tree.length; at += at & -at) this.#tree[at] = (this.#tree[at] ?? 0) + change;
  }

  /** Returns the number of keys that were accessed last at `time` or before. */
  #count(time: number): number {
    let sum = 0;
    for (let at = time; at > 0; at -= at & -at) sum += this.#tree[at] ?? 0;
    return sum;
  }

  /** Returns the hit ratio of a pool of `blocks` blocks; 0 before the first access. */
  hitRatio(blocks: number): number {
    if (this.#numAccesses === 0) return 0;
    let hits = 0;
    for (let at = 0; at < NUM_CLASSES && endOf(at) <= blocks; at++) hits += this.#hits[at] ?? 0;
    // A popular key that is followed, or is not, makes the sample too large or too small: its accesses are near ones.
    const missing = this.#numAccesses - this.#numFollowed;
    return Math.min(1, Math.max(0, (hits + (blocks > 0 ? missing : 0)) / this.#numAccesses));
  }

  /** Returns the curve, at sizes where the ratio changes by a thousandth at least. */
  get curve(): ReusePoint[] {
    const points: ReusePoint[] = [];
    for (let at = 0; at < NUM_CLASSES; at++) {
      if (this.#hits[at] === 0 && points.length > 0) continue;
      const point = { blocks: endOf(at), hitRatio: this.hitRatio(endOf(at)) };
      const last = points.at(-1);
      if (!last || point.hitRatio - last.hitRatio >= 0.001) points.push(point);
    }
    return points;
  }
}

function classOf(distance: number): number {
  return Math.min(NUM_CLASSES - 1, Math.max(0, Math.round(Math.log(distance) / Math.log(GROWTH))));
}

/** Returns the number of blocks at which the accesses of a class are hits. */
function endOf(at: number): number {
  return Math.round(GROWTH ** at);
}
