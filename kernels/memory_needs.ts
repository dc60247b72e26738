/**
 * Memory that a program needs, and memory that a device has for it: compared before any weight is read. All sizes are bytes.
 *
 * Both are as sure as they can be before loading: needs count nothing that loading would not take, and room is never less than loading
 * would find, so that what is refused here could not have been loaded.
 */

/** Memory that a program needs on a device with given load options. */
export interface MemoryNeeds {
  readonly weights: number;
  /** KV of the least blocks that the load options allow. */
  readonly kv: number;
  readonly states: number;
  /** Everything else that loading takes: activations, tables, buffers through which data moves. */
  readonly other: number;
  /** Most KV blocks, and most state slots, that the device can address; Infinity where there is no such limit. */
  readonly mostBlocks: number;
  readonly mostSlots: number;
  /** Clause that says why the program cannot be laid out, whatever memory there is; undefined when it can. */
  readonly obstacle: string | undefined;
}

/** Memory that a device has for one engine. A size is Infinity where it cannot be known before the device is full. */
export interface MemoryRoom {
  /** Bytes for everything together. */
  readonly total: number;
  /** Bytes that are free at the moment, which weights take at once. */
  readonly free: number;
  /** Most bytes for KV. */
  readonly kv: number;
  /** Begins the clause that ends with `total`: "this machine has". */
  readonly whose: string;
  /** Finds out the room that there is without the bound that the user has stated; undefined without such a bound. */
  readonly unbounded?: () => Promise<MemoryRoom>;
}

/** Returns the bytes of all needs together. */
export function totalNeeds({ weights, kv, states, other }: MemoryNeeds): number {
  return weights + kv + states + other;
}
