/** Where a prompt would be placed, and why its tokens would be computed. Nothing is placed, recorded, promised or kept. */
import type { Clock } from '../../../shared/base/clock.ts';
import type { MembersView } from '../../../shared/placement/members_view.ts';
import type { Chosen, Conductor, Outcome } from '../../../shared/placement/conductor.ts';
import type { LengthPredictor } from '../conductor/length_predictor.ts';
import type { Targets } from '../../../shared/placement/policy.ts';
import type { MissReasons, PromptMisses } from '../record/miss_reasons.ts';
import { ChainCache } from './chain_cache.ts';
import { expectedAtStart } from './expected_length.ts';
import type { Generation } from './generation.ts';
import { neededLength } from './needed_length.ts';
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

/** A request as it would be sent. */
export interface PreviewedRequest {
  readonly generation: Generation;
  /** Where it would be sent. */
  readonly endpoint: string;
  /** Whether a grammar would hold its answer, which the generation leaves out. */
  readonly isConstrained: boolean;
  readonly targets: Targets | undefined;
}

/** A prompt and its placement. */
export interface Preview {
  readonly blockSize: number;
  /** Keys of the full blocks before the tail, two words each. */
  readonly keys: Int32Array;
  /** Undefined while no instance can take the request, and for one that would be refused. */
  readonly chosen: Chosen | undefined;
  /** Why the request would wait or be refused; null when it would be placed. */
  readonly unplaced: string | null;
  /** Tokens of the prompt that the placement would not compute. */
  readonly cachedTokens: number;
  /** Reasons of all tokens, if they were computed; undefined where nobody finds them. */
  readonly misses: PromptMisses | undefined;
}

/** Avoids no instance, as the first attempt of a request. */
const nobody = { has: () => false, isHolder: () => true };

/** Returns the placement of a prompt at this moment, by the question that the request would ask; undefined while the model has no engines. */
export async function preview(
  { view, conductor, lengths, clock, misses, keyBits }: PreviewOptions,
  { generation, targets, ...asked }: PreviewedRequest,
): Promise<Preview | undefined> {
  const { request, promptTokens, promptLogprobs } = generation;
  const { model } = view;
  if (!model) return undefined;
  // With a cache of its own, which ends with this call: nothing of the prompt is kept.
  const chain = new RequestChain(clock, request.scope, new ChainCache(undefined, keyBits));
  const { keys, hashes } = await chain.blocks(model, promptTokens);
  const numTokens = promptTokens.length;
  const isComputingAll = promptLogprobs !== undefined;
  const { outcome, held } = conductor.preview({
    requestId: '',
    numTokens,
    targets,
    avoided: nobody,
    maxLength: neededLength(view, generation, numTokens),
    keys: isComputingAll ? new Int32Array(0) : keys,
    hashes,
    outputTokens: expectedAtStart(lengths, { ...asked, generation, chain }),
  });
  const chosen = outcome.kind === 'place' ? outcome.chosen : undefined;
  const cachedTokens = isComputingAll ? 0 : (chosen?.heldTokens ?? 0);
  const { decodeSources = [], prefillSources = [], second } = chosen ?? {};
  const { blockSize } = model.format;
  return {
    blockSize,
    keys,
    chosen,
    cachedTokens,
    unplaced: unplacedOf(outcome),
    misses:
      chain.root &&
      misses?.classify(
        {
          tokens: promptTokens,
          blockSize,
          root: chain.root,
          keys,
          heldTokens: cachedTokens,
          held: isComputingAll ? undefined : held,
          sources: [...decodeSources, ...prefillSources, ...(second?.sources ?? [])],
        },
        false,
      ),
  };
}

function unplacedOf(outcome: Outcome): string | null {
  if (outcome.kind === 'reject') return `it would be refused: ${outcome.message}`;
  return outcome.kind === 'wait' ? `it would wait, since ${outcome.why}` : null;
}
