/** Prompts of the pool that `bench watch` watches: chats that share system prompts, the same in the process that holds and in the one that asks. */
import { Random } from '../../shared/base/random.ts';

/** Tokens of a block. */
export const BLOCK_SIZE = 32;
/** Blocks of a chat, and those of its system prompt, which it shares with others. */
export const CHAT_BLOCKS = 50;
const SYSTEM_BLOCKS = 10;
const NUM_SYSTEMS = 40;
/** Blocks of which a chat has its own. */
const OWN_BLOCKS = CHAT_BLOCKS - SYSTEM_BLOCKS;

/** Returns the number of chats whose prompts have about `numBlocks` blocks together. */
export function numChats(numBlocks: number): number {
  return Math.ceil(numBlocks / OWN_BLOCKS);
}

/** Returns the token ids of a chat, [CHAT_BLOCKS * BLOCK_SIZE], below `vocabSize`. */
export function chatTokens(chat: number, vocabSize: number): number[] {
  const system = new Random(1 + (chat % NUM_SYSTEMS));
  const own = new Random(1_000 + chat);
  return Array.from(
    { length: CHAT_BLOCKS * BLOCK_SIZE },
    (_, i) => 3 + (i < SYSTEM_BLOCKS * BLOCK_SIZE ? system : own).below(vocabSize - 3),
  );
}
