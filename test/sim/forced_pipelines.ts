/**
 * Placements in a pipeline where the policy would have one prefill instance: prompts of the simulation are too short for any price to
 * divide them.
 */
import type { HttpApp } from '../../services/router/router.ts';
import { inPipeline } from '../../shared/placement/pipeline.ts';
import type { ClusterSnapshot, Decision, InstanceSnapshot, Question } from '../../shared/placement/policy.ts';

/** Blocks of a chunk, and milliseconds that one instance waits for the other, by turns. */
const CHUNKS = [1, 2, 1, 3];
const PATIENCE_MS = [400, 60, 200];

/** Divides, from now on, the prompts of every placement with a prefill instance where there is a second one. */
export function forcePipelines({ policy }: HttpApp, onForced: () => void): void {
  const decide = policy.decide.bind(policy);
  let turn = 0;
  policy.decide = (question, snapshot) => {
    const decision = decide(question, snapshot);
    const forced = divided(decision, question, snapshot, turn);
    if (!forced) return decision;
    turn++;
    onForced();
    return forced;
  };
}

function divided(
  decision: Decision,
  question: Question,
  snapshot: ClusterSnapshot,
  turn: number,
): Decision | undefined {
  if (decision.kind !== 'place' || decision.placement.prefill === undefined || decision.placement.second)
    return undefined;
  const { placement } = decision;
  const all = [...snapshot.prefill, ...snapshot.decode];
  const prefill = all.find(({ id }) => id === placement.prefill);
  const isOther = ({ id, isPlaceable, isAvoided, maxModelLen }: InstanceSnapshot): boolean =>
    id !== placement.prefill &&
    id !== placement.decode &&
    isPlaceable &&
    !isAvoided &&
    maxModelLen >= question.numTokens;
  const others = all.filter(isOther);
  const second = others[turn % Math.max(1, others.length)];
  if (!prefill || !second) return undefined;
  const [chunkBlocks, patienceMs] = [CHUNKS[turn % CHUNKS.length]!, PATIENCE_MS[turn % PATIENCE_MS.length]!];
  return {
    ...decision,
    placement: inPipeline(placement, question, snapshot, { prefill, second, chunkBlocks, patienceMs }),
  };
}
