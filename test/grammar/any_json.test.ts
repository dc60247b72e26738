/** JSON without a schema. */
import { expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { anyJsonGrammar } from '../../shared/grammar/any_json.ts';
import { toEbnf } from '../../shared/grammar/ebnf.ts';
import { LibraryMatcher } from './library_matcher.ts';
import { TextSampler } from './sample_text.ts';

const objects = [
  '{}',
  '{"a":1}',
  '{"a": [1, 2,{"b":null}], "\\u00e9\\n":"日😀"}',
  '{"a":-0.5e-10}',
  `{"a":${'['.repeat(500)}${']'.repeat(500)}}`,
];
const values = ['1', '"x"', 'null', '[]', '[true, false]', '0.25'];
const others = [
  '',
  '{',
  '{a:1}',
  '{"a":1,}',
  '{ }',
  '{"a" :1}',
  '{"a":  1}',
  '{"a":1 ,"b":2}',
  '{"a":01}',
  '{"a":"\n"}',
  '{"a":"\\ud800"}',
  '{"a":1}{}',
];

test('an object is any JSON object, a value any JSON text, with one blank at most', async () => {
  const library = await LibraryMatcher.load();
  const [object, value] = [toEbnf(anyJsonGrammar('object')), toEbnf(anyJsonGrammar('value'))];
  for (const text of objects) {
    expect(await library.accepts(object, text), text).toBe(true);
    expect(await library.accepts(value, text), text).toBe(true);
  }
  for (const text of values) {
    expect(await library.accepts(value, text), text).toBe(true);
    expect(await library.accepts(object, text), text).toBe(false);
  }
  for (const text of others) expect(await library.accepts(value, text), text).toBe(false);
});

test('every text is JSON', () => {
  const sampler = new TextSampler(anyJsonGrammar('object'), new Random(1));
  for (let i = 0; i < 100; i++) {
    const text = sampler.sample();
    expect(typeof JSON.parse(text), text).toBe('object');
  }
});
