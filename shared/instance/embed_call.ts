/**
 * `Embed(tokens, sources) → vector`: fetch the blocks that exist, compute the rest of the prompt, pool its hidden states.
 *
 * Nobody sends other sources: what does not arrive is computed here. Full blocks that were computed stay, as those of any prompt.
 */
import { Failure } from '../base/failure.ts';
import { noScope } from '../kv/format.ts';
import { answeringOnce, type Handlers } from '../net/network.ts';
import { Pooling, type EmbedReply, type EmbedRequest } from '../protocol/messages.ts';
import { packFloats } from '../protocol/packing.ts';
import { neutralRequest } from '../protocol/request.ts';
import { checkCall, contextOf, fetchEndOf, nothingFetched, reportOf } from './engine_call.ts';
import type { EngineInstance } from './engine_instance.ts';
import { runSequence } from './sequence_run.ts';

/** Returns the handler of `embed` calls. */
export function createEmbedHandler(instance: EngineInstance): Pick<Handlers, 'embed'> {
  return {
    embed: answeringOnce<'embed'>((request, call) => embed(request, instance, call.signal)),
  };
}

async function embed(request: EmbedRequest, instance: EngineInstance, signal: AbortSignal): Promise<EmbedReply> {
  const { sources, pooling } = request;
  const scope = request.scope ?? noScope;
  // No token follows the prompt, so it may fill the context.
  const chain = await checkCall(instance, request, scope, instance.info.maxModelLen);
  const numTokens = chain.tokens.length;
  const numLocal = instance.numLocal(chain.hashes);
  const hasFetch = pooling !== Pooling.MEAN && sources.some(({ end }) => end > instance.numUsable(chain.hashes));
  let fetched = nothingFetched;
  const last = await runSequence(instance, {
    context: contextOf(request),
    signal,
    request: {
      kind: 'embed',
      pooling,
      ...chain,
      request: { ...neutralRequest(numTokens, numTokens), scope },
      promptLogprobsFrom: numTokens,
      fetchEnd: fetchEndOf(sources),
    },
    feed: hasFetch
      ? async (fetch, until) => {
          fetched = await fetch(numLocal, sources, until);
        }
      : undefined,
    onEvent: () => undefined,
  });
  if (last.kind !== 'embedded') throw new Failure('internal', `an embedding ended with ${last.kind}`);
  return { values: packFloats(last.values), report: reportOf(last.report, fetched) };
}
