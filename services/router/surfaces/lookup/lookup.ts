/** `POST /api/lookup`: where a prompt lies and where it would be placed, by the body that a request for its answer would have. */
import { lookupKind } from './body_kind.ts';
import { Failure } from '../../../../shared/base/failure.ts';
import { tiers } from '../../../../shared/protocol/block_events.ts';
import type { MembersView } from '../../../../shared/placement/members_view.ts';
import type { PrefixIndex } from '../../../../shared/placement/prefix_index/prefix_index.ts';
import type { Alternative, Targets } from '../../../../shared/placement/policy.ts';
import type { LookupBody, PlacementView } from '../../../../shared/protocol/router_api.ts';
import { nodeOf } from '../../record/gone_keys.ts';
import type { Preview } from '../../relay/preview.ts';
import type { ApiContext } from '../../api/api_context.ts';
import type { Body } from '../../api/bodies.ts';
import { DEFAULT_MAX_TOKENS } from '../openai/completions.ts';
import { generationOf } from '../openai/common.ts';
import type { TargetTexts } from '../../api/exchange.ts';
import type { ChatBody, CompletionBody } from '../openai/parameters.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import { parseTargets } from '../../api/request_targets.ts';
import { toolRule } from '../openai/tool_grammar.ts';
import { truncated } from '../openai/truncation.ts';

/** Look-ups at the same time (P1); further ones are refused. */
const MAX_OPEN = 4;

type Parts = Pick<PlacementView, 'price_ms' | 'parts'>;

/** Looks prompts up; a bounded number at a time. */
export class Lookups {
  readonly #context: ApiContext;
  readonly #index: PrefixIndex;
  readonly #view: MembersView;
  #numOpen = 0;

  constructor(context: ApiContext, { index, view }: { readonly index: PrefixIndex; readonly view: MembersView }) {
    this.#context = context;
    this.#index = index;
    this.#view = view;
  }

  /**
   * Reads a body and looks its prompt up, for a request whose headers state the targets `texts`. Releases the body. @throws ParameterFailure for a body that is refused, Failure `overloaded` when
   * too many look-ups are open or the model has no engines.
   */
  async answer(body: Body, texts: TargetTexts, signal: AbortSignal): Promise<LookupBody> {
    if (this.#numOpen >= MAX_OPEN) {
      body.release();
      throw new Failure('overloaded', `${MAX_OPEN} prompts are being looked up: try again`);
    }
    this.#numOpen++;
    try {
      const { targets, failure } = parseTargets(texts);
      if (failure) throw failure;
      return await this.#answer(body, targets, signal);
    } finally {
      this.#numOpen--;
      body.release();
    }
  }

