/** The production queue orders over simulated sequences. */
import { queueOrderOf, type QueuedSequence, type QueueOrder } from '../../shared/engine/queue_order.ts';
import type { EngineSizes } from './replay_engine.ts';
import type { SimulatedBlocks } from './simulated_blocks.ts';
import type { SimulatedSequence } from './simulated_sequence.ts';

/** Returns the order of an instance's queue; undefined where all sequences come in the order of their arrival. */
export function simulatedOrder(
  { queueOrder = 'first_come', hasPriorities = false }: EngineSizes,
  blocks: SimulatedBlocks,
): QueueOrder<SimulatedSequence> | undefined {
  if (queueOrder === 'first_come' && !hasPriorities) return undefined;
  return queueOrderOf<SimulatedSequence>(queueOrder, {
    read: readSequence,
    nextBlockOf: (sequence) => sequence.options.hashes[blocks.deviceBlocks(sequence)]?.digest,
  });
}

/** Facts as shared/engine/queued_sequences.ts reads them from the engine's sequences. */
function readSequence(sequence: SimulatedSequence): QueuedSequence {
  const { options, arrivedMs, promptRows, tokens, generated } = sequence;
  const tokensLeft = options.kind === 'decode' ? Math.max(0, options.expectedTokens - generated) : 0;
  return {
    priority: options.priority,
    arrivedMs,
    promptRows: options.target,
    rowsLeft: promptRows + tokensLeft,
    // The first token of an answer comes with a row of its prompt.
    rowsRun: tokens.computed + Math.max(0, generated - 1),
  };
}
