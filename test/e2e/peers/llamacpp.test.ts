/** The checks of llama.cpp's own suite (`tools/server/tests/unit/…`). Budget: 20 s. */
import { afterAll, beforeAll } from 'vitest';
import { Cluster } from '../../support/cluster.ts';
import { Api } from './api.ts';
import { chatChecks } from './llamacpp/chat.ts';
import { completionChecks, PAGE, serverChecks } from './llamacpp/completion.ts';
import { PeerSuite } from './suite.ts';

let cluster: Cluster;
beforeAll(async () => {
  cluster = await Cluster.withKeys('--prefill', '0', '--store', '0', '--allowed-origins', PAGE);
});
afterAll(async () => {
  await cluster.close();
});

const native = 'routes of the native API are not those of OpenAI';
const suite = new PeerSuite('llama.cpp', {
  numChecks: 52,
  byDecision: {
    'llama.cpp/test_chat_completion unknown model name answered (gpt-3.5-turbo-instruct)':
      'a router serves several models: an unknown name is an error',
    'llama.cpp/test_chat_completion invalid messages [{"role": "user", "content": "test"}, {"':
      'the chat template decides which messages may follow each other',
    'llama.cpp/test_chat_completion timings_per_token': 'the header x-penstock-request has the times',
    'llama.cpp/test_completion(OAI part) native endpoint /completion': native,
    'llama.cpp/test_completion(OAI part) native endpoint /slots': native,
    'llama.cpp/test_completion(OAI part) native endpoint /props': native,
    'llama.cpp/test_completion(OAI part) native endpoint /infill': native,
    'llama.cpp/test_completion(OAI part) native endpoint /embedding': native,
    'llama.cpp/test_security api key enforced (no option exists)': 'keys come later',
    'llama.cpp/test_tokenize tokenize content/with_pieces': '/tokenize has the fields of vLLM',
  },
});
const api = new Api(() => cluster.url);
chatChecks(suite, api);
completionChecks(suite, api, () => cluster.url);
serverChecks(suite, api);
suite.end();