  async #answer(bytes: Body, targets: Targets, signal: AbortSignal): Promise<LookupBody> {
    const all = this.#context;
    const bodyBytes = bytes.bytes.length;
    const { body, prompts, failure } = await all.bodies.readPrompts(lookupKind, bytes, all.of(undefined), signal);
    if (failure) throw new Failure(failure.code, failure.message);
    const context = all.of(body.model);
    const isChat = 'template' in body;
    const whole = prompts ?? (isChat ? [await chatTokens(context, body, bodyBytes, signal)] : body.prompts);
    const [first, ...others] = whole;
    if (first === undefined || others.length > 0)
      throw new ParameterFailure('prompt: one prompt at a time can be looked up', 'prompt');
    const uncut = typeof first === 'string' ? await textTokens(context, body, first, signal) : first;
    const usualTokens = isChat ? 1 : DEFAULT_MAX_TOKENS;
    const room = { maxModelLen: context.maxModelLen(), maxTokens: body.maxTokens, usualTokens };
    const tokens = truncated(uncut, body.truncation, room);
    const mostTokens = isChat ? undefined : Math.max(1, Math.min(DEFAULT_MAX_TOKENS, room.maxModelLen - tokens.length));
    const unseeded = { ...context, newSeed: () => 0 };
    const param = isChat ? 'messages' : 'prompt';
    const generation = generationOf(unseeded, body, tokens, body.maxTokens ?? mostTokens, param, null);
    const found = await context.relay.preview({
      ...{ generation, isConstrained: isConstrained(context, body) },
      endpoint: isChat ? '/v1/chat/completions' : '/v1/completions',
      targets: context.targets.of(body.cacheSalt, targets),
    });
    if (!found)
      throw new Failure('overloaded', `no engine of ${context.servedName} is in the cluster: start one and try again`);
    // Everything that depends on the cluster is read before the texts are awaited.
    const answer = this.#bodyOf(context, tokens.length, found);
    const isText = isChat || typeof first === 'string' || prompts !== undefined;
    return { ...answer, texts: isText && context.codec.hasTokenizer ? await textsOf(context, tokens) : null };
  }

  #bodyOf(
    { servedName, clock }: ApiContext,
    numTokens: number,
    { blockSize, keys, chosen, cachedTokens, unplaced, misses }: Preview,
  ): Omit<LookupBody, 'texts'> {
    const ranges = this.#index.ranges(keys).map(({ start, end, heldBy }) => ({
      ...{ start: start * blockSize, end: end * blockSize },
      held_by: heldBy.flatMap(({ holder, tiers: its }) => {
        // A snapshot that is on its way is a holder without a member.
        const node = this.#view.byHolder(holder)?.member.name;
        return node === undefined ? [] : [{ node, tiers: tiers.filter((_, i) => (its & (1 << i)) !== 0) }];
      }),
    }));
    return {
      ...{ as_of: clock.wallMs(), model: servedName, block_size: blockSize, prompt_tokens: numTokens, ranges },
      misses: misses?.of(numTokens - cachedTokens) ?? [],
      cached_tokens: cachedTokens,
      ...{ placements: placementsOf(chosen), unplaced },
    };
  }
}

/** Returns the placement that would be chosen, then those that would not. */
function placementsOf(chosen: Preview['chosen']): PlacementView[] {
  if (!chosen) return [];
  const { decode, prefill, reason, explanation } = chosen;
  const partsOf = ({ priceMs, parts = {} }: Pick<Alternative, 'priceMs' | 'parts'>): Parts => ({
    price_ms: priceMs ?? null,
    parts,
  });
  const first: PlacementView = {
    ...{ decode: decode.member.name, prefill: prefill?.member.name ?? null, is_chosen: true, reason },
    ...partsOf({ priceMs: explanation?.priceMs, parts: explanation?.parts }),
  };
  const others = (explanation?.alternatives ?? []).map((other): PlacementView => {
    const { run, queueLength } = other;
    return {
      ...{ decode: nodeOf(other.decode), prefill: other.prefill === undefined ? null : nodeOf(other.prefill) },
      ...{ ...partsOf(other), is_chosen: false },
      reason: `leading blocks there: ${run}; sequences that run or wait there: ${queueLength}`,
    };
  });
  return [first, ...others];
}

/** Whether a grammar, or a list of tokens, would hold the answer. */
function isConstrained({ output }: ApiContext, body: ChatBody | CompletionBody): boolean {
  if (body.constraint) return true;
  return 'template' in body && toolRule(body.tools, output.rules.callForm, undefined) !== undefined;
}

async function chatTokens(
  { codec }: ApiContext,
  { template, truncation, cacheSalt }: ChatBody,
  bodyBytes: number,
  signal: AbortSignal,
): Promise<Uint32Array> {
  const options = { cutSide: truncation?.side, isShared: cacheSalt === '' };
  return (await codec.chatPrompt(template, bodyBytes, signal, options)).ids;
}

function textTokens(
  { codec }: ApiContext,
  body: ChatBody | CompletionBody,
  text: string,
  signal: AbortSignal,
): Promise<Uint32Array> {
  const hasSpecialTokens = 'hasSpecialTokens' in body && body.hasSpecialTokens;
  const options = { cutSide: body.truncation?.side, isShared: body.cacheSalt === '' };
  return codec.encode(text, hasSpecialTokens, signal, options);
}

/** Returns the text of each token; the bytes of one that is no whole character, escaped. */
async function textsOf({ codec }: ApiContext, tokens: Uint32Array): Promise<string[]> {
  const nameOf = await codec.names(Array.from(tokens));
  return Array.from(tokens, (id) => {
    const { text, escaped } = nameOf(id);
    return text ?? escaped;
  });
}
