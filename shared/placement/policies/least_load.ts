/** Least load: the shortest queue of each pool, whatever its instances hold. */
import type { InstanceSnapshot } from '../policy.ts';
import { inTurn, lowest } from './lowest.ts';
import type { Rule } from './rule_policy.ts';

const queueOf = ({ queueLength }: InstanceSnapshot): number[] => [queueLength];

/** Chooses the instance with the shortest queue in each pool. */
export const leastLoad: Rule = ({ decode, prefill }, { snapshot: { tieBreak } }) => ({
  decode: lowest(decode, queueOf, inTurn(tieBreak)),
  prefill: prefill.length > 0 ? lowest(prefill, queueOf, inTurn(tieBreak)) : undefined,
  reason: 'shortest queues',
});
