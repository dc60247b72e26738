/** Where a prompt would be placed, and why its tokens would be computed. Nothing is placed, recorded, promised or kept. */
import type { Clock } from '../../../shared/base/clock.ts';
import type { MembersView } from '../cluster/members_view.ts';
import type { Chosen, Conductor } from '../conductor/conductor.ts';
import type { LengthPredictor } from '../conductor/length_predictor.ts';
import type { MissReasons, PromptMisses } from '../observe/miss_reasons.ts';
import { ChainCache } from './chain_cache.ts';
import type { Generation } from './generation.ts';
import { RequestChain } from './request_chain.ts';

/** Parts of a relay that a preview needs. */
export interface PreviewOptions {
  readonly view: MembersView;
  readonly conductor: Conductor;
  readonly lengths: LengthPredictor;
  readonly clock: Clock;
  readonly misses?: MissReasons | undefined;
  readonly keyBits?: number | undefined;
}

/** A prompt and its placement. */
export interface Preview {
  readonly blockSize: number;
  /** Keys of the full blocks before the tail, two words each. */
  readonly keys: Int32Array;
  /** Undefined while no instance can take the request. */
  readonly chosen: Chosen | undefined;
  /** Tokens of the prompt that the placement would not compute. */
  readonly cachedTokens: number;
  /** Reasons of all tokens, if they were computed; undefined where nobody finds them. */
  readonly misses: PromptMisses | undefined;
}

/** Avoids no instance, as the first attempt of a request. */
const nobody = { has: () => false, isHolder: () => true };

/** Returns the placement of a prompt at this moment; undefined while the model has no engines. `endpoint` is where it would be sent. */
export async function preview(
  { view, conductor, lengths, clock, misses, keyBits }: PreviewOptions,
  { request, promptTokens, promptLogprobs }: Generation,
  endpoint: string,
): Promise<Preview | undefined> {
  const { model } = view;
  if (!model) return undefined;
  // With a cache of its own, which ends with this call: nothing of the prompt is kept.
  const chain = new RequestChain(clock, request.scope, new ChainCache(undefined, keyBits));
  const { keys, hashes } = await chain.blocks(model, promptTokens);
  const numTokens = promptTokens.length;
  const { maxLength } = request;
  const outputTokens = lengths.predict({
    ...{ tenant: '', kind: endpoint, template: keys.subarray(0, 2).join(',') },
    ...{ promptTokens: numTokens, maxTokens: Math.max(1, maxLength - numTokens) },
  });
  const isComputingAll = promptLogprobs !== undefined;
  const asked = {
    requestId: '',
    numTokens,
    maxLength,
    avoided: nobody,
    outputTokens: Math.max(1, Math.round(outputTokens)),
  };
  const { outcome, held } = conductor.preview({ ...asked, keys: isComputingAll ? new Int32Array(0) : keys, hashes });
  const chosen = outcome.kind === 'place' ? outcome.chosen : undefined;
  const cachedTokens = isComputingAll ? 0 : (chosen?.heldTokens ?? 0);
  const { decodeSources = [], prefillSources = [], second } = chosen ?? {};
  const { blockSize } = model.format;
  return {
    ...{ blockSize, keys, chosen, cachedTokens },
    misses:
      chain.root &&
      misses?.classify(
        {
          ...{ tokens: promptTokens, blockSize, root: chain.root, keys, heldTokens: cachedTokens },
          held: isComputingAll ? undefined : held,
          sources: [...decodeSources, ...prefillSources, ...(second?.sources ?? [])],
        },
        false,
      ),
  };
}
