/** Schemas of tools and inputs of calls keep the text that the client wrote, and a hostile body costs no more than another. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { exactTextOf, parseExactly } from '../../../services/router/api/exact_texts.ts';

const parse = (text: string): Record<string, unknown> =>
  parseExactly(Buffer.from(text), (bytes) => JSON.parse(bytes.toString()) as unknown) as Record<string, unknown>;

test('an object that JSON.parse would change has its text; another one does not', () => {
  for (const own of ['{"n": 1.0}', '{"n": 12345678901234567890}', '{"404": 1, "a": {"input": 2}}', '{"n":-0}']) {
    const { tools } = parse(`{"tools": [{"parameters" :\n ${own}}], "x": {"input": "1.0"}}`) as {
      tools: [{ parameters: object }];
    };
    assert.equal(exactTextOf(tools[0].parameters), own);
    assert.deepEqual(tools[0].parameters, JSON.parse(own));
  }
  assert.equal(
    exactTextOf((parse('{"parameters": {"a": "1.0 says"}}') as { parameters: object }).parameters),
    '{"a": "1.0 says"}',
  );
  assert.equal(exactTextOf((parse('{"parameters": {"a": 1}}') as { parameters: object }).parameters), undefined);
  assert.equal(exactTextOf('text'), undefined);
});

test('a mark that the client spells, or hides by a second key, leaves the body as it was sent', () => {
  const bodies = [
    '{"a": "\\u0040exact0", "input": {"n": 1.0}}',
    '{"input": {"n": 1.0}, "a": ["\\u0040exact0", "\\u0040exact9", "\\u0040exactx"]}',
    '{"input": {"n": 1.0}, "input": 2}',
    '{"@exact": "@@exact0", "input": {"n": 1.0}}',
  ];
  for (const body of bodies) assert.deepEqual(parse(body), JSON.parse(body));
  for (const body of ['{"input": {"n": 1.0', '{"x":{"input":{]]]1.5},"input":1}}', '{"input":{]'.repeat(9)])
    assert.throws(() => parse(body), SyntaxError);
});

test('keys within keys are read once each', () => {
  // A time that grows with the square of the length would not end.
  assert.throws(() => parse('{"input":{]'.repeat(300_000)), SyntaxError);
  const deep = `${'{"input":'.repeat(3_000)}{"n": 1.0}${'}'.repeat(3_000)}`;
  assert.deepEqual(Object.keys(parse(deep)), ['input']);
});
