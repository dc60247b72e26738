/** Events made from a template are those that are made one by one. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { EventTemplate, LastTemplate } from '../../../services/router/api/event_template.ts';

const eventOf = (value: unknown): string => `data: ${JSON.stringify(value)}\n\n`;
const texts = [' w', '', '"', '\\', '\u0001', '\u00010', '\ud83d\ude00', '\ud83d', '\u2028', '0', '}],"x":['];

test.each(['penstock', '', '\u00010', '\u0001\u00010', '"\u00010"', '\u0001\u0001\u00010', ...texts])(
  'whatever the constant parts are: %j',
  (name) => {
    const valueOf = (text: unknown, number: unknown): object => ({
      name,
      list: [name, { text, name }],
      again: text,
      number,
      end: name,
    });
    const template = new EventTemplate(2, ([text, number]) => eventOf(valueOf(text, number)));
    for (const [i, text] of texts.entries())
      assert.equal(template.fill(JSON.stringify(text), String(i)), eventOf(valueOf(text, i)));
  },
);

test('the template of the last key is kept, and no other', () => {
  const last = new LastTemplate();
  let numMade = 0;
  const of = (key: string): string =>
    last
      .of(key, () => {
        numMade++;
        return new EventTemplate(1, ([text]) => `${key} ${JSON.stringify(text)}`);
      })
      .fill('1');
  assert.deepEqual(['a', 'a', 'b', 'b', 'a'].map(of), ['a 1', 'a 1', 'b 1', 'b 1', 'a 1']);
  assert.equal(numMade, 3);
});
