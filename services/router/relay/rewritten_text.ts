/**
 * Compares each prompt with the recent sequences of its model while the decode instance works on it, and records where the
 * client has rewritten earlier text. Placement and results depend on nothing here.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { numPrefillBlocks } from '../../../shared/kv/block_key.ts';
import type { MembersView } from '../../../shared/placement/members_view.ts';
import type { Chosen, Conductor } from '../../../shared/placement/conductor.ts';
import type { InFlightRequest } from './in_flight_request.ts';
import { RecentSequences } from './recent_sequences.ts';

/** Dependencies of a {@link RewrittenTextFinder}. */
export interface RewrittenTextOptions {
  readonly view: MembersView;
  readonly conductor: Conductor;
  readonly clock: Clock;
}

/** Finds where prompts of one model differ from the sequences that they continue. */
export class RewrittenTextFinder {
  readonly #options: RewrittenTextOptions;
  readonly #recent = new RecentSequences();

  constructor(options: RewrittenTextOptions) {
    this.#options = options;
  }

  /** Compares the prompt of a request that was just placed, and records the result. */
  async compare(inFlight: InFlightRequest, { heldTokens }: Chosen): Promise<void> {
    const { generation, chain, excluded, trace } = inFlight;
    const { view, conductor, clock } = this.#options;
    const { format } = view.model ?? {};
    const { root } = chain;
    // With prompt log-probabilities every token is computed, whatever is cached.
    if (!isCompared(inFlight) || generation.promptLogprobs || !format || root === undefined) return;
    // The Decode call is sent first.
    await clock.turn();
    const tokens = generation.promptTokens;
    const found = await this.#recent.find({ root, tokens, heldTokens }, clock);
    if (!found) return;
    const { start, sharedTokens, earlier } = found;
    inFlight.rewritten = found;
    const { blockSize } = format;
    // Blocks that were evicted would have been no hits either. Those of the answer are known to nobody here; they go with the last of the prompt.
    const numKeys = earlier.keys.length / 2;
    const numHeld = conductor.heldBlocks(earlier.keys, excluded);
    const numFull = Math.min(
      Math.floor(sharedTokens / blockSize),
      numPrefillBlocks(tokens.length, blockSize),
      numKeys === 0 || numHeld < numKeys ? numHeld : numPrefillBlocks(earlier.tokens.length, blockSize),
    );
    const sameTokens = Math.floor(start / blockSize) * blockSize;
    trace.emit({ kind: 'rewritten', rewritten: { start, sameTokens, reusableTokens: numFull * blockSize } });
  }

  /** Remembers the tokens of a request that has ended, with its output. */
  async remember(inFlight: InFlightRequest): Promise<void> {
    const { generation, chain, tokens, rewritten } = inFlight;
    const promptLength = generation.promptTokens.length;
    const { root, keys } = chain;
    if (!isCompared(inFlight) || root === undefined || tokens.length === promptLength) return;
    const sequence = { root, keys, promptLength, tokens: tokens.view() };
    await this.#recent.remember(sequence, rewritten, this.#options.clock);
  }
}

/** Whether a request has a prompt of its own: further samples of a prompt have none, and a prompt alone is no turn of a chat. */
function isCompared({ generation, trace }: InFlightRequest): boolean {
  return !generation.isPromptOnly && trace.record.sampleOf === undefined;
}
