/** Lost cache hits in the counts of a request: whole blocks, those that were there to be hit, and were computed. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { TokenList } from '../../../shared/base/token_list.ts';
import type { Digest } from '../../../shared/kv/block_key.ts';
import { noScope } from '../../../shared/kv/format.ts';
import { neutralRequest } from '../../../shared/protocol/request.ts';
import type { Chosen, Conductor } from '../../../shared/placement/conductor.ts';
import { ChainCache } from '../../../services/router/relay/chain_cache.ts';
import type { InFlightRequest } from '../../../services/router/relay/in_flight_request.ts';
import { RequestChain } from '../../../services/router/relay/request_chain.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import type { RequestTrace } from '../../../services/router/record/request_trace.ts';
import { RewrittenTextFinder } from '../../../services/router/relay/rewritten_text.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { emptyReport } from '../../support/empty_report.ts';
import { opened, placedAt } from '../../support/request_events.ts';

const model = { digest: 'ab'.repeat(16) as Digest, format: { blockSize: 32 } };
interface Wish {
  readonly numHeld?: number;
  readonly numComputed?: number;
  readonly salt?: string;
  readonly isPromptOnly?: boolean;
  readonly hasLogprobs?: boolean;
  /** Whether the next turn is a further sample of its prompt. */
  readonly isSample?: boolean;
}

/** Runs a chat of 1,000 tokens with an answer of 100, then its next turn with token 40 changed; returns the counts of that. */
async function lostOf({
  numHeld,
  numComputed,
  salt = '',
  isPromptOnly = false,
  hasLogprobs,
  isSample = false,
}: Wish = {}) {
  const clock = new SimulatedClock();
  const conductor = {
    heldBlocks: (keys: Int32Array) => Math.min(numHeld ?? Infinity, keys.length / 2),
  } as unknown as Conductor;
  const finder = new RewrittenTextFinder({ view: { model } as never, conductor, clock });
  const chains = new ChainCache();
  const log = new RequestLog(clock, [], 8);
  const wait = async <T>(promise: Promise<T>): Promise<T> => {
    await clock.run(clock.nowMs() + 1);
    return promise;
  };
  const request = async (prompt: Uint32Array, answer: readonly number[], more: object): Promise<RequestTrace> => {
    const first = opened(log, 'r', { promptTokens: prompt.length });
    const trace = isSample && prompt.length > 1_000 ? log.openSample('s', first) : first;
    const chain = new RequestChain(clock, { ...noScope, salt: prompt.length > 1_000 ? salt : '' }, chains);
    await wait(chain.blocks(model as never, prompt));
    const inFlight = {
      chain,
      tokens: new TokenList(prompt),
      excluded: { isHolder: () => true },
      generation: { promptTokens: prompt, request: neutralRequest(prompt.length, 2_000), ...more },
      trace,
    } as unknown as InFlightRequest;
    await wait(finder.compare(inFlight, { heldTokens: 0 } as Chosen));
    for (const token of answer) inFlight.tokens.push(token);
    await wait(finder.remember(inFlight));
    return trace;
  };
  const prompt = Uint32Array.from({ length: 1_000 }, (_, i) => 7 * i);
  const answer = Array.from({ length: 100 }, (_, i) => 7 * i + 1);
  await request(prompt, answer, {});
  const next = Uint32Array.from([...prompt, ...answer, ...Array.from({ length: 50 }, (_, i) => 7 * i + 2)]);
  next[40] = 3;
  const trace = await request(next, [1], {
    isPromptOnly,
    ...(hasLogprobs ? { promptLogprobs: [] } : {}),
  });
  assert.deepEqual(trace.record.counts.lost, {}, 'nothing is known before the report');
  trace.emit(placedAt('d1'));
  const whole = { ...emptyReport, computedTokens: numComputed ?? next.length - 32 };
  trace.emit({ kind: 'firstToken', attempt: 1, report: whole, isFirst: true });
  return trace.record.counts.lost;
}

test('full blocks after the first change, up to the last that the earlier turn filled', async () => {
  // All but one of 1,100 tokens are the same: 34 blocks, of which the first stands before the change.
  assert.deepEqual(await lostOf(), { lost_tokens: 33 * 32, rewritten_from: 40 });
});

test('tokens that were hits all the same are not lost', async () => {
  assert.deepEqual(await lostOf({ numComputed: 1_150 - 320 }), { lost_tokens: 24 * 32, rewritten_from: 40 });
  assert.deepEqual(await lostOf({ numComputed: 62 }), {});
});

test('tokens whose blocks nobody has any more are not lost', async () => {
  assert.deepEqual(await lostOf({ numHeld: 11 }), { lost_tokens: 10 * 32, rewritten_from: 40 });
  assert.deepEqual(await lostOf({ numHeld: 1 }), {});
});

test('what nothing was computed before of is no loss: nor is another salt, log-probabilities, a prompt alone, a further sample', async () => {
  assert.deepEqual(await lostOf({ salt: 'another' }), {});
  assert.deepEqual(await lostOf({ hasLogprobs: true }), {});
  assert.deepEqual(await lostOf({ isPromptOnly: true }), {});
  assert.deepEqual(await lostOf({ isSample: true }), {});
});
