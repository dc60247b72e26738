/**
 * One instance of the simulated cluster: a step-time model over the production block pool.
 *
 *   submit ──► waiting ──blocks for the whole prompt──► loading ──fetches arrived──► prompt ──► generating ──► ended
 *
 * It plans steps as the engine does: a row for each sequence that generates, then prompts in the queue's order within the rows that keep a
 * step to its target. A step takes the time of the hardware's formula, times a random factor of the seed.
 */
import assert from 'node:assert/strict';
import type { Random } from '../../shared/base/random.ts';
import type { BlockPool } from '../../shared/engine/block_pool.ts';
import { FairOrder } from '../../shared/engine/fair_order.ts';
import type { QueueOrder } from '../../shared/engine/queue_order.ts';
import { pairsOf, type InstanceWork } from '../../shared/protocol/instance_work.ts';
import type { EngineContext, EngineSizes, ReplayEngine, SimulatedSource } from './replay_engine.ts';
import type { ReplayTime } from './replay_time.ts';
import { SimulatedBlocks } from './simulated_blocks.ts';
import { SimulatedGeneration } from './simulated_generation.ts';
import { simulatedOrder } from './simulated_order.ts';
import { SimulatedPort } from './simulated_links.ts';
import type { Handoff, SimulatedSequence } from './simulated_sequence.ts';
import { workOf } from './simulated_work.ts';
import { SimulatedTenants } from './simulated_tenants.ts';
import { SimulatedSteps } from './simulated_steps.ts';
import { SimulatedTransfers } from './simulated_transfers.ts';
import type { TraceHash } from './trace_hashes.ts';

/** Chunks of rows of prompts that hold device blocks, beyond which no further prompt gets some. */
const ADMITTED_CHUNKS = 2;

/** A simulated instance: queue, device blocks, host memory, steps. */
export class SimulatedEngine implements ReplayEngine {
  readonly name: string;
  readonly sizes: EngineSizes;
  readonly port: SimulatedPort;
  readonly steps: SimulatedSteps;
  readonly #time: ReplayTime;
  readonly #random: Random;
  readonly #blocks: SimulatedBlocks;
  readonly #transfers: SimulatedTransfers;
  readonly #waiting: SimulatedSequence[] = [];
  /** Undefined: first come first. */
  readonly #order: QueueOrder<SimulatedSequence> | undefined;
  readonly #tenants: SimulatedTenants;
  /** Sequences that hold device blocks and do not generate yet, in order of arrival. */
  readonly #prompts: SimulatedSequence[] = [];
  readonly #generation: SimulatedGeneration;
  /** Rows of prompts in the step that runs. */
  readonly #rows = new Map<SimulatedSequence, number>();
  #isRunning = false;
  /** Milliseconds in which steps ran, and their number. */
  busyMs = 0;
  numSteps = 0;
  numPreemptions = 0;

  constructor(name: string, sizes: EngineSizes, context: EngineContext) {
    const { hardware } = sizes;
    this.name = name;
    this.sizes = sizes;
    this.#time = context.time;
    this.#random = context.random;
    this.#blocks = new SimulatedBlocks(sizes, context);
    this.#generation = new SimulatedGeneration(sizes.blockTokens);
    this.#transfers = new SimulatedTransfers(this, sizes, context);
    this.port = new SimulatedPort(hardware.linkBytesPerSecond / 1e3, hardware.dramToDeviceBytesPerSecond / 1e3);
    this.steps = new SimulatedSteps(sizes);
    this.#order = simulatedOrder(sizes, this.#blocks, this.steps, () => this.numHeld);
    this.#tenants = new SimulatedTenants(context.ledger, this.#order instanceof FairOrder ? this.#order : undefined);
  }

  get pool(): BlockPool {
    return this.#blocks.pool;
  }

  get numHeld(): number {
    return this.#prompts.length + this.generating.length;
  }

  get numWaiting(): number {
    return this.#waiting.length;
  }

  get work(): InstanceWork {
    return workOf(this);
  }

  get waiting(): readonly SimulatedSequence[] {
    return this.#waiting;
  }

  get prompts(): readonly SimulatedSequence[] {
    return this.#prompts;
  }

  get generating(): readonly SimulatedSequence[] {
    return this.#generation.list;
  }

  get contextTokens(): number {
    return this.#generation.contextTokens;
  }

