/**
 * Which tokens may come next in a sequence: those that its grammar allows and its mask names, without those that would end a forbidden
 * run. All follows from the tokens of the output, so another instance that goes on with them allows the same.
 *
 *   opened ──the grammar is compiled──► ready ──a token──► waits for its mask ──► ready ... closed
 */
import { Failure, asFailure } from '../base/failure.ts';
import { DONE } from '../base/signal.ts';
import type { TokenMask } from '../grammar/matcher/token_mask.ts';
import type { TokenGrammar } from '../grammar/matcher/vocabulary.ts';
import type { TokenConstraintMessage } from '../protocol/messages.ts';

/** Opens grammars; a MaskService does. */
export interface Grammars {
  /** Opens the state of a grammar after the tokens of `output`. @throws Failure as MaskService.open does. */
  open: (grammar: TokenGrammar, output: readonly number[], signal: AbortSignal) => Promise<TokenMask>;
}

/** Parts and callbacks that a constraint needs besides its message. */
export interface TokenConstraintOptions {
  readonly vocabSize: number;
  /** Tokens that end the output wherever they come. An end token of the grammar that is not among them comes only where it must. */
  readonly stopTokenIds: readonly number[];
  /** Tokens of the output so far. */
  readonly output: readonly number[];
  /** Undefined on an engine without grammars, which refuses them. */
  readonly grammars: Grammars | undefined;
  /** Called when {@link TokenConstraint.isReady} has become true. */
  readonly onReady: () => void;
  /** Called once, when the mask cannot be had; nothing is called after it. */
  readonly onFailed: (failure: Failure) => void;
}

/** The constraint of one sequence. */
export class TokenConstraint {
  readonly #message: TokenConstraintMessage;
  readonly #options: TokenConstraintOptions;
  readonly #endTokens: ReadonlySet<number>;
  /** Mask of the tokens that may come wherever the text can go on: the named ones, without end tokens that come only where they must. */
  readonly #always: Uint32Array;
  /** The mask that is given to the device; written anew for each token, which is safe because a token has come before the next is asked for. */
  readonly #words: Uint32Array;
  readonly #closed = new AbortController();
  /** Forbidden runs: the tokens before the last one, and that one. */
  readonly #forbidden: readonly { readonly before: readonly number[]; readonly last: number }[];
  readonly #numLast: number;
  /** The last tokens of the output: as many as the longest forbidden run has before its last one. */
  #last: readonly number[];
  #mask: TokenMask | undefined;
  #isReady: boolean;

  constructor(message: TokenConstraintMessage, options: TokenConstraintOptions) {
    const { grammar, endTokens, allowedTokens } = message;
    this.#message = message;
    this.#options = options;
    this.#endTokens = new Set(grammar === '' ? [] : endTokens);
    this.#words = new Uint32Array(Math.ceil(options.vocabSize / 32));
    this.#always = new Uint32Array(this.#words.length);
    if (allowedTokens.length === 0) this.#always.fill(0xffffffff);
    else new Uint8Array(this.#always.buffer).set(allowedTokens.subarray(0, this.#always.byteLength));
    for (const token of this.#endTokens)
      if (!options.stopTokenIds.includes(token)) this.#always[token >> 5]! &= ~(1 << (token & 31));
    this.#forbidden = message.forbidden.flatMap(({ tokens }) => {
      const last = tokens.at(-1);
      return last === undefined ? [] : [{ before: tokens.slice(0, -1), last }];
    });
    this.#numLast = this.#forbidden.reduce((most, { before }) => Math.max(most, before.length), 0);
    this.#last = [];
    this.#keepLast(options.output);
    this.#isReady = grammar === '';
    if (!this.#isReady) this.#follow(this.#open());
  }

  /** Whether the mask of the next token is known. */
  get isReady(): boolean {
    return this.#isReady;
  }

  /** Whether the text is complete and cannot go on: an end token comes next, whatever else forbids it. */
  get isComplete(): boolean {
    return this.#mask?.isComplete === true;
  }

  /** Whether the output ends with this token, because it ends a text of the grammar. */
  isEnd(token: number): boolean {
    return this.#endTokens.has(token);
  }

  /** Returns the mask of the next token, valid until the next call: bit i % 32 of word i >> 5 is token i. Only while it is ready. */
  words(): Uint32Array {
    const words = this.#words;
    const mask = this.#mask?.words;
    if (mask && this.isComplete) {
      words.set(mask);
      return words;
    }
    words.set(this.#always);
    if (mask) for (let i = 0; i < words.length; i++) words[i]! &= mask[i] ?? 0;
    for (const { before, last } of this.#forbidden)
      if (endsWith(this.#last, before)) words[last >> 5]! &= ~(1 << (last & 31));
    return words;
  }

  /** Appends a token to the output. It is ready again when the mask after the token is known. */
  push(token: number): void {
    this.#keepLast([...this.#last, token]);
    const mask = this.#mask;
    if (!mask) return;
    this.#isReady = false;
    this.#follow(
      mask.accept(token).then((isAllowed) => {
        if (!isAllowed) throw new Failure('internal', 'a token was sampled that the grammar does not allow');
        return mask;
      }),
    );
  }

  /** Frees the grammar's state. A second call does nothing. */
  close(): void {
    this.#closed.abort(DONE);
    this.#mask?.close();
  }

  #open(): Promise<TokenMask> {
    const { grammars, output } = this.#options;
    const { grammar: ebnf, endTokens } = this.#message;
    if (!grammars) return Promise.reject(new Failure('invalid_request', 'this instance cannot follow a grammar'));
    return grammars.open({ ebnf, endTokens }, output, this.#closed.signal);
  }

  #follow(coming: Promise<TokenMask>): void {
    const { onReady, onFailed } = this.#options;
    coming.then(
      (mask) => {
        if (this.#closed.signal.aborted) {
          mask.close();
          return;
        }
        this.#mask = mask;
        this.#isReady = true;
        onReady();
      },
      (error: unknown) => {
        if (!this.#closed.signal.aborted) onFailed(asFailure(error));
      },
    );
  }

  #keepLast(tokens: readonly number[]): void {
    this.#last = this.#numLast === 0 ? [] : tokens.slice(-this.#numLast);
  }
}

function endsWith(tokens: readonly number[], end: readonly number[]): boolean {
  const from = tokens.length - end.length;
  return from >= 0 && end.every((token, i) => tokens[from + i] === token);
}
