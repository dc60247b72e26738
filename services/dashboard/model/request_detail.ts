/** Facts of a request that may be unknown, as its pages show them. */
import type { RequestDetail } from '../../../shared/protocol/request_detail.ts';
import { hasEnded } from './request_filter.ts';

/** Returns the tokens of the prompt; null where they are not known, because the prompt was refused before it became tokens, or is not there yet. */
export function promptTokens({ prompt_tokens: tokens }: { readonly prompt_tokens: number }): number | null {
  return tokens > 0 ? tokens : null;
}

/** Returns why nothing is known of where the prompt's KV came from, as a sentence. */
export function unknownSources({ phase, sample_of: first }: Pick<RequestDetail, 'phase' | 'sample_of'>): string {
  if (first !== null)
    return 'A further sample starts from the blocks of the first one, whose page says where they came from.';
  return hasEnded({ phase })
    ? 'The request ended before its prompt was computed.'
    : 'Not known yet: the prompt has not been computed.';
}
