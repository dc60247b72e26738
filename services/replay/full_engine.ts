/**
 * A simulated instance that runs the production engine: its scheduler, pacing, block pool and sampling state, over an executable that only
 * takes time.
 *
 *   submit ──► Engine ──step──► TimedExecutable ──its end, in simulated time──► events: tokens, full blocks, progress
 *      └──► fetches ──all arrived──► delivered once the sequence has device blocks
 *
 * Blocks have 128 tokens; to the router an instance has a block of the trace when it has all parts of it. The loop waits
 * by promises only for the ends of steps, which simulated time brings.
 */
import assert from 'node:assert/strict';
import { Engine } from '../../shared/engine/engine.ts';
import type { EngineEvent } from '../../shared/engine/engine_events.ts';
import type { IncomingBlock } from '../../shared/engine/incoming_blocks.ts';
import type { SequenceReport } from '../../shared/engine/sequence_times.ts';
import { TimedExecutable } from '../../shared/engine/timed_executable.ts';
import type { Digest } from '../../shared/kv/block_key.ts';
import { kvSpec } from '../../shared/kv/kv_spec.ts';
import type { InstanceWork } from '../../shared/protocol/instance_work.ts';
import { neutralRequest } from '../../shared/protocol/request.ts';
import { HostBlocks } from './host_blocks.ts';
import type { Activity } from './loop_activity.ts';
import type { EngineContext, EngineSizes, ReplayEngine, SimulatedSource } from './replay_engine.ts';
import { SimulatedPort } from './simulated_links.ts';
import { SimulatedTransfers } from './simulated_transfers.ts';
import type { Handoff, SimulatedSequence } from './simulated_sequence.ts';
import { SimulatedSteps } from './simulated_steps.ts';
import { engineBlockTokens, partsOf, TraceBlockParts } from './trace_block_parts.ts';
import type { TraceHash } from './trace_hashes.ts';

const ROOT = '0'.repeat(32) as Digest;
/** Bytes of a value in the simulated layout of KV. */
const VALUE_BYTES = 4;

/** A sequence in the engine, under the number of its request there. */
interface Entry {
  readonly id: number;
  readonly sequence: SimulatedSequence;
}

/** A simulated instance over the production engine. */
export class FullEngine implements ReplayEngine {
  readonly name: string;
  readonly port: SimulatedPort;
  readonly #sizes: EngineSizes;
  readonly #context: EngineContext & { readonly activity: Activity };
  readonly #numParts: number;
  readonly #blockTokens: number;
  readonly #executable: TimedExecutable;
  readonly #engine: Engine;
  readonly #dram: HostBlocks;
  readonly #parts: TraceBlockParts;
  readonly #transfers: SimulatedTransfers;
  readonly #entries = new Map<number, Entry>();
  readonly #ids = new Map<SimulatedSequence, number>();
  /** Sequences whose blocks have all arrived, and are not in the device yet. */
  readonly #arrived = new Set<number>();
  #numSequences = 0;
  #isLooping = false;

