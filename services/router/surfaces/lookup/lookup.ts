/** `POST /api/lookup`: where a prompt lies and where it would be placed, by the body that a request for its answer would have. */
import type { CallFor } from '../../../../shared/base/call_queue.ts';
import { scopeNumber } from '../../../../shared/kv/format.ts';
import { Failure } from '../../../../shared/base/failure.ts';
import type { Alternative } from '../../../../shared/placement/policy.ts';
import { tiers } from '../../../../shared/protocol/block_events.ts';
import type { LookupBody, PlacementView } from '../../../../shared/protocol/router_api.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { generationOf } from '../../api/new_generation.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import type { Surface, SurfaceHost, SurfaceRequest } from '../../api/surface.ts';
import { truncated } from '../../api/truncation.ts';
import { nodeOf } from '../../record/gone_keys.ts';
import type { Preview } from '../../relay/preview.ts';
import { chatSurface } from '../openai/chat.ts';
import { completionSurface, DEFAULT_MAX_TOKENS } from '../openai/completions.ts';
import { openaiErrors } from '../openai/errors.ts';
import { chatSchema, completionSchema } from '../openai/parameter_schemas.ts';
import type { ChatBody, CompletionBody } from '../openai/parameters.ts';
import { toolRule } from '../openai/tool_grammar.ts';
import { lookupKind } from './body_kind.ts';

/** Look-ups at the same time (P1); further ones are refused. */
const MAX_OPEN = 4;
/** Milliseconds for a look-up: its prompt is encoded after those of requests, and where it waits for long the router has too much to do. */
const LOOKUP_MS = 30_000;
/** Milliseconds after which a client may look again. */
const RETRY_MS = 2_000;

type Parts = Pick<PlacementView, 'price_ms' | 'parts'>;

/** `/api/lookup`. It takes no place of requests. A look-up tells what others have asked: who asks is in the log, as for any request. */
export const lookupSurface: Surface<ChatBody | CompletionBody, SurfaceHost> = {
  paths: ['/api/lookup'],
  kind: lookupKind,
  counts: 'none',
  audience: 'operators',
  errors: openaiErrors,
  describe: {
    summary: 'Where the blocks of a prompt lie, and where it would be placed; `tokens` may stand for the prompt',
    schemas: { Chat: chatSchema, Completion: completionSchema },
  },
  bounds: {
    maxOpen: MAX_OPEN,
    timeoutMs: LOOKUP_MS,
    full: `${MAX_OPEN} prompts are being looked up: try again`,
    late: () =>
      new Failure('overloaded', 'the router has no time for the look-up: try again', { retryAfterMs: RETRY_MS }),
  },
  open: (host) => host,
  async answer(request, host) {
    const { trace } = request;
    const found = await lookup(request, host);
    trace.emit({ kind: 'read', facts: { promptTokens: found.prompt_tokens } });
    trace.end('finished', 'lookup');
    return JSON.stringify(found);
  },
};

/** Looks a prompt up. @throws ParameterFailure for a body that is refused, Failure `overloaded` when the model has no engines */
async function lookup(request: SurfaceRequest<ChatBody | CompletionBody>, host: SurfaceHost): Promise<LookupBody> {
  const { context, scope, bodyBytes, body, prompts } = request;
  const { targets, caller } = scope;
  const isChat = 'template' in body;
  const whole = prompts ?? (isChat ? [await chatTokens(context, body, bodyBytes, scope)] : body.prompts);
  const [first, ...others] = whole;
  if (first === undefined || others.length > 0)
    throw new ParameterFailure('prompt: one prompt at a time can be looked up', 'prompt');
  const uncut = typeof first === 'string' ? await textTokens(context, body, first, scope) : first;
  const usualTokens = isChat ? 1 : DEFAULT_MAX_TOKENS;
  const room = { maxModelLen: context.maxModelLen(), maxTokens: body.maxTokens, usualTokens };
  const tokens = truncated(uncut, body.truncation, room);
  const mostTokens = isChat ? undefined : Math.max(1, Math.min(DEFAULT_MAX_TOKENS, room.maxModelLen - tokens.length));
  const unseeded = { ...request, context: { ...context, newSeed: () => 0 } };
  const param = isChat ? 'messages' : 'prompt';
  const generation = generationOf(unseeded, tokens, body.maxTokens ?? mostTokens, param, null);
  const found = await context.relay.preview({
    generation,
    isConstrained: isConstrained(context, body),
    endpoint: (isChat ? chatSurface : completionSurface).paths[0],
    targets: context.targets.of(targets, caller.targets),
  });
  if (!found)
    throw new Failure('overloaded', `no engine of ${context.servedName} is in the cluster: start one and try again`);
  // Everything that depends on the cluster is read before the texts are awaited.
  const answer = bodyOf(host, context, tokens.length, found);
  const isText = isChat || typeof first === 'string' || prompts !== undefined;
  return { ...answer, texts: isText && context.codec.hasTokenizer ? await textsOf(context, tokens) : null };
}

function bodyOf(
  { index, view }: SurfaceHost,
  { servedName, clock }: ApiContext,
  numTokens: number,
  { blockSize, keys, chosen, cachedTokens, unplaced, misses }: Preview,
): Omit<LookupBody, 'texts'> {
  const ranges = index.ranges(keys).map(({ start, end, heldBy }) => ({
    start: start * blockSize,
    end: end * blockSize,
    held_by: heldBy.flatMap(({ holder, tiers: its }) => {
      // A snapshot that is on its way is a holder without a member.
      const node = view.byHolder(holder)?.member.name;
      return node === undefined ? [] : [{ node, tiers: tiers.filter((_, i) => (its & (1 << i)) !== 0) }];
    }),
  }));
  return {
    as_of: clock.wallMs(),
    model: servedName,
    block_size: blockSize,
    prompt_tokens: numTokens,
    ranges,
    misses: misses?.of(numTokens - cachedTokens) ?? [],
    cached_tokens: cachedTokens,
    placements: placementsOf(chosen),
    unplaced,
  };
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
    decode: decode.member.name,
    prefill: prefill?.member.name ?? null,
    is_chosen: true,
    reason,
    ...partsOf({ priceMs: explanation?.priceMs, parts: explanation?.parts }),
  };
  const others = (explanation?.alternatives ?? []).map((other): PlacementView => {
    const { run, queueLength } = other;
    return {
      decode: nodeOf(other.decode),
      prefill: other.prefill === undefined ? null : nodeOf(other.prefill),
      ...partsOf(other),
      is_chosen: false,
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
  { template, truncation, cacheScope }: ChatBody,
  bodyBytes: number,
  asking: CallFor,
): Promise<Uint32Array> {
  const options = { cutSide: truncation?.side, answerScope: scopeNumber(cacheScope) };
  return (await codec.chatPrompt(template, bodyBytes, asking, options)).ids;
}

function textTokens(
  { codec }: ApiContext,
  body: ChatBody | CompletionBody,
  text: string,
  asking: CallFor,
): Promise<Uint32Array> {
  const hasSpecialTokens = 'hasSpecialTokens' in body && body.hasSpecialTokens;
  const options = { cutSide: body.truncation?.side, answerScope: scopeNumber(body.cacheScope) };
  return codec.encode(text, hasSpecialTokens, asking, options);
}

/** Returns the text of each token; the bytes of one that is no whole character, escaped. */
async function textsOf({ codec }: ApiContext, tokens: Uint32Array): Promise<string[]> {
  const nameOf = await codec.names(Array.from(tokens));
  return Array.from(tokens, (id) => {
    const { text, escaped } = nameOf(id);
    return text ?? escaped;
  });
}
