/**
 * Marks the sources of a placement whose blocks are computed for the same request: only the router knows that, and an instance reports by
 * it where the tokens of a prompt came from.
 */
import type { Source } from '../protocol/messages.ts';
import type { Placement } from './policy.ts';

/** Returns the placement with marks at the sources that its own prefills are. */
export function withHandoffs(placement: Placement, addressOf: (id: string) => string | undefined): Placement {
  const { prefill, second, decodeSources, prefillSources } = placement;
  if (prefill === undefined) return placement;
  const own = [addressOf(prefill), second && addressOf(second.prefill)];
  const marked = (sources: readonly Source[]): readonly Source[] =>
    sources.map((source) =>
      source.isComputing && own.includes(source.address) ? { ...source, isHandoff: true } : source,
    );
  return {
    ...placement,
    decodeSources: marked(decodeSources),
    prefillSources: second ? marked(prefillSources) : prefillSources,
    second: second && { ...second, sources: marked(second.sources) },
  };
}
