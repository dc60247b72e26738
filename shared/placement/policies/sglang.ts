/**
 * SGLang's rule `cache_aware` (sgl-model-gateway, policies/cache_aware.rs), with the defaults of its Rust entry point. The gateway
 * chooses both instances by its main policy unless other policies are configured (`get_decode_policy` of policies/registry.rs), so
 * both pools go by this rule:
 *
 *   most − least > 32 and most > 1.1 · least   shortest queue
 *   matched share > 0.5                        longest matched prefix
 *   otherwise                                  shortest queue
 *
 * SGLang matches texts that it has sent before; here the prefix index says what an instance holds, which is never worse.
 */
import type { InstanceSnapshot } from '../policy.ts';
import { inTurn, lowest } from './lowest.ts';
import type { Rule, RuleInput } from './rule_policy.ts';

const CACHE_THRESHOLD = 0.5;
const BALANCE_ABS_THRESHOLD = 32;
const BALANCE_REL_THRESHOLD = 1.1;

/** Chooses an instance of each pool by SGLang's rule `cache_aware`. */
export const sglang: Rule = ({ decode, prefill }, input) => {
  const ofDecode = cacheAware(decode, input);
  if (prefill.length === 0) return { decode: ofDecode.one, prefill: undefined, reason: ofDecode.why };
  const ofPrefill = cacheAware(prefill, input);
  const reason = `prefill by ${ofPrefill.why}, decode by ${ofDecode.why}`;
  return { decode: ofDecode.one, prefill: ofPrefill.one, reason };
};

function cacheAware(
  pool: readonly InstanceSnapshot[],
  { question, snapshot, matches }: RuleInput,
): { readonly one: InstanceSnapshot; readonly why: string } {
  const queues = pool.map(({ queueLength }) => queueLength);
  const [most, least] = [Math.max(...queues), Math.min(...queues)];
  const tieBreak = inTurn(snapshot.tieBreak);
  const shortest = (): InstanceSnapshot => lowest(pool, ({ queueLength }) => [queueLength], tieBreak);
  if (most - least > BALANCE_ABS_THRESHOLD && most > BALANCE_REL_THRESHOLD * least)
    return { one: shortest(), why: `shortest queue (queues of ${least} to ${most})` };
  const longest = lowest(pool, ({ id }) => [-(matches.get(id) ?? 0)], tieBreak);
  const matched = (matches.get(longest.id) ?? 0) * snapshot.blockSize;
  const share = matched / question.numTokens;
  if (share > CACHE_THRESHOLD) return { one: longest, why: `prefix (${matched} of ${question.numTokens} tokens)` };
  return { one: shortest(), why: `shortest queue (${matched} of ${question.numTokens} tokens matched)` };
}
