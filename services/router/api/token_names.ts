/** Names of tokens in log-probabilities. */
import type { SampledMessage } from '../../../shared/protocol/messages.ts';
import type { TokenName } from '../../../shared/text/text.ts';
import type { ApiContext } from './api_context.ts';

/** Returns the name of a token. */
export type NameOf = (token: number) => TokenName;

/**
 * Returns a look-up of the names of all tokens in the log-probabilities; a promise where the tokenizer must be asked for some. With
 * `isNamingIds` a token's text is `token_id:N`; without a tokenizer too, and its bytes are unknown.
 */
export function tokenNames(
  { codec }: Pick<ApiContext, 'codec'>,
  tokens: readonly SampledMessage[],
  isNamingIds = false,
): NameOf | Promise<NameOf> {
  if (!codec.hasTokenizer) return idAsName;
  const shown = (nameOf: NameOf): NameOf =>
    isNamingIds ? (id) => ({ ...nameOf(id), text: `token_id:${id}` }) : nameOf;
  const names = codec.names(tokens.flatMap(({ token, topTokens }) => [token, ...topTokens]));
  return names instanceof Promise ? names.then(shown) : shown(names);
}

function idAsName(id: number): TokenName {
  const name = `token_id:${id}`;
  return { bytes: [], text: name, escaped: '', name, isAdded: false };
}
