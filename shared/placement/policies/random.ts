/** Random placement: any prefill instance and any decode instance, whatever they hold or do. */
import { atRandom, lowest } from './lowest.ts';
import type { Rule } from './rule_policy.ts';

const any = (): number[] => [];

/** Chooses one instance of each pool at random. */
export const random: Rule = ({ decode, prefill }, { snapshot }) => {
  const [ofPrefill, ofDecode] = snapshot.random;
  return {
    decode: lowest(decode, any, atRandom(ofDecode)),
    prefill: prefill.length > 0 ? lowest(prefill, any, atRandom(ofPrefill)) : undefined,
    reason: 'any instances',
  };
};
