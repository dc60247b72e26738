/**
 * llm-d's weighted scorers, with the weights that it ships (guides/no-kubernetes-deployment/router/epp/config.yaml): each gives an
 * instance of a pool 0 to 1, and the highest weighted sum wins; ties are broken at random.
 *
 *   3  prefix       matched blocks / blocks of the prompt
 *   2  queue        (longest − its prompts that wait) / (longest − shortest); 1 where all are equal
 *   2  kv-util      share of device blocks that are free
 *   2  no-hit-lru   0.5 when anybody in the pool has a hit; else 1 − rank / (instances − 1), where rank 0 has waited longest for a
 *                   request without a hit, and those that never had one come first
 *
 * The decode instance is chosen first. Its `prefix-based-pd-decider` asks a prefill instance when at least NON_CACHED_TOKENS are not
 * cached on the decode instance.
 */
import { atRandom, lowest } from './lowest.ts';
import { needingWork, type KnownInstance, type RuleInput } from './rule_policy.ts';

const WEIGHTS = { prefix: 3, queue: 2, kvUtil: 2, noHitLru: 2 };
/** The value of llm-d's own example of disaggregation. */
const NON_CACHED_TOKENS = 16;

/** Chooses the decode instance, then perhaps a prefill instance, by the highest weighted score. */
export const llmd = needingWork(({ decode, prefill }, input) => {
  const { question, snapshot, matches } = input;
  const [ofPrefill, ofDecode] = snapshot.random;
  const chosen = best(decode, input, ofDecode);
  const numLeft = question.numTokens - (matches.get(chosen.one.id) ?? 0) * snapshot.blockSize;
  const reason = `decode scores ${chosen.score.toFixed(2)}, ${numLeft} tokens not cached there`;
  if (prefill.length === 0 || numLeft < NON_CACHED_TOKENS) return { decode: chosen.one, prefill: undefined, reason };
  const first = best(prefill, input, ofPrefill);
  return { decode: chosen.one, prefill: first.one, reason: `${reason}; prefill scores ${first.score.toFixed(2)}` };
});

function best(
  pool: readonly KnownInstance[],
  { question, matches }: RuleInput,
  random: number,
): { readonly one: KnownInstance; readonly score: number } {
  const matchOf = ({ id }: KnownInstance): number => matches.get(id) ?? 0;
  const queues = pool.map(({ work }) => work.prompts.sequences);
  const [longest, shortest] = [Math.max(...queues), Math.min(...queues)];
  const ranks = pool.some((one) => matchOf(one) > 0) ? undefined : coldRanks(pool);
  const scoreOf = (one: KnownInstance): number => {
    const { work } = one;
    const prefix = question.numBlocks === 0 ? 0 : matchOf(one) / question.numBlocks;
    const queue = longest === shortest ? 1 : (longest - work.prompts.sequences) / (longest - shortest);
    const kvUtil = work.numBlocks === 0 ? 0 : work.freeBlocks / work.numBlocks;
    const noHitLru = ranks ? 1 - (ranks.get(one.id) ?? 0) / Math.max(1, pool.length - 1) : 0.5;
    return WEIGHTS.prefix * prefix + WEIGHTS.queue * queue + WEIGHTS.kvUtil * kvUtil + WEIGHTS.noHitLru * noHitLru;
  };
  const one = lowest(pool, (each) => [-scoreOf(each)], atRandom(random));
  return { one, score: scoreOf(one) };
}

/**
 * Returns the ranks of instances by the time since their last request without a hit, longest first; an instance that never had one ranks
 * first.
 */
function coldRanks(pool: readonly KnownInstance[]): ReadonlyMap<string, number> {
  const lastMs = ({ coldAtMs }: KnownInstance): number => coldAtMs ?? -Number.MAX_VALUE;
  const sorted = [...pool].sort((a, b) => lastMs(a) - lastMs(b));
  return new Map(sorted.map(({ id }, rank) => [id, rank]));
}
