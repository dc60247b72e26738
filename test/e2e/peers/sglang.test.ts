/** The checks of SGLang's own suite (`test/registered/openai_server/…` and its relatives). Budget: 20 s. */
import { afterAll, beforeAll } from 'vitest';
import { Cluster } from '../../support/cluster.ts';
import { Api } from './api.ts';
import { chatForms, completionForms } from './sglang/generate.ts';
import { bodies, cacheReports, lengths, models, parameters, rerank, responses, stops } from './sglang/server.ts';
import { PeerSuite } from './suite.ts';

let cluster: Cluster;
beforeAll(async () => {
  cluster = await Cluster.withKeys('--prefill', '0', '--store', '0');
});
afterAll(async () => {
  await cluster.close();
});

const suite = new PeerSuite('SGLang', {
  numChecks: 100,
  byDecision: {
    'sglang/test_openai_server rerank': 'there is no reranking',
    'sglang/test_matched_stop stop_regex': 'stops are texts and tokens',
    'sglang/test_cache_report cached == prompt-1': 'whole blocks of 32 tokens are cached',
  },
});
const api = new Api(() => cluster.url);
suite.group('sglang/test_openai_server', (check) => {
  completionForms(check, api);
  chatForms(check, api);
  parameters(check, api);
  models(check, api);
  responses(check, api);
  rerank(check, api);
});
stops(suite, api);
lengths(suite, api);
cacheReports(suite, api);
bodies(suite, api);
suite.end();
