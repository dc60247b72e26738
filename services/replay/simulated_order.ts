/** The production queue orders, and the fair order above them, over simulated sequences. */
import { expectedMs } from '../../shared/engine/engine_time.ts';
import { FairOrder } from '../../shared/engine/fair_order.ts';
import { queueOrderOf, type QueuedSequence, type QueueOrder } from '../../shared/engine/queue_order.ts';
import type { EngineSizes } from './replay_engine.ts';
import type { SimulatedBlocks } from './simulated_blocks.ts';
import type { SimulatedSequence } from './simulated_sequence.ts';
import type { SimulatedSteps } from './simulated_steps.ts';

/**
 * Returns the order of an instance's queue; undefined where all sequences come in the order of their arrival. `numHeld`: sequences that
 * share a step now.
 */
export function simulatedOrder(
  sizes: EngineSizes,
  blocks: SimulatedBlocks,
  steps: SimulatedSteps,
  numHeld: () => number,
): QueueOrder<SimulatedSequence> | undefined {
  const { queueOrder = 'first_come', hasPriorities = false, hasTenants = false, fairShares = true } = sizes;
  const isFair = hasTenants && fairShares;
  if (queueOrder === 'first_come' && !hasPriorities && !isFair) return undefined;
  const order = queueOrderOf<SimulatedSequence>(queueOrder, {
    read: readSequence,
    nextBlockOf: (sequence) => sequence.options.hashes[blocks.deviceBlocks(sequence)]?.digest,
  });
  if (!isFair) return order;
  const { chunkTokens } = sizes;
  return new FairOrder(order, {
    sharerOf: ({ options }) => options.sharer,
    expectedMs: (sequence) => {
      const { computed, promptRows } = sequence;
      const left = { start: computed, promptRows, tokens: tokensLeft(sequence) };
      return expectedMs(steps.step, left, { chunkTokens, numSequences: numHeld() });
    },
  });
}

/** Facts as shared/engine/queued_sequences.ts reads them from the engine's sequences. */
function readSequence(sequence: SimulatedSequence): QueuedSequence {
  const { options, arrivedMs, promptRows, tokens, generated } = sequence;
  return {
    priority: options.priority,
    arrivedMs,
    promptRows: options.target,
    rowsLeft: promptRows + tokensLeft(sequence),
    // The first token of an answer comes with a row of its prompt.
    rowsRun: tokens.computed + Math.max(0, generated - 1),
  };
}

function tokensLeft({ options, generated }: SimulatedSequence): number {
  return options.kind === 'decode' ? Math.max(0, options.expectedTokens - generated) : 0;
}
