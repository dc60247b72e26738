/** Neutral values of a request, and what an instance reads where a router sends nothing. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { methodOf, wires } from '../../shared/net/grpc/wire.ts';
import type { DecodeRequest } from '../../shared/protocol/messages.ts';
import { neutralSampling, requestOf } from '../../shared/protocol/request.ts';

/** Returns the request of a Decode call, as the instance reads it. */
function received(request: object): ReturnType<typeof requestOf> {
  const { requestSerialize, requestDeserialize } = methodOf(wires.decode);
  const { start } = requestDeserialize(requestSerialize({ slot: 0, start: { request } })) as DecodeRequest;
  return requestOf(start?.request ?? null);
}

test('neutral sampling is greedy, cuts nothing, changes no logit and reports nothing', () => {
  assert.deepEqual(neutralSampling, {
    temperature: 0,
    topP: 1,
    topK: 0,
    minP: 0,
    presencePenalty: 0,
    frequencyPenalty: 0,
    repetitionPenalty: 1,
    biasTokens: [],
    biasValues: [],
    seedLow: 0,
    seedHigh: 0,
    numLogprobs: -1,
    minTokens: 0,
  });
});

test('a field that the router does not send is read as zero, which is neutral but for three', () => {
  const unlike = { topP: 0, repetitionPenalty: 0, numLogprobs: 0 };
  assert.deepEqual(received({ sampling: {} })?.sampling, { ...neutralSampling, ...unlike });
  assert.deepEqual(received({ sampling: neutralSampling })?.sampling, neutralSampling);
  assert.deepEqual(received({})?.sampling, neutralSampling);
});
