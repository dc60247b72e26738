/**
 * A trace in memory: when requests arrived, how long their prompts and answers are, and which blocks of the prompts are equal. Columns
 * of typed arrays, one entry per request, so that a million requests take tens of megabytes.
 *
 *   hashOffsets   0        3     5                 request 0 has ids [0, 3), request 1 has [3, 5)
 *   hashIds       0 1 2    0 7                     equal ids: equal blocks after equal prefixes
 */
import { Failure } from '../base/failure.ts';

/** Most requests of a trace (P1). A trace at this limit and the next one takes about 100 MB. */
export const MAX_REQUESTS = 1_000_000;
/** Most block ids of all requests together (P1). */
export const MAX_HASH_IDS = 16_000_000;
/** Most tenants that a trace names (P1). */
const MAX_TENANTS = 10_000;

/** Tokens per block id in Mooncake's traces. */
export const TRACE_BLOCK_TOKENS = 512;

/** Columns of a trace; see {@link Trace}. */
export interface TraceColumns {
  /** Tokens that one block id stands for. */
  readonly blockTokens: number;
  readonly arrivalMs: Float64Array;
  readonly inputTokens: Int32Array;
  readonly outputTokens: Int32Array;
  /** One entry more than there are requests. */
  readonly hashOffsets: Int32Array;
  readonly hashIds: Int32Array;
  /** Number of different ids; ids are in [0, numBlocks). */
  readonly numBlocks: number;
  readonly tenantIds: Int32Array | undefined;
  readonly tenants: readonly string[];
  readonly priorities: Int32Array | undefined;
}

/** One request of a trace. */
export interface TraceRequest {
  /** Position in the trace; the request is on line `index + 1` of its file. */
  readonly index: number;
  /** Milliseconds after the first request of the trace. */
  readonly arrivalMs: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  /** Ids of the prompt's blocks, a view of the trace's column. The last block may be partial. */
  readonly hashIds: Int32Array;
  readonly tenant: string | undefined;
  readonly priority: number | undefined;
}

/** A request that is added to a trace. */
export interface NewRequest {
  readonly timestampMs: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly hashIds: readonly number[];
  readonly tenant?: string | undefined;
  readonly priority?: number | undefined;
}

/** Requests in order of arrival. An id names a block together with all blocks before it. Immutable. */
export class Trace {
  readonly columns: TraceColumns;

  constructor(columns: TraceColumns) {
    this.columns = columns;
  }

  get numRequests(): number {
    return this.columns.arrivalMs.length;
  }

  get blockTokens(): number {
    return this.columns.blockTokens;
  }

  /** Number of different blocks. */
  get numBlocks(): number {
    return this.columns.numBlocks;
  }

  /** Milliseconds from the first arrival to the last. */
  get durationMs(): number {
    return this.columns.arrivalMs.at(-1) ?? 0;
  }

  /** Mean rate of arrival; Infinity when all requests arrive at the same time. */
  get requestsPerSecond(): number {
    return this.numRequests / (this.durationMs / 1_000);
  }

  /** Returns the request at `index`. @throws RangeError outside [0, numRequests) */
  requestAt(index: number): TraceRequest {
    const { arrivalMs, inputTokens, outputTokens, tenantIds, tenants, priorities } = this.columns;
    if (!(index >= 0 && index < arrivalMs.length)) throw new RangeError(`the trace has no request ${index}`);
    const tenantId = tenantIds?.[index] ?? -1;
    return {
      index,
      arrivalMs: arrivalMs[index]!,
      inputTokens: inputTokens[index]!,
      outputTokens: outputTokens[index]!,
      hashIds: this.hashIdsOf(index),
      tenant: tenantId < 0 ? undefined : tenants[tenantId],
      priority: priorities?.[index],
    };
  }

  /** Returns the block ids of the request at `index`, as a view. */
  hashIdsOf(index: number): Int32Array {
    const { hashOffsets, hashIds } = this.columns;
    return hashIds.subarray(hashOffsets[index], hashOffsets[index + 1]);
  }

  /** Returns the tokens of the block at position `at` of a prompt of `inputTokens`: those of a whole block, or fewer in the last one. */
  tokensOfBlock(inputTokens: number, at: number): number {
    return Math.min(this.blockTokens, inputTokens - at * this.blockTokens);
  }
}

