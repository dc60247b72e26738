/** Facts that a queue order reads of an engine's sequences. */
import type { BlockPool } from './block_pool.ts';
import type { QueuedSequence, SequenceReader } from './queue_order.ts';
import type { Sequence } from './sequence.ts';

/** Returns the reader of sequences whose full blocks `pool` has. */
export function sequenceReader(pool: BlockPool): SequenceReader<Sequence> {
  return {
    read: readSequence,
    nextBlockOf: ({ chain, hittableBlocks }) =>
      chain.hashes.slice(0, hittableBlocks).find((hash) => pool.find(hash) === undefined)?.digest,
  };
}

function readSequence(sequence: Sequence): QueuedSequence {
  const { request, times, tokens, rowsHere } = sequence;
  const { kind, expectedTokens = 0, priority = 0 } = request;
  const numOutput = tokens.length - request.request.promptLength;
  const tokensLeft = kind === 'decode' ? Math.max(0, expectedTokens - numOutput) : 0;
  return {
    priority,
    arrivedMs: times.submittedMs,
    promptRows: request.tokens.length,
    rowsLeft: rowsHere + tokensLeft,
    rowsRun: times.numRun,
  };
}
