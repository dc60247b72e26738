/** Tokens of a prompt by where their KV came from, as the reports of its instances say it. */
import type { RequestCounts } from '../relay/request_counts.ts';
import type { TokenSources } from './api_types.ts';

/** Sources before anything is reported: all zero. */
const NO_SOURCES: TokenSources = {
  ...{ device: 0, dram: 0, instance: 0, store_dram: 0, store_disk: 0, handoff: 0, computed: 0 },
};

/**
 * Returns the sources of a prompt's tokens; all zero before the first report. Instances that report no sources tell computed, fetched and
 * cached tokens only: what they fetched counts as handed off as far as it was computed elsewhere, and the rest as another instance's.
 */
export function sourcesOf(
  counts: Pick<RequestCounts, 'promptTokens' | 'tokens' | 'attempts'> | undefined,
): TokenSources {
  if (!counts?.attempts.some(({ report }) => report)) return NO_SOURCES;
  const { promptTokens, tokens } = counts;
  const computed = Math.min(promptTokens, tokens.computed_by_decode);
  const elsewhere = Math.min(promptTokens - computed, tokens.fetched);
  const handoff = Math.min(elsewhere, tokens.computed_by_prefill);
  const device = promptTokens - computed - elsewhere;
  return { ...NO_SOURCES, device, instance: elsewhere - handoff, handoff, computed };
}
