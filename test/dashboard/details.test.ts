/** Filters of the list of requests, requests that the page sends, answers that it reads, prices in words. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import type { RequestRow } from '../../shared/protocol/router_api.ts';
import { answerText, EventReader } from '../../services/dashboard/model/answer_stream.ts';
import { lookupOfChat, lookupRequest } from '../../services/dashboard/model/lookup_request.ts';
import { priceText } from '../../services/dashboard/model/price_words.ts';
import { promptTokens, unknownSources } from '../../services/dashboard/model/request_detail.ts';
import { hasEnded, NO_FILTER, passes, queryOf } from '../../services/dashboard/model/request_filter.ts';

const sources = { device: 0, dram: 0, instance: 0, store_dram: 0, store_disk: 0, handoff: 0, computed: 0 };
const row: RequestRow = {
  id: 'chatcmpl-AB12',
  client_id: 'mine',
  client: '10.0.0.9',
  key: 'alice',
  tenant: 'research',
  endpoint: '/v1/chat/completions',
  model: 'm',
  started_at: 0,
  sources,
  phase: 'failed',
  finish_reason: null,
  error: 'x',
  prompt_tokens: 1,
  output_tokens: 0,
  ttft_ms: null,
  total_ms: 1,
  decode: 'decode-1',
  prefill: 'prefill-1',
  attempts: 1,
  reason: '',
  misses: {},
};

test('a filter is the query of the router, and only what is set is in it', () => {
  assert.equal(queryOf(NO_FILTER, 200, null), 'api/requests?view=rows&limit=200');
  const filter = { ...NO_FILTER, text: ' a&b ', tenant: 't', order: 'slowest' } as const;
  const query = new URLSearchParams(queryOf(filter, 50, 'c 1').split('?')[1]);
  const wanted = { view: 'rows', limit: '50', q: 'a&b', tenant: 't', slowest: '1', cursor: 'c 1' };
  assert.deepEqual(Object.fromEntries(query), wanted);
});

test('what is not known of a prompt is said as it is: not there yet, never, or another request has it', () => {
  assert.deepEqual([promptTokens({ prompt_tokens: 0 }), promptTokens({ prompt_tokens: 7 })], [null, 7]);
  const of = (phase: string, first: string | null = null): string => unknownSources({ phase, sample_of: first });
  assert.match(of('loading'), /^Not known yet/);
  assert.match(of('failed'), /ended before its prompt was computed/);
  assert.match(of('finished', 'abc'), /^A further sample starts from the blocks of the first one/);
});

test('a row of the stream passes the filter that the router would let it pass', () => {
  for (const part of [
    {},
    { text: 'AB12' },
    { text: 'mine ' },
    { node: 'prefill-1' },
    { phase: 'failed', model: 'm' },
    { tenant: 'research' },
  ])
    assert(passes({ ...NO_FILTER, ...part }, row), JSON.stringify(part));
  for (const part of [{ text: 'other' }, { node: 'store-1' }, { phase: 'finished' }, { model: 'n' }, { tenant: 'r' }])
    assert(!passes({ ...NO_FILTER, ...part }, row), JSON.stringify(part));
  assert(hasEnded(row) && !hasEnded({ phase: 'loading' }));
});

test('events are read wherever the stream is cut', () => {
  const stream = ': waiting\n\ndata: {"a":1}\n\ndata: {"b":"ü"}\r\n\r\ndata: [DONE]\n\n';
  for (let at = 0; at <= stream.length; at++) {
    const reader = new EventReader();
    assert.deepEqual([...reader.read(stream.slice(0, at)), ...reader.read(stream.slice(at))], ['{"a":1}', '{"b":"ü"}']);
  }
  assert.throws(() => new EventReader().read('data: '.padEnd(2_000_000, 'x')), /longer than a megabyte/);
});

test('an answer has content, reasoning and an end, and an error ends it', () => {
  const delta = { content: 'hi', reasoning_content: 'hm' };
  const event = JSON.stringify({ choices: [{ delta, finish_reason: 'stop' }] });
  assert.deepEqual(answerText(event), { content: 'hi', reasoning: 'hm', finish: 'stop' });
  assert.deepEqual(answerText('{"usage":{}}'), { content: '', reasoning: '', finish: null });
  assert.throws(() => answerText('{"error":{"message":"no room"}}'), /no room/);
});

test('a prompt is looked up as the request would be sent', () => {
  const form = { kind: 'chat', text: 'hi', model: 'm', salt: 's' } as const;
  const messages = [{ role: 'user', content: 'hi' }] as const;
  assert.deepEqual(JSON.parse(lookupRequest(form).body), { messages, model: 'm', cache_salt: 's' });
  assert.deepEqual(JSON.parse(lookupRequest({ ...form, kind: 'prompt', model: '', salt: '' }).body), { prompt: 'hi' });
  assert.deepEqual(JSON.parse(lookupOfChat(messages, 'm', '').body), { messages, model: 'm' });
});

test('parts of a price are in words, those of nothing are left out', () => {
  const parts = { ttft: 24, of_which_wait: 0, answer: 120, my_part: 3, late: null };
  assert.equal(priceText(parts), 'time to first token 24 ms, generating the answer 120 ms, my part 3 ms');
  assert.equal(priceText(null), '');
});
