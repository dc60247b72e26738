/** Tokens of a cluster: the one that a process sends, and others that it takes too while a token is replaced. */
import { timingSafeEqual } from 'node:crypto';

/** Stands between tokens in one text, the one that is sent first. */
export const TOKEN_SEPARATOR = '\n';
/** Tokens that hold at one time (P1). */
export const MAX_TOKENS = 8;

/** Returns the token that a process sends, out of those of its configuration. */
export function sentToken(tokens: string): string {
  return tokens.split(TOKEN_SEPARATOR, 1)[0] ?? '';
}

/** Returns all tokens that a process takes. */
export function takenTokens(tokens: string): readonly string[] {
  return tokens.split(TOKEN_SEPARATOR);
}

/** Whether two secrets are equal, in time that does not depend on where they differ. */
export function isSameSecret(one: Uint8Array, other: Uint8Array): boolean {
  return one.length === other.length && timingSafeEqual(one, other);
}
