/** Constraints of tests: grammars made by a hash, in place of a compiler, and what a request's constraint allows by its definition. */
import type { Clock } from '../../shared/base/clock.ts';
import { Failure } from '../../shared/base/failure.ts';
import type { Grammars } from '../../shared/engine/token_constraint.ts';
import type { TokenMask } from '../../shared/grammar/matcher/token_mask.ts';
import type { TokenGrammar } from '../../shared/grammar/matcher/vocabulary.ts';
import type { TokenConstraintMessage } from '../../shared/protocol/messages.ts';

/** A constraint that allows everything. */
export const anyTokens: TokenConstraintMessage = {
  grammar: '',
  endTokens: [],
  allowedTokens: Buffer.alloc(0),
  forbidden: [],
};

/** State of a {@link HashedGrammars} grammar after an output. */
interface State {
  readonly isAllowed: (token: number) => boolean;
  readonly isComplete: boolean;
}

/**
 * A grammar whose text is a seed: about three tokens of four are allowed, and which follows from all tokens before; end tokens are allowed
 * now and then, and alone after a number of tokens that the seed gives.
 */
function stateAfter({ ebnf, endTokens }: TokenGrammar, output: readonly number[]): State {
  const seed = Array.from(ebnf).reduce((hash, character) => mixed(hash, character.codePointAt(0) ?? 0), 17);
  const hash = output.reduce(mixed, seed);
  const isComplete = output.length >= 3 + (seed % 19);
  return {
    isComplete,
    isAllowed: (token) =>
      endTokens.includes(token) ? isComplete || hash % 9 === 0 : !isComplete && mixed(hash, token) % 4 > 0,
  };
}

function mixed(hash: number, value: number): number {
  const folded = Math.imul(hash ^ value, 0x9e3779b1) >>> 0;
  return (folded ^ (folded >>> 15)) >>> 0;
}

/** Returns which tokens a constraint allows after an output, and whether only an end token is left. */
export function allowedAfter(
  { grammar, endTokens, allowedTokens, forbidden }: TokenConstraintMessage,
  output: readonly number[],
  stopTokenIds: readonly number[],
): State {
  const state = grammar === '' ? undefined : stateAfter({ ebnf: grammar, endTokens }, output);
  if (state?.isComplete) return state;
  const isForbidden = (token: number): boolean =>
    forbidden.some(({ tokens }) => [...output, token].slice(-tokens.length).join() === tokens.join());
  const isInMask = (token: number): boolean =>
    allowedTokens.length === 0 || ((allowedTokens[token >> 3] ?? 0) & (1 << (token & 7))) > 0;
  const isEarlyEnd = (token: number): boolean =>
    grammar !== '' && endTokens.includes(token) && !stopTokenIds.includes(token);
  return {
    isComplete: false,
    isAllowed: (token) =>
      (state?.isAllowed(token) ?? true) && !isEarlyEnd(token) && isInMask(token) && !isForbidden(token),
  };
}

/** Returns allowed tokens as a mask of `vocab` bits. */
export function maskOf({ isAllowed }: State, vocab: number): Uint32Array {
  const words = new Uint32Array(Math.ceil(vocab / 32));
  for (let token = 0; token < vocab; token++) if (isAllowed(token)) words[token >> 5]! |= 1 << (token & 31);
  return words;
}

/** Opens grammars whose masks are hashes; each answer takes `ms` milliseconds. */
export class HashedGrammars implements Grammars {
  /** Number of states that are open. */
  numOpen = 0;
  readonly #vocab: number;
  readonly #clock: Pick<Clock, 'sleep'>;
  readonly #ms: () => number;

  constructor(vocab: number, clock: Pick<Clock, 'sleep'>, ms: () => number) {
    this.#vocab = vocab;
    this.#clock = clock;
    this.#ms = ms;
  }

  async open(grammar: TokenGrammar, output: readonly number[], signal: AbortSignal): Promise<TokenMask> {
    this.numOpen++;
    await this.#clock.sleep(this.#ms(), signal);
    if (grammar.ebnf === 'bad') {
      this.numOpen--;
      throw new Failure('invalid_request', 'the grammar is bad');
    }
    const tokens = [...output];
    const sleep = (): Promise<void> => this.#clock.sleep(this.#ms(), signal);
    const close = (): void => {
      this.numOpen--;
    };
    return new HashedMask(grammar, tokens, this.#vocab, sleep, close);
  }
}

class HashedMask implements TokenMask {
  words: Uint32Array;
  isComplete: boolean;
  readonly #grammar: TokenGrammar;
  readonly #tokens: number[];
  readonly #vocab: number;
  readonly #sleep: () => Promise<void>;
  #close: (() => void) | undefined;

  constructor(grammar: TokenGrammar, tokens: number[], vocab: number, sleep: () => Promise<void>, close: () => void) {
    this.#grammar = grammar;
    this.#tokens = tokens;
    this.#vocab = vocab;
    this.#sleep = sleep;
    this.#close = close;
    const state = stateAfter(grammar, tokens);
    this.words = maskOf(state, vocab);
    this.isComplete = state.isComplete;
  }

  async accept(token: number): Promise<boolean> {
    if (!stateAfter(this.#grammar, this.#tokens).isAllowed(token)) return false;
    await this.#sleep();
    this.#tokens.push(token);
    const state = stateAfter(this.#grammar, this.#tokens);
    // Written in place, as a mask that threads share is.
    this.words.set(maskOf(state, this.#vocab));
    this.isComplete = state.isComplete;
    return true;
  }

  close(): void {
    this.#close?.();
    this.#close = undefined;
  }
}
