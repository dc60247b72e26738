/** Blocks and events of answers in Anthropic's form, at every split of the text, and its errors. Budget: 2 s. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { describe, test } from 'vitest';
import { Failure } from '../../../../shared/base/failure.ts';
import {
  AnswerBlocks,
  contentJson,
  type MessageEvent,
} from '../../../../services/router/surfaces/anthropic/answer_blocks.ts';
import { errorFormOf } from '../support.ts';
import { ParameterFailure } from '../../../../services/router/api/parameter_failure.ts';
import type { OutputDelta } from '../../../../shared/text/output/output_delta.ts';
import { ParsedFormat } from '../../../text/output/support.ts';

type Block = Record<string, unknown>;

function eventsOf(pieces: readonly OutputDelta[]): MessageEvent[] {
  const blocks = new AnswerBlocks();
  return [...pieces.flatMap((piece) => blocks.push(piece)), ...blocks.end()];
}

const fieldOf: Readonly<Record<string, readonly [block: string, field: string]>> = {
  text_delta: ['text', 'text'],
  thinking_delta: ['thinking', 'thinking'],
  signature_delta: ['thinking', 'signature'],
  input_json_delta: ['tool_use', 'partial_json'],
};

/** Reads events as a client does, and checks that each block begins, has its deltas and ends before the next begins. */
function blocksOf(events: readonly MessageEvent[]): Block[] {
  const content: Block[] = [];
  let isOpen = false;
  for (const event of events) {
    const last = content.at(-1);
    if (event.type === 'content_block_start') {
      assert(!isOpen, 'the block before has ended');
      assert.equal(event['index'], content.length);
      const block = event['content_block'] as Block;
      content.push({ ...block, ...(block['type'] === 'tool_use' ? { json: '' } : {}), ended: false });
      isOpen = true;
      continue;
    }
    assert(isOpen && last);
    assert.equal(event['index'], content.length - 1);
    if (event.type === 'content_block_stop') {
      isOpen = false;
      continue;
    }
    assert.equal(event.type, 'content_block_delta');
    const delta = event['delta'] as Record<string, string>;
    const [kind, field] = fieldOf[delta['type'] ?? ''] ?? ['', ''];
    assert.equal(last['type'], kind);
    assert.equal(last['ended'], false, 'nothing follows a signature');
    const own = field === 'partial_json' ? 'json' : field;
    last[own] = `${last[own] as string}${delta[field]}`;
    if (field === 'signature') last['ended'] = true;
  }
  assert(!isOpen, 'the last block has ended');
  return content.map((block) => {
    const { json, ended, ...rest } = block;
    assert.equal(ended, block['type'] === 'thinking', 'thinking is signed, and nothing else');
    return json === undefined ? rest : { ...rest, input: json === '' ? {} : (JSON.parse(json as string) as unknown) };
  });
}

describe('a text that thinks, speaks, calls twice and speaks again', () => {
  const format = new ParsedFormat({ tools: 'hermes', reasoning: 'think' });
  const schemas = { tide: {}, berth: {} };
  const text =
    '<think>\nTwo questions.\n</think>\n\nI ask.\n<tool_call>\n{"name": "tide", "arguments": {"place": "old mill", "n": 1}}\n</tool_call>\n' +
    '<tool_call>\n{"name": "berth", "arguments": {}}\n</tool_call> Done.';
  const whole = blocksOf(eventsOf(format.deltas([text], { schemas })));

  test('is blocks in their order', () => {
    const signature = createHash('sha256').update('Two questions.').digest('base64');
    const caller = { type: 'direct' };
    const ids = whole.map(({ id }) => id).filter((id) => id !== undefined);
    assert.equal(new Set(ids).size, 2);
    assert.deepEqual(
      whole.map((block) => ({ ...block, id: undefined, citations: undefined })),
      [
        { type: 'thinking', thinking: 'Two questions.', signature },
        { type: 'text', text: 'I ask.\n' },
        { type: 'tool_use', name: 'tide', caller, input: { place: 'old mill', n: 1 } },
        { type: 'tool_use', name: 'berth', caller, input: {} },
        { type: 'text', text: ' Done.' },
      ].map((block) => ({ ...block, id: undefined, citations: undefined })),
    );
  });

  test('is the same at every split, streamed and whole', () => {
    const same = (pieces: readonly string[]): void => {
      const deltas = format.deltas(pieces, { schemas });
      assert.deepEqual(blocksOf(eventsOf(deltas)), whole, JSON.stringify(pieces));
      assert.deepEqual(JSON.parse(contentJson(deltas)), whole, JSON.stringify(pieces));
    };
    for (let at = 0; at <= text.length; at++) same([text.slice(0, at), text.slice(at)]);
    same(text.split(/(?:)/u));
  });
});

