/** Sentences for people about tokens that had to be computed, and why. */
import type { Miss, MissReason } from '../../../shared/protocol/router_api.ts';
import { duration, plural } from '../format.ts';

/** Names of the reasons, for lists and filters. */
export const REASON_NAMES: Readonly<Record<MissReason, string>> = {
  never_seen: 'never seen before',
  evicted: 'evicted',
  lost: 'lost with a node',
  other_scope: 'other salt or format',
  held_elsewhere: 'held elsewhere, not fetched',
  absent: 'promised, not found',
  tail: 'end of the prompt',
};

const TIER_NAMES: Readonly<Record<string, string>> = { device: 'device', dram: 'host memory', disk: 'disk' };

/** Returns the name of a tier in words. */
export function tierText(tier: string): string {
  return TIER_NAMES[tier] ?? tier;
}

/**
 * Returns a sentence that says how many tokens were computed and why, like "1,024 tokens were evicted from decode-1's device 40 s before the
 * request." `atMs` is the time of day that "before" counts to, `before` what it is called.
 */
export function missSentence(miss: Miss, atMs: number, before = 'the request'): string {
  const { start, end, reason, node, tier, at } = miss;
  const count = end - start;
  const [tokens, were, have] = [plural(count, 'token'), count === 1 ? 'was' : 'were', count === 1 ? 'has' : 'have'];
  const owner = node === undefined ? 'the last node that held them' : node;
  const from = tier === undefined ? owner : `${owner}'s ${tierText(tier)}`;
  const when = at === undefined ? '' : ` ${duration(Math.max(0, atMs - at))} before ${before}`;
  switch (reason) {
    case 'never_seen':
      return `${tokens} ${have} never been seen since this router started.`;
    case 'evicted':
      return `${tokens} ${were} evicted from ${from}${when}.`;
    case 'lost':
      return `${tokens} ${were} lost when ${node ?? 'the last node that held them'} left the cluster${when}.`;
    case 'other_scope':
      return `${tokens} ${have} KV only under another salt or format, which this request cannot use.`;
    case 'held_elsewhere':
      return `${tokens} ${were} held by ${from}, but the chosen placement did not fetch them: to compute them was expected to be cheaper.`;
    case 'absent':
      return `${tokens} ${were} promised by the prefix index, but ${node ?? 'the holder'} no longer had them.`;
    case 'tail':
      return `${tokens} ${count === 1 ? 'is' : 'are'} at the end of the prompt, after its last full block: these are always computed.`;
  }
}
