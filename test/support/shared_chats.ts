/** Chats that share system prompts, and how many of their prompt tokens a cluster must compute at least. */
import type { Random } from '../../shared/base/random.ts';

/** One chat of a first turn. */
export interface SharedChat {
  readonly system: string;
  readonly user: string;
}

const SENTENCES = [
  (n: number): string => `Locker ${n} opens with code ${3_000 + 37 * n}.`,
  (n: number): string => `The boat at berth ${n} leaves at ${n % 12} in the morning.`,
  (n: number): string => `Ask the harbour master about the key of shed ${n}.`,
];

/** Returns `count` chats over `numSystems` system prompts of `numSentences` sentences, some with a long question. */
export function sharedChats(count: number, numSystems: number, numSentences: number, random: Random): SharedChat[] {
  const sentence = (): string => random.pick(SENTENCES as [(n: number) => string])(random.below(1_000));
  const text = (length: number): string => Array.from({ length }, sentence).join('\n');
  const systems = Array.from({ length: numSystems }, (_, i) => `You keep log ${i}.\n${text(numSentences)}`);
  return Array.from({ length: count }, (_, i) => ({
    system: random.pick(systems as [string]),
    user: `Question ${i}: ${text(1 + random.below(4))} What of locker ${random.below(1_000)}?`,
  }));
}

/**
 * Returns the tokens that are left to compute of prompts, in their order, where every full block before the tail of an earlier prompt
 * is kept for ever and can be had everywhere.
 */
export function tokensToCompute(prompts: readonly (readonly number[])[], blockSize: number): number {
  const known = new Set<string>();
  let numTokens = 0;
  for (const prompt of prompts) {
    const numBlocks = Math.floor((prompt.length - 1) / blockSize);
    let numHeld = 0;
    for (let block = 1; block <= numBlocks; block++) {
      const prefix = prompt.slice(0, block * blockSize).join();
      if (known.has(prefix) && numHeld === block - 1) numHeld = block;
      known.add(prefix);
    }
    numTokens += prompt.length - numHeld * blockSize;
  }
  return numTokens;
}
