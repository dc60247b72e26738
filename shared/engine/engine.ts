/**
 * The engine: one loop, three verbs: schedule → run → postprocess.
 *
 * It owns the device and the device blocks. It knows no network and no disk: fetched records come in as bytes in host memory
 * (`deliver`), full blocks go out as bytes in host memory (`exportTo`), and what happened is told to one listener, in order.
 *
 * E1 holds after every step; `checkIntegrity` says so in tests.
 */
import assert from 'node:assert/strict';
import type { Executable, Segment } from '../../kernels/device.ts';
import type { Clock } from '../base/clock.ts';
import type { AnchoredHash, BlockKey, BlockHash } from '../kv/block_key.ts';
import { BlockPool } from './block_pool.ts';
import { sample, sampleRequest, type Context, type SampledToken } from './sampler.ts';
import { Scheduler } from './scheduler.ts';
import { Sequence, type Phase, type SequenceRequest } from './sequence.ts';

export interface EngineOptions {
  readonly blockSize: number;
  readonly numBlocks: number;
  readonly chunkTokens: number;
  readonly maxNumSeqs: number;
  readonly maxWaiting: number;
}

/** Where a sequence's first tokens came from and how long each part took; durations in ms. */
export interface SequenceReport {
  readonly cachedTokens: number;
  readonly fetchedTokens: number;
  readonly computedTokens: number;
  /** Submitted until device blocks were taken. */
  readonly queueMs: number;
  /** Until every fetched block was in, or given up. */
  readonly loadMs: number;
  /** Until the first token (decode) or the last block (prefill). */
  readonly computeMs: number;
}

/** A fetched block in host memory, verified. */
export interface Arrival {
  readonly blockIndex: number;
  readonly payload: Uint8Array;
}

export type FinishReason = 'stop' | 'length';

export interface EngineListener {
  /** `report` comes with a sequence's first token of this engine. */
  onToken(id: number, token: SampledToken, report: SequenceReport | undefined, finish: FinishReason | undefined): void;
  /** Device blocks are taken; a fetching sequence can be delivered to. */
  onAdmitted(id: number): void;
  /** They were taken away again: it waits, and computes or hits what it had. */
  onPreempted(id: number): void;
  /** Of a prefill sequence tokens [0, numReady) have their KV here; numRun rows were computed for it. */
  onProgress(id: number, numReady: number, numRun: number): void;
  onPrefilled(id: number, report: SequenceReport): void;
  /** A full block got its name in the device tier: computed here, or fetched from another holder. */
  onStored(hash: AnchoredHash, origin: 'computed' | 'fetched'): void;
  onRemoved(key: BlockKey): void;
  /** What was told so far is not to wait for the step that runs now: who has device blocks, and who has none any more. */
  onPlanned(): void;
}

export class Engine {
  readonly pool: BlockPool;
  readonly #executable: Executable;
  readonly #options: EngineOptions;
  readonly #listener: EngineListener;
  readonly #clock: Clock;
  readonly #scheduler: Scheduler;
  readonly #sequences = new Map<number, Sequence>();
  lastStepMs = 0;
  numSteps = 0;

