/** Records of a request why tokens of its prompt are computed. */
import type { MembersView } from '../../../shared/placement/members_view.ts';
import type { Chosen } from '../../../shared/placement/conductor.ts';
import type { MissReasons } from '../record/miss_reasons.ts';
import type { RequestChain } from './request_chain.ts';
import type { RequestTrace } from '../record/request_trace.ts';

/** A prompt as it was placed. */
interface ExplainedPrompt {
  readonly trace: RequestTrace;
  readonly chain: RequestChain;
  readonly promptTokens: Uint32Array;
  readonly chosen: Pick<Chosen, 'held' | 'heldTokens' | 'decodeSources' | 'prefillSources' | 'second'>;
  /** Whether every token is computed, so that held blocks are of no use. */
  readonly isComputingAll: boolean;
}

/**
 * Finds the reasons for the first placement of a prompt: later ones find what earlier ones have computed. To be called in the turn of the
 * event loop of the placement; does nothing for a further sample, whose prompt is the first one's.
 */
export function explainMisses(
  {
    misses,
    onLookup,
    view,
  }: {
    readonly misses?: MissReasons | undefined;
    readonly onLookup?: ((keys: Int32Array) => void) | undefined;
    readonly view: MembersView;
  },
  { trace, chain, promptTokens, chosen, isComputingAll }: ExplainedPrompt,
): void {
  const { held, heldTokens, decodeSources, prefillSources, second } = chosen;
  const { model } = view;
  if (!misses || !model || !held || !chain.root || trace.record.expected.misses) return;
  onLookup?.(chain.keys);
  const found = misses.classify({
    tokens: promptTokens,
    blockSize: model.format.blockSize,
    root: chain.root,
    keys: chain.keys,
    ...(isComputingAll ? { held: undefined, heldTokens: 0 } : { held, heldTokens }),
    sources: [...decodeSources, ...prefillSources, ...(second?.sources ?? [])],
  });
  trace.emit({ kind: 'expected', misses: found });
}