  constructor(name: string, sizes: EngineSizes, context: EngineContext & { readonly activity: Activity }) {
    const { hardware, blockTokens, chunkTokens, tbtTargetMs, noise, queueOrder, fairShares } = sizes;
    const { time, random, activity, events, ledger } = context;
    this.name = name;
    this.#sizes = sizes;
    this.#context = context;
    this.#blockTokens = engineBlockTokens(blockTokens);
    this.#numParts = blockTokens / this.#blockTokens;
    this.#parts = new TraceBlockParts(this.#numParts);
    this.port = new SimulatedPort(hardware.linkBytesPerSecond / 1e3, hardware.dramToDeviceBytesPerSecond / 1e3);
    this.#transfers = new SimulatedTransfers(this, sizes, context);
    this.#dram = new HostBlocks(Math.floor(hardware.dramKvTokens / blockTokens), (isStored, hash) => {
      events.onBlock(isStored, 'dram', hash);
    });
    const width = Math.ceil(hardware.kvBytesPerToken / VALUE_BYTES);
    const spec = kvSpec([{ kind: 'paged', planes: [width], window: 0 }], {
      blockSize: this.#blockTokens,
      valueType: 'f32',
    });
    const numBlocks = Math.floor(hardware.deviceKvTokens / this.#blockTokens);
    const steps = new SimulatedSteps(sizes);
    this.#executable = new TimedExecutable({
      blockBytes: spec.payloadBytes,
      numBlocks,
      nowMs: () => time.nowMs,
      at: (atMs, run) => {
        time.at(atMs, run);
      },
      stepMs: (work) => steps.hardwareMs(work) * (1 + noise * (random.u32() / 2 ** 31 - 1)),
      onEnd: () => {
        activity.begin();
      },
    });
    this.#engine = new Engine(
      this.#executable,
      {
        spec,
        numBlocks,
        chunkTokens,
        maxNumSeqs: hardware.maxRows,
        stepMs: 0,
        tbtTargetMs,
        queueOrder,
        fairShares,
        onCharged: ledger.charged,
        // The trace bounds the queue.
        maxWaiting: Infinity,
        firstSteps: steps.firstSteps,
        emit: (event) => {
          this.#onEvent(event);
        },
      },
      time.clock,
    );
  }

  get numHeld(): number {
    return this.#engine.load.numRunning;
  }

  get numWaiting(): number {
    return this.#engine.load.numWaiting;
  }

  get numPreemptions(): number {
    return this.#engine.load.numPreemptions;
  }

  get busyMs(): number {
    return this.#executable.busyMs;
  }

  get work(): InstanceWork {
    const work = this.#engine.workLeft;
    assert(work, 'the engine knows its steps from the start');
    const numParts = this.#numParts;
    return {
      ...work,
      numBlocks: Math.floor(work.numBlocks / numParts),
      freeBlocks: Math.floor(work.freeBlocks / numParts),
      waitingBlocks: Math.ceil(work.waitingBlocks / numParts),
      blockBytes: this.#sizes.hardware.kvBytesPerToken * this.#sizes.blockTokens,
      ends: work.ends.map((end) => ({ ...end, blocks: Math.floor(end.blocks / numParts) })),
    };
  }

  has(hash: TraceHash): boolean {
    return this.#dram.use(hash) || this.#parts.has(hash);
  }

  submit(sequence: SimulatedSequence, sources: readonly SimulatedSource[]): void {
    const { kind, hashes, target, request, expected, outputTokens, expectedTokens, priority, sharer } =
      sequence.options;
    const id = this.#numSequences++;
    this.#entries.set(id, { id, sequence });
    this.#ids.set(sequence, id);
    const blocks = hashes as readonly TraceHash[];
    this.#transfers.fetchAll(
      sequence,
      sources,
      (hash) => this.#parts.has(hash),
      () => {
        this.#fetched(id, sequence);
      },
    );
    // A prefill computes the full blocks before its last token: one token after what it hands over.
    const promptTokens = kind === 'prefill' ? target + 1 : target;
    this.#context.ledger.waits(sharer.tenant);
    const fetchEnd = Math.floor((expected ? expected.endTokens : sequence.fetchedTo) / this.#blockTokens);
    this.#engine.submit({
      id,
      kind,
      root: ROOT,
      expectedTokens,
      priority,
      sharer,
      fetchEnd,
      // After the blocks that the trace names, blocks are those of the request alone.
      tokens: new Uint32Array(promptTokens).fill(request),
      hashes: partsOf(blocks, this.#numParts),
      request: neutralRequest(promptTokens, promptTokens + (kind === 'prefill' ? 0 : outputTokens)),
      promptLogprobsFrom: promptTokens,
      isFetching: sequence.numFetching > 0,
    });
    this.#wake();
  }

  handedOver({ sequence, endTokens }: Handoff): void {
    sequence.fetchedTo = endTokens;
    const id = this.#ids.get(sequence);
    assert(id !== undefined, 'a sequence that expects KV waits for it');
    this.#fetched(id, sequence);
  }

  #fetched(id: number, sequence: SimulatedSequence): void {
    sequence.numFetching--;
    if (sequence.numFetching > 0) return;
    this.#arrived.add(id);
    this.#wake();
  }

  /** Starts the loop, unless it runs or waits for a step. */
  #wake(): void {
    if (this.#isLooping) return;
    const { activity } = this.#context;
    this.#isLooping = true;
    activity.begin();
    this.#loop().then(
      () => {
        activity.end();
      },
      (error: unknown) => {
        activity.fail(error);
      },
    );
  }

  /** Runs steps until there is nothing to do. */
  async #loop(): Promise<void> {
    const { activity } = this.#context;
    for (;;) {
      if (this.#arrived.size > 0) await this.#deliver();
      const before = this.#executable.numRuns;
      const stepped = this.#engine.step();
      const numInFlight = this.#executable.numRuns - this.#engine.numSteps;
      // The engine waits for its oldest step, whose end begins activity again.
      if (numInFlight > this.#executable.numAhead || (numInFlight > 0 && this.#executable.numRuns === before))
        activity.end();
      const hasWorked = await stepped;
      if (!hasWorked && !this.#mayDeliver()) break;
    }
    this.#isLooping = false;
  }

  #mayDeliver(): boolean {
    for (const id of this.#arrived) if (this.#engine.stateOf(id) === 'loading') return true;
    return false;
  }

  /** Delivers the blocks of the sequences that have device blocks for them. */
  async #deliver(): Promise<void> {
    for (const id of this.#arrived) {
      const state = this.#engine.stateOf(id);
      if (state === 'waiting') continue;
      this.#arrived.delete(id);
      const sequence = this.#entries.get(id)?.sequence;
      if (state !== 'loading' || !sequence) continue;
      await this.#engine.incoming.blocks(id, incoming(Math.floor(sequence.fetchedTo / this.#blockTokens)));
      this.#engine.incoming.ended(id);
      this.#transfers.handOver(sequence, Math.min(sequence.fetchedTo, sequence.options.target));
    }
  }

  #onEvent(event: EngineEvent): void {
    if (event.kind === 'stored') {
      const block = this.#parts.stored(event.hash.key);
      if (block !== undefined) this.#stored(block, event.origin);
    } else if (event.kind === 'removed') {
      const block = this.#parts.removed(event.key);
      if (block !== undefined) this.#context.events.onBlock(false, 'device', this.#context.hashes.of(block));
    } else if (event.kind !== 'planned') {
      const entry = this.#entries.get(event.id);
      assert(entry, 'the engine names its sequences');
      this.#onSequence(entry, event);
    }
  }

  #stored(block: number, origin: 'computed' | 'fetched'): void {
    const hash = this.#context.hashes.of(block);
    this.#context.events.onBlock(true, 'device', hash);
    if (origin === 'computed') this.#dram.keep(hash);
  }

  #onSequence({ id, sequence }: Entry, event: Exclude<EngineEvent, { kind: 'stored' | 'removed' | 'planned' }>): void {
    if (event.kind === 'token') {
      if (event.report) count(sequence, event.report);
      sequence.output.add();
      sequence.options.onToken(sequence);
      if (event.finish) this.#end(id, sequence);
    } else if (event.kind === 'progress') {
      this.#transfers.handOver(sequence, event.numReady);
    } else if (event.kind === 'prefilled') {
      count(sequence, event.report);
      this.#transfers.handOver(sequence, sequence.options.target);
      this.#end(id, sequence);
    } else {
      assert(event.kind === 'admitted' || event.kind === 'preempted', 'no sequence of a replay is refused');
      this.#context.ledger[event.kind](sequence.options.sharer.tenant);
    }
  }

  #end(id: number, sequence: SimulatedSequence): void {
    this.#entries.delete(id);
    this.#ids.delete(sequence);
    this.#arrived.delete(id);
    sequence.options.onEnd(sequence);
  }
}

/** Adds where the KV of the sequence's tokens came from; fetched ones were counted when they were asked for. */
function count({ tokens }: SimulatedSequence, { cachedTokens, computedTokens }: SequenceReport): void {
  tokens.device += cachedTokens;
  tokens.computed += computedTokens;
}

const NO_BYTES = new Uint8Array(0);
const blocks: IncomingBlock[] = [];

/** Returns blocks [0, count) as they come from elsewhere. Nobody reads their bytes. */
function incoming(count: number): readonly IncomingBlock[] {
  while (blocks.length < count) blocks.push({ blockIndex: blocks.length, payload: NO_BYTES, origin: 'instance' });
  return blocks.slice(0, count);
}
