/** Round robin: the instances of each pool in turn, by their names. */
import { inTurn, lowest } from './lowest.ts';
import type { Rule } from './rule_policy.ts';

const any = (): number[] => [];

/** Chooses the next instance of each pool, by the number of decisions before. */
export const roundRobin: Rule = ({ decode, prefill }, { snapshot: { turn } }) => ({
  decode: lowest(decode, any, inTurn(turn)),
  prefill: prefill.length > 0 ? lowest(prefill, any, inTurn(turn)) : undefined,
  reason: `turn ${turn}`,
});
