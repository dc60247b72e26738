/** Which tokens may come next in an output that follows a grammar. */

/** The state of one output within its grammar. */
export interface TokenMask {
  /**
   * Allowed tokens, one bit per token, least significant first; bits of ids that the vocabulary lacks are 0. Valid until the next
   * `accept`. All bits are 0 once the output has ended.
   */
  readonly words: Uint32Array;
  /** Whether the text is complete and cannot go on: only end tokens are allowed. */
  readonly isComplete: boolean;
  /**
   * Appends a token to the output. Resolves to true when `words` are those of the state after it; to false when the grammar does not
   * allow the token, and then nothing changes. Calls are made one after the other. @throws Failure `invalid_request` when no token of
   * the vocabulary can continue, or the grammar ends its thread whenever it is tried; `unavailable` when threads end for other reasons; `cancelled` after `close`.
   */
  accept(token: number): Promise<boolean>;
  /** Frees the state. A second call does nothing. */
  close(): void;
}