/** An array of numbers that grows as values are pushed. */
class GrowingColumn<Numbers extends Float64Array | Int32Array> {
  #values: Numbers;
  #length = 0;
  readonly #make: (length: number) => Numbers;

  constructor(make: (length: number) => Numbers) {
    this.#make = make;
    this.#values = make(1_024);
  }

  get length(): number {
    return this.#length;
  }

  push(value: number): void {
    if (this.#length === this.#values.length) {
      const larger = this.#make(2 * this.#length);
      larger.set(this.#values);
      this.#values = larger;
    }
    this.#values[this.#length++] = value;
  }

  /** Returns the values, in an array of their length. */
  take(): Numbers {
    return this.#values.slice(0, this.#length) as Numbers;
  }
}

const integers = (): GrowingColumn<Int32Array> => new GrowingColumn((length) => new Int32Array(length));
const floats = (): GrowingColumn<Float64Array> => new GrowingColumn((length) => new Float64Array(length));

/** Collects the requests of a trace in order of arrival. */
export class TraceBuilder {
  readonly #blockTokens: number;
  readonly #timestampMs = floats();
  readonly #inputTokens = integers();
  readonly #outputTokens = integers();
  readonly #hashOffsets = integers();
  readonly #hashIds = floats();
  readonly #tenantIds = integers();
  readonly #priorities = integers();
  /** Ids of tenants by name, at most MAX_TENANTS (P1). */
  readonly #tenants = new Map<string, number>();
  #hasPriorities = false;

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
    this.#hashOffsets.push(0);
  }

  get numRequests(): number {
    return this.#timestampMs.length;
  }

  /** Adds a request. @throws Failure when the trace is at one of its limits. Values are not checked otherwise. */
  add({ timestampMs, inputTokens, outputTokens, hashIds, tenant, priority }: NewRequest): void {
    const refuse = (limit: number, of: string): never => {
      throw new Failure('invalid_request', `a trace has at most ${limit.toLocaleString('en')} ${of}: cut it`);
    };
    if (this.numRequests >= MAX_REQUESTS) refuse(MAX_REQUESTS, 'requests');
    if (this.#hashIds.length + hashIds.length > MAX_HASH_IDS) refuse(MAX_HASH_IDS, 'block ids in all requests');
    let tenantId = tenant === undefined ? -1 : this.#tenants.get(tenant);
    if (tenantId === undefined) {
      tenantId = this.#tenants.size;
      if (tenantId >= MAX_TENANTS) refuse(MAX_TENANTS, 'tenants');
      this.#tenants.set(tenant!, tenantId);
    }
    this.#timestampMs.push(timestampMs);
    this.#inputTokens.push(inputTokens);
    this.#outputTokens.push(outputTokens);
    for (const id of hashIds) this.#hashIds.push(id);
    this.#hashOffsets.push(this.#hashIds.length);
    this.#tenantIds.push(tenantId);
    this.#priorities.push(priority ?? 0);
    this.#hasPriorities ||= priority !== undefined;
  }

  /** Returns the trace of all requests so far. Times begin with the first one; ids are numbered anew, in the order of their values. */
  build(): Trace {
    const timestamps = this.#timestampMs.take();
    const [firstMs = 0] = timestamps;
    const { ids, numBlocks } = numbered(this.#hashIds.take());
    return new Trace({
      blockTokens: this.#blockTokens,
      arrivalMs: timestamps.map((ms) => ms - firstMs),
      inputTokens: this.#inputTokens.take(),
      outputTokens: this.#outputTokens.take(),
      hashOffsets: this.#hashOffsets.take(),
      hashIds: ids,
      numBlocks,
      tenantIds: this.#tenants.size > 0 ? this.#tenantIds.take() : undefined,
      tenants: [...this.#tenants.keys()],
      priorities: this.#hasPriorities ? this.#priorities.take() : undefined,
    });
  }
}

/** Returns values as ranks among the different ones. Sorted arrays take far less memory than a map of millions of values. */
function numbered(values: Float64Array): { ids: Int32Array; numBlocks: number } {
  const sorted = values.slice().sort();
  let numBlocks = 0;
  for (let i = 0; i < sorted.length; i++) if (i === 0 || sorted[i] !== sorted[i - 1]) sorted[numBlocks++] = sorted[i]!;
  const rankOf = (value: number): number => {
    let [low, high] = [0, numBlocks - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle]! < value) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  return { ids: Int32Array.from(values, rankOf), numBlocks };
}