  /** Begins the fetches of a sequence, and queues it. */
  submit(sequence: SimulatedSequence, sources: readonly SimulatedSource[]): void {
    this.#transfers.fetchAll(
      sequence,
      sources,
      (hash) => this.pool.find(hash) !== undefined,
      () => {
        this.arrived(sequence);
      },
    );
    sequence.arrivedMs = this.#time.nowMs;
    this.#tenants.waits(sequence);
    this.#waiting.push(sequence);
    this.#begin();
  }

  /** Whether the block is in the device or in host memory; a block that is asked for counts as used. */
  has(hash: TraceHash): boolean {
    return this.#blocks.has(hash);
  }

  /** Returns how many leading blocks of a sequence are on the device, or computed by a sequence before it. */
  readonly hitBlocks = (sequence: SimulatedSequence): number => this.#blocks.hitBlocks(sequence);

  /** A fetch of the sequence has arrived. */
  arrived(sequence: SimulatedSequence): void {
    sequence.numFetching--;
    if (sequence.numFetching > 0 || sequence.phase !== 'loading') return;
    this.#ready(sequence);
    this.#begin();
  }

  /** All blocks that come from elsewhere are there: the rest is computed. */
  #ready(sequence: SimulatedSequence): void {
    sequence.phase = 'prompt';
    sequence.computed = Math.max(sequence.computed, Math.min(sequence.fetchedTo, sequence.length));
    this.#blocks.seal(sequence);
    this.#transfers.handOver(sequence, sequence.computed);
    if (sequence.options.kind !== 'prefill' || sequence.computed < sequence.length) return;
    this.#prompts.splice(this.#prompts.indexOf(sequence), 1);
    this.#end(sequence);
  }

  #admit(): void {
    if (this.#waiting.length === 0) return;
    if (this.#order) {
      this.#admitBy(this.#order);
      return;
    }
    let rowsBefore = 0;
    for (const one of this.#prompts) rowsBefore += rowsHere(one);
    for (let at = 0; at < this.#waiting.length;) {
      const head = this.#waiting[at]!;
      const outcome = this.#enter(head, rowsBefore);
      if (outcome === 'none') return;
      if (outcome === 'not this') at++;
      else rowsBefore += rowsHere(head);
    }
  }

  /** Admits by an order in which waiting sequences may come before prompts that hold device blocks. */
  #admitBy(order: QueueOrder<SimulatedSequence>): void {
    // Sorting a long queue for nothing would take most of a replay's time; without fair shares it is sorted as it always was.
    if (order instanceof FairOrder && this.numHeld >= this.sizes.hardware.maxRows) return;
    let rowsBefore = 0;
    for (const one of order.sorted([...this.#prompts, ...this.#waiting], this.#time.nowMs, this.generating)) {
      const outcome = one.phase === 'waiting' ? this.#enter(one, rowsBefore) : 'entered';
      if (outcome === 'none') return;
      if (outcome === 'entered') rowsBefore += rowsHere(one);
    }
  }

  /**
   * Gives a waiting sequence its device blocks, by the rules of shared/engine/admission.ts. `rowsBefore`: rows of prompts before it that
   * hold some. Returns `none` when admission must stop, `not this` when only this sequence must wait.
   */
  #enter(head: SimulatedSequence, rowsBefore: number): 'entered' | 'not this' | 'none' {
    if (this.numHeld >= this.sizes.hardware.maxRows) return 'none';
    if (!head.options.expected) {
      const isSmall = this.#order !== undefined && head.promptRows <= this.sizes.blockTokens;
      // Under an order, sequences that compute little or nothing here pass those that wait for rows.
      if (rowsBefore > ADMITTED_CHUNKS * this.sizes.chunkTokens && !isSmall) return this.#order ? 'not this' : 'none';
      if (this.#blocks.isNextComputed(head)) return 'not this';
    }
    if (!this.#blocks.admit(head)) return 'none';
    this.#waiting.splice(this.#waiting.indexOf(head), 1);
    this.#tenants.admitted(head);
    head.phase = 'loading';
    this.#prompts.push(head);
    if (head.numFetching === 0) this.#ready(head);
    return 'entered';
  }

  /** Plans and starts a step, when none runs and there is something to compute. */
  #begin(): void {
    if (this.#isRunning) return;
    this.#admit();
    this.#growAll();
    const numGenerating = this.generating.length;
    const { contextTokens } = this;
    const tokens = { rows: numGenerating, pairs: 0, contextTokens, sequences: numGenerating };
    const time = this.steps.promptTime(tokens);
    const mostRows = Math.min(this.sizes.chunkTokens - numGenerating, this.steps.promptRows(numGenerating));
    let rowsLeft = mostRows;
    let [pairs, numSequences] = [0, numGenerating];
    const { nowMs } = this.#time;
    for (const sequence of this.#order?.sorted(this.#prompts, nowMs, this.generating) ?? this.#prompts) {
      if (sequence.phase !== 'prompt') continue;
      const { computed } = sequence;
      const most = Math.min(rowsLeft, sequence.length - computed);
      const count = Math.max(0, Math.min(most, time?.rowsFrom(computed) ?? most));
      if (count === 0) continue;
      this.#rows.set(sequence, count);
      time?.took(computed, count);
      rowsLeft -= count;
      pairs += pairsOf(computed, count);
      numSequences++;
    }
    const rows = numGenerating + mostRows - rowsLeft;
    if (rows === 0) return;
    this.#tenants.charge(this.steps.step, this.#rows, this.#generation.tenants, numSequences);
    const { noise } = this.sizes;
    const factor = 1 + noise * (this.#random.u32() / 2 ** 31 - 1);
    const work = { rows, pairs, contextTokens, sequences: numSequences };
    const ms = this.steps.hardwareMs(work) * factor;
    this.#isRunning = true;
    this.numSteps++;
    this.busyMs += ms;
    this.#time.after(ms, () => {
      this.steps.took(work, rows - numGenerating, ms);
      this.#complete();
    });
  }

  /** Takes a further block for each generating sequence that fills one; preempts the last ones when there is none. */
  #growAll(): void {
    for (const sequence of this.#generation.takeFilled()) {
      while (sequence.phase === 'generating' && !this.#blocks.grow(sequence)) {
        const latest = this.#last();
        assert(latest, 'a sequence that needs a block holds one');
        this.#preempt(latest);
      }
      if (sequence.phase === 'generating') this.#generation.grew(sequence);
    }
  }

  /** Returns the sequence whose device blocks are taken when others lack some. */
  #last(): SimulatedSequence | undefined {
    if (this.#order) return this.#order.sorted([...this.generating, ...this.#prompts], this.#time.nowMs).at(-1);
    return this.#prompts.at(-1) ?? this.generating.at(-1);
  }

  #preempt(sequence: SimulatedSequence): void {
    if (sequence.phase === 'generating') this.#generation.remove(sequence);
    else this.#prompts.splice(this.#prompts.indexOf(sequence), 1);
    this.#blocks.release(sequence);
    sequence.computed = 0;
    // Host memory keeps what arrives for a sequence that still loads.
    if (sequence.phase !== 'loading') sequence.fetchedTo = 0;
    sequence.phase = 'waiting';
    this.numPreemptions++;
    this.#tenants.waits(sequence);
    this.#waiting.unshift(sequence);
  }

  #complete(): void {
    this.#isRunning = false;
    for (const sequence of this.#generation.stepped(this.#time.nowMs)) this.#end(sequence);
    if (this.#rows.size > 0) {
      const rows = [...this.#rows];
      this.#rows.clear();
      for (const [sequence, count] of rows) this.#computed(sequence, count);
    }
    this.#begin();
  }

  #computed(sequence: SimulatedSequence, count: number): void {
    // A sequence may have been preempted while its step ran.
    if (sequence.phase !== 'prompt') return;
    sequence.computed += count;
    sequence.tokens.computed += count;
    this.#blocks.seal(sequence);
    this.#transfers.handOver(sequence, sequence.computed);
    if (sequence.computed < sequence.length) return;
    this.#prompts.splice(this.#prompts.indexOf(sequence), 1);
    if (sequence.options.kind === 'prefill') {
      this.#end(sequence);
      return;
    }
    sequence.phase = 'generating';
    sequence.output.add();
    sequence.options.onToken(sequence);
    if (sequence.generated >= sequence.options.outputTokens) this.#end(sequence);
    else this.#generation.join(sequence);
  }

  /** Ends a sequence that is in no list any more. */
  #end(sequence: SimulatedSequence): void {
    sequence.phase = 'ended';
    this.#tenants.ended(sequence);
    this.#blocks.release(sequence);
    sequence.options.onEnd(sequence);
  }

  /** The last KV of a prompt that another instance computes has come. */
  handedOver({ sequence, endTokens }: Handoff): void {
    sequence.fetchedTo = endTokens;
    this.arrived(sequence);
  }
}

/** Rows of a prompt that are computed here, and not by another instance for it. */
function rowsHere(sequence: SimulatedSequence): number {
  return sequence.options.expected ? 0 : sequence.promptRows;
}
