/**
 * Local prefix: the instance that computes the prompt is the one with the longest prefix of its own, however long its queue is;
 * nothing is fetched from others. With prefill instances, the decode instance is the one with the shortest queue.
 */
import type { InstanceSnapshot } from '../policy.ts';
import { inTurn, lowest } from './lowest.ts';
import type { Rule } from './rule_policy.ts';

/** Chooses the computing instance by its own prefix, then by its queue. */
export const localPrefix: Rule = ({ decode, prefill }, { matches, snapshot: { tieBreak } }) => {
  const matchOf = ({ id }: InstanceSnapshot): number => matches.get(id) ?? 0;
  const byPrefix = (one: InstanceSnapshot): number[] => [-matchOf(one), one.queueLength];
  const byQueue = (one: InstanceSnapshot): number[] => [one.queueLength, -matchOf(one)];
  if (prefill.length === 0) {
    const chosen = lowest(decode, byPrefix, inTurn(tieBreak));
    return { decode: chosen, prefill: undefined, reason: `longest own prefix, ${matchOf(chosen)} blocks` };
  }
  const chosen = lowest(prefill, byPrefix, inTurn(tieBreak));
  return {
    decode: lowest(decode, byQueue, inTurn(tieBreak)),
    prefill: chosen,
    reason: `longest own prefix of a prefill instance, ${matchOf(chosen)} blocks`,
  };
};
