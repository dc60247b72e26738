import type { Report } from '../../shared/protocol/messages.ts';

/** Report of a sequence that took nothing: no token, no time. */
export const emptyReport: Report = {
  cachedTokens: 0,
  fetchedTokens: 0,
  computedTokens: 0,
  queueMs: 0,
  loadMs: 0,
  computeMs: 0,
  fetchedBytes: 0,
  links: [],
  sources: null,
};