test('an answer without a piece has no block, and one of reasoning alone has one', () => {
  assert.deepEqual([eventsOf([]), contentJson([])], [[], '[]']);
  const [block, ...others] = blocksOf(eventsOf([{ kind: 'reasoning', text: 'x' }]));
  assert.deepEqual([block?.['thinking'], others], ['x', []]);
});

test('the input of a call keeps its digits; what is no object is a text; none is empty', () => {
  const call = (text: string): unknown =>
    contentJson([
      { kind: 'call', index: 0, id: 'c', name: 'f' },
      ...(text === '' ? [] : [{ kind: 'arguments' as const, index: 0, text }]),
    ]);
  const block = (input: string): string =>
    `[{"type":"tool_use","id":"c","name":"f","caller":{"type":"direct"},"input":${input}}]`;
  assert.equal(call('{"n": 12345678901234567890.10}'), block('{"n": 12345678901234567890.10}'));
  assert.equal(call('{"n": '), block('"{\\"n\\": "'));
  assert.equal(call('[1]'), block('"[1]"'));
  assert.equal(call(''), block('{}'));
});

describe('errors', () => {
  const form = errorFormOf('/v1/messages?beta=true');
  const at = (statusCode: number): Error => Object.assign(new Error('x'), { statusCode });

  test.each([
    [new Failure('invalid_request', 'x'), 'invalid_request_error'],
    [new Failure('unauthenticated', 'x'), 'authentication_error'],
    [at(403), 'permission_error'],
    [new Failure('model_not_found', 'x'), 'not_found_error'],
    [at(405), 'invalid_request_error'],
    [at(413), 'request_too_large'],
    [at(429), 'rate_limit_error'],
    [new Failure('internal', 'x'), 'api_error'],
    [new Failure('instance_lost', 'x'), 'api_error'],
    [new Failure('overloaded', 'x'), 'overloaded_error'],
    [new Failure('deadline_exceeded', 'x'), 'timeout_error'],
    [at(529), 'overloaded_error'],
    [new Error('x'), 'api_error'],
  ])('%s is %s', (error, type) => {
    assert.deepEqual(form.body(error, 'r'), { type: 'error', error: { type, message: 'x' }, request_id: 'r' });
  });

  test.each([
    ['tools.3.function.strict: no', 'tools.3.strict: no'],
    ['stop: over 2048 characters', 'stop_sequences: over 2048 characters'],
    ['response_format.json_schema.schema/not: no', 'output_config.format.schema/not: no'],
    ['stopped: x', 'stopped: x'],
  ])('%s has the name of its own API', (message, own) => {
    assert.deepEqual(form.body(new ParameterFailure(message, null), null), {
      type: 'error',
      error: { type: 'invalid_request_error', message: own },
      request_id: null,
    });
  });

  test('a prompt that is too long says so in the words that clients look for', () => {
    const body = form.body(new ParameterFailure('65 tokens', 'messages', 'context_too_long'), null);
    assert.match(JSON.stringify(body), /"message":"prompt is too long: 65 tokens"/);
  });

  test('a refused thread says so in the code by which clients send the whole conversation', () => {
    const details = { error_code: 'thread_unsupported_request', unsupported: ['thread'] };
    const body = form.body(new ParameterFailure('thread: no', 'thread'), null);
    assert.deepEqual((body as { error: object }).error, {
      type: 'invalid_request_error',
      message: 'thread: no',
      details,
    });
  });

  test('the event names itself, the headers the request, and other paths have the form of OpenAI', () => {
    const late = new Failure('overloaded', 'x');
    assert.equal(form.event(late, 'r'), `event: error\ndata: ${JSON.stringify(form.body(late, 'r'))}\n\n`);
    assert.deepEqual(
      [
        form.headers(late, 'r')['request-id'],
        form.headers(late, 'r')['retry-after'],
        form.headers(late, null)['request-id'],
      ],
      ['r', '1', undefined],
    );
    for (const path of ['/v1/messages', '/v1/messages/count_tokens', '/v1/messages/batches'])
      assert.equal(errorFormOf(path), form);
    for (const path of ['/v1/chat/completions', '/v1/messagesx', '/x?/v1/messages'])
      assert.deepEqual(Object.keys(errorFormOf(path).body(late, 'r')), ['error']);
  });
});
