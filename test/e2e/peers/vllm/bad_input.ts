/** vLLM's checks of what a chat refuses, and of how the error names it (`chat/test_…_validation`, `chat/test_non_object_body`). */
import assert from 'node:assert/strict';
import { CHAT, type Api } from '../api.ts';
import { messages, model, VOCABULARY } from '../samples.ts';
import type { PeerSuite } from '../suite.ts';

const wish = { model, messages, max_tokens: 5 };

/** Defines the checks of refused biases, bodies and stop tokens. */
export function badInputChecks(suite: PeerSuite, api: Api): void {
  suite.group('chat/test_chat_logit_bias_validation', (check) => {
    check('valid', async () => {
      const bias = { [String(VOCABULARY - 1)]: 1 };
      assert.notEqual((await api.chat({ ...wish, logit_bias: bias })).choices[0]?.message.content, '');
    });
    const refused: [string, object, RegExp[]][] = [
      ['invalid id names id and vocab size', { [String(VOCABULARY + 1)]: 1 }, [/1537/, /\b1536\b/]],
      ['non-integer key names key', { not_a_token_id: 50 }, [/not_a_token_id/]],
      ['non-numeric value', { 1: 'not_a_number' }, [/bias of 1 /]],
      ['all bad keys reported', { bad1: 50, bad2: 20 }, [/bad1/, /bad2/]],
    ];
    for (const [name, bias, patterns] of refused) {
      check(name, async () => {
        const { error } = await api.refused(CHAT, { ...wish, logit_bias: bias });
        assert.equal(error.param, 'logit_bias');
        for (const pattern of patterns) assert.match(error.message, pattern);
      });
    }
  });
  suite.group('chat/test_non_object_body', (check) => {
    for (const [name, body] of [
      ["body 'this is not valid js'", 'this is not valid json{{{'],
      [`body '["not","an","object"'`, '["not","an","object"]'],
      ["body '42'", '42'],
      ["body 'null'", 'null'],
      [`body '"str"'`, '"str"'],
      ["body ''", ''],
    ] as const) {
      check(name, async () => {
        const { error } = await api.refused(CHAT, body);
        assert.match(error.message, /the body is (empty|not (a )?JSON)/);
        assert.equal(error.type, 'invalid_request_error');
      });
    }
    check("cache_salt '' refused", async () => {
      const { error } = await api.refused(CHAT, { ...wish, cache_salt: '' });
      assert.equal(error.param, 'cache_salt');
    });
  });
  suite.group('chat/test_chat_stop_token_ids_validation', (check) => {
    check('stop_token_ids out of vocab', async () => {
      const { error } = await api.refused(CHAT, { ...wish, stop_token_ids: [VOCABULARY + 1] });
      assert.equal(error.param, 'stop_token_ids');
      assert.match(error.message, /1537.*\b1536\b/);
      const { choices } = await api.chat({ ...wish, stop_token_ids: [VOCABULARY - 1] });
      assert.notEqual(choices[0]?.message.content, '');
    });
    check('stop_token_ids negative', async () => {
      const { error } = await api.refused(CHAT, { ...wish, stop_token_ids: [-1] });
      assert.match(error.param ?? '', /^stop_token_ids/);
    });
  });
}
