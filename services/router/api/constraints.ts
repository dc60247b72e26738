/** Turns the constraints that a request states into those that an engine follows. */
import type { CallFor } from '../../../shared/base/call_queue.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { TokenConstraintMessage } from '../../../shared/protocol/messages.ts';
import type { ApiContext } from './api_context.ts';
import type { ConstraintWish } from './generation_body.ts';
import { ParameterFailure } from './parameter_failure.ts';

/** Tokens of all forbidden runs of a request (P1): each is compared before every token. */
const MAX_FORBIDDEN_TOKENS = 4_096;
/** Characters of a grammar, times the outputs that follow it (P1): each output's call carries it. */
const MAX_GRAMMAR_CHARACTERS = 16 << 20;

const NO_MASK = Buffer.alloc(0);

/**
 * Returns the constraint of each of a request's `numOutputs` outputs, for a client with whom others take turns; null when there is none. @throws ParameterFailure when its rule cannot be followed;
 * Failure `overloaded` when too many rules wait for their check.
 */
export async function constraintOf(
  context: Pick<ApiContext, 'rules' | 'codec' | 'facts'>,
  wish: ConstraintWish | undefined,
  numOutputs: number,
  asking: CallFor,
): Promise<TokenConstraintMessage | null> {
  if (!wish) return null;
  const { facts } = context;
  const forbidden = await badRuns(context, wish.badWords, asking);
  const grammar = await grammarOf(context, wish, asking);
  if (wish.rule && grammar.length * numOutputs > MAX_GRAMMAR_CHARACTERS) {
    const { param } = wish.rule;
    const message = `${param}: a grammar of ${grammar.length} characters is too large for ${numOutputs} outputs; ask for fewer (n)`;
    throw new ParameterFailure(message, param);
  }
  return {
    grammar,
    endTokens: facts.eosTokenIds,
    allowedTokens: wish.allowedTokenIds ? maskBytes(wish.allowedTokenIds, facts.vocabSize) : NO_MASK,
    forbidden: forbidden.map((tokens) => ({ tokens })),
  };
}

async function grammarOf(
  { rules, facts }: Pick<ApiContext, 'rules' | 'facts'>,
  { rule }: ConstraintWish,
  asking: CallFor,
): Promise<string> {
  if (!rule) return '';
  if (facts.eosTokenIds.length === 0)
    throw new ParameterFailure(`${rule.param}: the model has no token that ends an answer`, rule.param);
  try {
    return await rules.compile(rule, asking);
  } catch (error) {
    if (!(error instanceof Failure) || error.code !== 'invalid_request') throw error;
    throw new ParameterFailure(`${rule.param}: ${error.message}`, rule.param);
  }
}

/** Returns the runs of tokens that spell the words, at the start of a text and after a blank. Other tokens may spell the same text. */
async function badRuns(
  { codec }: Pick<ApiContext, 'codec'>,
  words: readonly string[],
  asking: CallFor,
): Promise<number[][]> {
  const runs: number[][] = [];
  for (const word of words) {
    const plain = [...(await codec.encode(word, false, asking))];
    const spaced = [...(await codec.encode(` ${word.trimStart()}`, false, asking))];
    if (plain.length > 0) runs.push(plain);
    if (spaced.length > 0 && spaced.join() !== plain.join()) runs.push(spaced);
  }
  if (runs.reduce((sum, { length }) => sum + length, 0) > MAX_FORBIDDEN_TOKENS)
    throw new ParameterFailure(`bad_words: they have over ${MAX_FORBIDDEN_TOKENS} tokens in all`, 'bad_words');
  return runs;
}

/** Returns a mask with the bits of these tokens, least significant first. */
function maskBytes(tokens: readonly number[], vocabSize: number): Buffer {
  const bytes = Buffer.alloc(Math.ceil(vocabSize / 8));
  for (const token of tokens) bytes[token >> 3] = (bytes[token >> 3] ?? 0) | (1 << (token & 7));
  return bytes;
}
