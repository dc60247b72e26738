/** The checks of vLLM's own suite (`tests/entrypoints/…`). Budget: 20 s. */
import { afterAll, beforeAll } from 'vitest';
import { Cluster } from '../../support/cluster.ts';
import { Api } from './api.ts';
import { PeerSuite } from './suite.ts';
import { badInputChecks } from './vllm/bad_input.ts';
import { basicChecks } from './vllm/basic.ts';
import { chatChecks } from './vllm/chat.ts';
import { completionChecks } from './vllm/completion.ts';
import { metricsChecks } from './vllm/metrics.ts';
import { tokenizationChecks } from './vllm/tokenization.ts';

let cluster: Cluster;
beforeAll(async () => {
  cluster = await Cluster.withKeys('--prefill', '0', '--store', '0');
});
afterAll(async () => {
  await cluster.close();
});

const suite = new PeerSuite('vLLM', {
  numChecks: 153,
  byDecision: {
    'chat/test_chat single_chat_session': 'usage says how many tokens were cached',
    'chat/test_chat chat_streaming': 'the finish reason has a chunk of its own, as with OpenAI',
    'completion/test_completion batch beam search n=2': 'there is no beam search',
  },
});
const api = new Api(() => cluster.url);
chatChecks(suite, api);
completionChecks(suite, api);
basicChecks(suite, api);
badInputChecks(suite, api);
tokenizationChecks(suite, api);
metricsChecks(suite, api);
suite.end();
