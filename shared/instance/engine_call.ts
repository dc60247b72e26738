/** Checks and reports that Prefill, Decode and Embed calls share. */
import assert from 'node:assert/strict';
import { Failure } from '../base/failure.ts';
import type { SequenceReport } from '../engine/sequence_times.ts';
import type { SequenceRequest } from '../engine/sequence_request.ts';
import { tenantIdOf } from '../kv/block_key.ts';
import { chainRoot, type CacheScope } from '../kv/format.ts';
import type { Report, RequestContext, Source } from '../protocol/messages.ts';
import { unpackDigest, unpackTokens } from '../protocol/packing.ts';
import type { FetchOutcome } from './block_fetcher.ts';
import type { EngineInstance } from './engine_instance.ts';

/** Fields of such a call as received. */
interface WireCall {
  readonly context: RequestContext | null;
  readonly format: Buffer;
  readonly tokens: Buffer;
  readonly lastDigest: Buffer;
}

/** Tokens and block chain of a sequence, after the checks. */
export type CallChain = Pick<SequenceRequest, 'root' | 'tenant' | 'tokens' | 'hashes' | 'keyBits'>;

/**
 * Checks a call and derives its block chain. `maxTokens` is the longest list of tokens: by default one less than the context, because
 * a token follows. @throws Failure when the call is malformed, too long, or meant for another model (K1).
 */
export async function checkCall(
  instance: EngineInstance,
  call: WireCall,
  scope: CacheScope,
  maxTokens = instance.info.maxModelLen - 1,
): Promise<CallChain> {
  const { layout, maxModelLen, vocabSize } = instance.info;
  if (instance.isDraining) throw new Failure('instance_lost', 'this instance is draining');
  if (!call.context?.requestId) throw new Failure('invalid_request', 'the call carries no request context');
  if (unpackDigest(call.format) !== layout.format) {
    throw new Failure(
      'cluster_mismatch',
      'the call is for another model, KV dtype or block size than this instance serves',
    );
  }
  const tokens = unpackTokens(call.tokens);
  if (tokens.length === 0) throw new Failure('invalid_request', 'a prompt has at least one token');
  if (tokens.length > maxTokens) {
    throw new Failure('context_too_long', `${tokens.length} tokens leave no room in a context of ${maxModelLen}`);
  }
  const outside = tokens.find((token) => token >= vocabSize);
  if (outside !== undefined)
    throw new Failure('invalid_request', `token id ${outside} is outside the vocabulary of ${vocabSize}`);
  if (scope.adapter !== '') throw new Failure('invalid_request', `this instance serves no adapter ${scope.adapter}`);
  const root = chainRoot(layout.format, scope);
  const tenant = tenantIdOf(scope.tenant);
  const { hashes, keyBits } = await instance.chainOf(root, tokens, tenant);
  const digest = hashes.at(-1)?.digest ?? '';
  if (unpackDigest(call.lastDigest) !== digest) {
    throw new Failure(
      'internal',
      `router and instance derive different block chains for ${tokens.length} tokens: run the same version everywhere`,
    );
  }
  instance.saw(call.context);
  return { root, tenant, tokens, hashes, keyBits };
}

/** Returns the context of a call that {@link checkCall} accepted. */
export function contextOf({ context }: Pick<WireCall, 'context'>): RequestContext {
  assert(context, 'a checked call has a context');
  return context;
}

/** Returns the end of the blocks that these sources have. */
export function fetchEndOf(sources: readonly Source[]): number {
  return Math.max(0, ...sources.filter(({ isState }) => !isState).map(({ end }) => end));
}

/** Bytes that were fetched for a call, and the links that they came by. */
export type FetchTotals = Pick<FetchOutcome, 'fetchedBytes' | 'links'>;

/** Totals of a call that has fetched nothing. */
export const nothingFetched: FetchTotals = { fetchedBytes: 0, links: [] };

/** Returns the wire report of a sequence, with the bytes fetched for it. */
export function reportOf(report: SequenceReport, { fetchedBytes, links }: FetchTotals): Report {
  return { ...report, fetchedBytes, links };
}
