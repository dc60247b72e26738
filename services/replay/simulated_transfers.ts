/** KV that one simulated instance fetches, and that it sends to the decode instance of a prompt. */
import type { EngineContext, EngineSizes, ReplayEngine, SimulatedSource } from './replay_engine.ts';
import { copyIn, send } from './simulated_links.ts';
import type { SimulatedSequence } from './simulated_sequence.ts';
import type { TraceHash } from './trace_hashes.ts';

/** Transfers of one instance. */
export class SimulatedTransfers {
  readonly #engine: ReplayEngine;
  readonly #sizes: EngineSizes;
  readonly #context: EngineContext;

  constructor(engine: ReplayEngine, sizes: EngineSizes, context: EngineContext) {
    this.#engine = engine;
    this.#sizes = sizes;
    this.#context = context;
  }

  /**
   * Begins the fetches of a sequence, after the blocks that the device has. Calls `onArrived` when a fetch has arrived; the sequence counts
   * them, and the KV that another instance computes for it.
   */
  fetchAll(
    sequence: SimulatedSequence,
    sources: readonly SimulatedSource[],
    isOnDevice: (hash: TraceHash) => boolean,
    onArrived: () => void,
  ): void {
    const blocks = sequence.options.hashes as readonly TraceHash[];
    const { blockTokens } = this.#sizes;
    let at = 0;
    while (at < blocks.length && isOnDevice(blocks[at]!)) at++;
    for (const { holder, start, end } of sources) {
      if (end <= at) continue;
      if (start > at) break;
      const from = at;
      while (at < end && holder.has(blocks[at]!)) at++;
      this.#fetch(sequence, holder, at - from, onArrived);
      if (at > from) sequence.fetchedTo = at * blockTokens;
      if (at < end) break;
    }
    const { expected } = sequence.options;
    if (!expected) return;
    // The prefill instance has all blocks before the first that it computes, those included that a holder lacks after all.
    expected.sentTokens = Math.min(expected.sentTokens, at * blockTokens);
    sequence.numFetching++;
  }

  #fetch(sequence: SimulatedSequence, holder: ReplayEngine, numBlocks: number, onArrived: () => void): void {
    if (numBlocks <= 0) return;
    const { time, events } = this.#context;
    const { port } = this.#engine;
    const numTokens = numBlocks * this.#sizes.blockTokens;
    const bytes = numTokens * this.#sizes.hardware.kvBytesPerToken;
    const isOwn = holder === this.#engine;
    const transfer = isOwn ? copyIn(time, port, bytes) : send(time, holder.port, port, bytes);
    sequence.tokens[isOwn ? 'dram' : 'remote'] += numTokens;
    sequence.numFetching++;
    time.at(transfer.arrivesMs, () => {
      if (!isOwn) events.onFetched(holder, this.#engine, bytes, transfer);
      onArrived();
    });
  }

  /** Sends the KV before `readyTokens` that a prefill has and its decode instance lacks. */
  handOver(sequence: SimulatedSequence, readyTokens: number): void {
    const { handoff, target } = sequence.options;
    if (!handoff || handoff.isDone) return;
    const { time, events } = this.#context;
    const { engine } = handoff;
    const isLast = readyTokens >= target;
    const numTokens = readyTokens - handoff.sentTokens;
    handoff.isDone = isLast;
    if (numTokens > 0) {
      const bytes = numTokens * this.#sizes.hardware.kvBytesPerToken;
      const transfer = send(time, this.#engine.port, engine.port, bytes);
      handoff.sentTokens = readyTokens;
      time.at(transfer.arrivesMs, () => {
        events.onFetched(this.#engine, engine, bytes, transfer);
        if (isLast) engine.handedOver(handoff);
      });
    } else if (isLast) engine.handedOver(handoff);
  }
}
