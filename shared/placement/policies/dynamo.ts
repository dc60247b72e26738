/**
 * Dynamo's formula (lib/kv-router/src/scheduling/selector/default.rs) with its defaults: weight of the prefill term 1, no decay of
 * credits, no weight of active requests, temperature 0. In blocks:
 *
 *   credit         own prefix, 1 a block in memory and 0.25 a block on disk
 *   cost           max(0, tokens to prefill there, this prompt included / block size − credit) + active blocks, this prompt included
 *
 * Prefill pool first, then decode pool (modular-components/router/disaggregated-serving.md): the router of prefill instances tracks
 * no active blocks; that of decode instances gives no credit and counts no tokens to prefill. A cluster of decode instances alone is
 * placed by the whole formula. Ties are broken at random. Blocks that sequences use stand for Dynamo's own count of active blocks.
 */
import { atRandom, lowest } from './lowest.ts';
import { needingWork, type KnownInstance, type RuleInput } from './rule_policy.ts';

/** Credit of a matched block on the instance's disk; one in memory counts 1. */
const DISK_CREDIT = 0.25;

/** Chooses the prefill instance, then the decode instance, by the lowest cost of Dynamo's formula. */
export const dynamo = needingWork(({ decode, prefill }, input) => {
  const [ofPrefill, ofDecode] = input.snapshot.random;
  const prefillTerm = (one: KnownInstance): number => prefillBlocks(one, input);
  const decodeTerm = (one: KnownInstance): number => activeBlocks(one, input);
  const both = (one: KnownInstance): number => prefillTerm(one) + decodeTerm(one);
  const costOf = prefill.length > 0 ? decodeTerm : both;
  const chosen = lowest(decode, (one) => [costOf(one)], atRandom(ofDecode));
  const cost = `decode costs ${rounded(costOf(chosen))} blocks`;
  if (prefill.length === 0) return { decode: chosen, prefill: undefined, reason: cost };
  const first = lowest(prefill, (one) => [prefillTerm(one)], atRandom(ofPrefill));
  return { decode: chosen, prefill: first, reason: `prefill costs ${rounded(prefillTerm(first))} blocks, ${cost}` };
});

function prefillBlocks({ id, work }: KnownInstance, { question, snapshot: { ranges, blockSize } }: RuleInput): number {
  let [credit, end] = [0, 0];
  for (const range of ranges) {
    const its = range.start === end ? range.holders.find((holder) => holder.id === id) : undefined;
    if (!its) break;
    credit += (range.end - range.start) * (its.isInMemory ? 1 : DISK_CREDIT);
    end = range.end;
  }
  return Math.max(0, (work.prompts.tokens + question.numTokens) / blockSize - credit);
}

function activeBlocks({ work }: KnownInstance, { question, snapshot: { blockSize } }: RuleInput): number {
  return work.numBlocks - work.freeBlocks + work.waitingBlocks + Math.ceil(question.numTokens / blockSize);
}

function rounded(blocks: number): number {
  return Math.round(blocks * 100) / 100;
}