  constructor(executable: Executable, options: EngineOptions, listener: EngineListener, clock: Clock) {
    this.#executable = executable;
    this.#options = options;
    this.#listener = listener;
    this.#clock = clock;
    this.pool = new BlockPool(options.numBlocks, (key) => {
      listener.onRemoved(key);
    });
    this.#scheduler = new Scheduler(this.pool, options, ({ request }) => {
      listener.onPreempted(request.id);
    });
  }

  get load(): { numRunning: number; numWaiting: number; numPreemptions: number } {
    const { numHeld, numWaiting, numPreemptions } = this.#scheduler;
    return { numRunning: numHeld, numWaiting, numPreemptions };
  }

  /** @throws Failure `overloaded` or `context_too_long`. */
  submit(request: SequenceRequest): void {
    assert(request.tokens.length > 0, 'a sequence has at least one token');
    const sequence = new Sequence(request, this.#options.blockSize, this.#clock.nowMs());
    this.#scheduler.submit(sequence);
    this.#sequences.set(request.id, sequence);
  }

  /** Forgets a sequence; an unknown id was finished already. */
  cancel(id: number): void {
    const sequence = this.#sequences.get(id);
    if (!sequence) return;
    this.#scheduler.remove(sequence);
    this.#sequences.delete(id);
  }

  /** Deliveries are put into one that is loading; one that waits has no device blocks yet. Undefined: it is unknown, or finished. */
  phaseOf(id: number): Phase['kind'] | undefined {
    return this.#sequences.get(id)?.phase.kind;
  }

  /** Puts verified blocks in. One that was hit meanwhile is ignored; one behind a gap stays, and the gap is computed. */
  async deliver(id: number, arrivals: readonly Arrival[]): Promise<void> {
    const sequence = this.#sequences.get(id);
    if (sequence?.phase.kind !== 'loading') return;
    const { blockSize } = this.#options;
    const first = sequence.numComputed / blockSize;
    const end = sequence.hittableBlocks(blockSize);
    const put: { index: number; block: number; hash: AnchoredHash; payload: Uint8Array }[] = [];
    for (const { blockIndex: index, payload } of arrivals) {
      const [block, hash] = [sequence.phase.blocks[index], sequence.chain.hashes[index]];
      if (block === undefined || !hash || index < first || index >= end || sequence.delivered.has(index)) continue;
      put.push({ index, block, hash, payload });
    }
    if (put.length === 0) return;
    const blocks = put.map(({ block }) => block);
    // A cancel that comes while the device copies must not give the blocks to somebody else.
    for (const block of blocks) this.pool.reference(block);
    await this.#executable.importBlocks(
      blocks,
      put.map(({ payload }) => payload),
    );
    this.pool.release(blocks);
    if (this.phaseOf(id) !== 'loading') return;
    sequence.numFetched += put.length * blockSize;
    for (const { index, block, hash } of put) {
      sequence.delivered.add(index);
      this.#seal(block, hash, 'fetched');
    }
    sequence.passDelivered(blockSize);
  }

  /** No more blocks will come: compute what is left. */
  proceed(id: number): void {
    const sequence = this.#sequences.get(id);
    if (!sequence) return;
    sequence.isFetching = false;
    if (sequence.phase.kind === 'loading') sequence.phase = { kind: 'running', blocks: sequence.phase.blocks };
  }

  /** Blocks' KV into their `out`s; says for each whether the pool held it. */
  async exportTo(wanted: readonly { readonly hash: BlockHash; readonly out: Uint8Array }[]): Promise<boolean[]> {
    const found = wanted.map(({ hash, out }) => ({ block: this.pool.find(hash), out }));
    const held = found.flatMap(({ block, out }) => (block === undefined ? [] : [{ block, out }]));
    const blocks = held.map(({ block }) => block);
    for (const block of blocks) this.pool.reference(block);
    if (held.length > 0) {
      await this.#executable.exportBlocks(
        blocks,
        held.map(({ out }) => out),
      );
    }
    this.pool.release(blocks);
    return found.map(({ block }) => block !== undefined);
  }

  /** One step. False when there was nothing to compute. */
  async step(): Promise<boolean> {
    const { work, admitted } = this.#scheduler.schedule();
    const nowMs = this.#clock.nowMs();
    for (const sequence of admitted) this.#noteAdmission(sequence, nowMs);
    for (const sequence of work) sequence.readyMs ??= nowMs;
    if (work.length === 0) {
      return this.#finishIdlePrefills() || admitted.length > 0;
    }
    this.#listener.onPlanned();
    await this.#run(work);
    this.lastStepMs = this.#clock.nowMs() - nowMs;
    this.numSteps++;
    this.#finishIdlePrefills();
    return true;
  }

  #noteAdmission(sequence: Sequence, nowMs: number): void {
    this.#listener.onAdmitted(sequence.request.id);
    if (sequence.admittedMs !== undefined) return;
    sequence.admittedMs = nowMs;
    sequence.numCached = sequence.numComputed;
  }

  async #run(work: readonly Sequence[]): Promise<void> {
    const requests = work.map((sequence) => {
      const end = sequence.numComputed + sequence.numPlanned;
      const isSampled = sequence.request.kind === 'decode' && end === sequence.tokens.length;
      return isSampled ? sampleRequest(sequence.request.sampling, contextOf(sequence)) : undefined;
    });
    const batch = work.map((sequence, i): Segment => {
      const sampleOf = requests[i];
      const start = sequence.numComputed;
      return {
        tokens: sequence.tokens.slice(start, start + sequence.numPlanned),
        start,
        blockTable: sequence.blocks,
        ...(sampleOf ? { samples: [{ row: sequence.numPlanned - 1, ...sampleOf }] } : {}),
      };
    });
    const results = await this.#executable.run(batch);
    let next = 0;
    work.forEach((sequence, i) => {
      const request = requests[i];
      const result = request && results[next++];
      // Cancelled while the device computed: its blocks are back in the pool, its token is nobody's.
      if (this.#sequences.get(sequence.request.id) !== sequence) return;
      this.#advance(sequence, sequence.numPlanned);
      if (request && result)
        this.#take(sequence, sample(sequence.request.sampling, contextOf(sequence), request, result));
    });
  }

  /** Counts computed tokens and names the blocks that became full. */
  #advance(sequence: Sequence, count: number): void {
    const { blockSize } = this.#options;
    const firstBlock = Math.floor(sequence.numComputed / blockSize);
    const lastBlock = Math.floor((sequence.numComputed + count) / blockSize);
    sequence.numComputed += count;
    sequence.numRun += count;
    sequence.chain.extend(sequence.tokens);
    for (let index = firstBlock; index < lastBlock; index++) {
      const [block, hash] = [sequence.blocks[index], sequence.chain.hashes[index]];
      assert(
        block !== undefined && hash,
        `block ${index} of ${sequence.tokens.length} tokens is computed but not named`,
      );
      this.#seal(block, hash, 'computed');
    }
    sequence.passDelivered(blockSize);
    if (sequence.request.kind === 'prefill') {
      this.#listener.onProgress(sequence.request.id, sequence.numComputed, sequence.numRun);
    }
  }

  #seal(block: number, hash: AnchoredHash, origin: 'computed' | 'fetched'): void {
    if (this.pool.seal(block, hash)) this.#listener.onStored(hash, origin);
  }

  #take(sequence: Sequence, sampled: SampledToken): void {
    const { id, maxLength, stopTokenIds, tokens } = sequence.request;
    const isFirst = sequence.tokens.length === tokens.length;
    sequence.tokens.push(sampled.token);
    const finish = stopTokenIds.includes(sampled.token)
      ? 'stop'
      : sequence.tokens.length >= maxLength
        ? 'length'
        : undefined;
    this.#listener.onToken(id, sampled, isFirst ? this.#report(sequence) : undefined, finish);
    if (finish) this.cancel(id);
  }

  /** A prefill sequence may be complete without any computing: everything was hit or fetched. True when blocks came free so. */
  #finishIdlePrefills(): boolean {
    let hasFinished = false;
    for (const sequence of [...this.#sequences.values()]) {
      if (sequence.request.kind !== 'prefill' || sequence.phase.kind !== 'running') continue;
      if (sequence.numComputed < sequence.target(this.#options.blockSize)) continue;
      this.#listener.onPrefilled(sequence.request.id, this.#report(sequence));
      this.cancel(sequence.request.id);
      hasFinished = true;
    }
    return hasFinished;
  }

  #report(sequence: Sequence): SequenceReport {
    const nowMs = this.#clock.nowMs();
    const { submittedMs, admittedMs = nowMs, readyMs = nowMs, numCached, numFetched, numRun } = sequence;
    return {
      cachedTokens: numCached,
      fetchedTokens: numFetched,
      computedTokens: numRun,
      queueMs: admittedMs - submittedMs,
      loadMs: readyMs - admittedMs,
      computeMs: nowMs - readyMs,
    };
  }
}

function contextOf({ tokens, request }: Sequence): Context {
  return { tokens, promptLength: request.promptLength, stopTokenIds: request.stopTokenIds };
}
