/** Adds up what the fetches of one call have measured of the links to its sources. */
import type { LinkReport } from '../protocol/messages.ts';

/** Returns the sums of both lists, one for each source and way; a latency is the first that was measured. */
export function mergeLinks(before: readonly LinkReport[], more: readonly LinkReport[]): readonly LinkReport[] {
  const merged = new Map<string, LinkReport>();
  for (const link of [...before, ...more]) {
    const key = `${link.way} ${link.address}`;
    const known = merged.get(key);
    merged.set(key, known ? sumOf(known, link) : link);
  }
  return [...merged.values()];
}

function sumOf(a: LinkReport, b: LinkReport): LinkReport {
  return {
    ...a,
    bytes: a.bytes + b.bytes,
    movingMs: a.movingMs + b.movingMs,
    latencyMs: a.latencyMs >= 0 ? a.latencyMs : b.latencyMs,
  };
}
