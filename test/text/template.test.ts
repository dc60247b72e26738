/**
 * Small templates, against what Hugging Face transformers makes of them: `recorded.json` is written by `record.py`, with a clock that stands still.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ChatTemplate } from '../../shared/text/template/chat_template.ts';
import { goldenFolder } from '../support/golden.ts';

interface Recorded {
  readonly name: string;
  readonly template: string;
  readonly context: Readonly<Record<string, unknown>>;
  readonly text?: string;
  readonly error?: string;
  readonly parse?: true;
}

/** Cases that differ on purpose: features that `chat_template.ts` leaves out, and functions that print under other names. */
const OTHERWISE = new Set([
  ...['str/101', 'str/102', 'str/103', 'list/37', 'print/32', 'print/33', 'compare/50', 'filter/82', 'filter/83'],
  ...['filter/148', 'filter/149', 'filter/163', 'filter/167', 'macro/34', 'literal/10', 'literal/95', 'literal/112'],
  ...['syntax/19', 'syntax/20', 'global/06', 'global/33', 'global/34'],
]);

function outcomeOf({ template, context }: Recorded): Pick<Recorded, 'text' | 'error' | 'parse'> {
  let made: ChatTemplate;
  try {
    made = new ChatTemplate(template, () => new Date(2026, 6, 4, 9, 5, 3));
  } catch (error) {
    return { error: String(error), parse: true };
  }
  const given = { messages: [], tools: null, documents: null, add_generation_prompt: false, ...context };
  try {
    return { text: made.render(given) };
  } catch (error) {
    return { error: (error as Error).message };
  }
}

test('templates make what Python makes of them, and refuse what it refuses when it does', () => {
  const recorded = JSON.parse(readFileSync(join(goldenFolder('templates'), 'recorded.json'), 'utf8')) as Recorded[];
  for (const wanted of recorded) {
    const { name, template, text, error, parse } = wanted;
    if (OTHERWISE.has(name)) continue;
    const got = outcomeOf(wanted);
    expect({ template, text: got.text, parse: got.parse }).toEqual({ template, text, parse });
    if (template.includes("raise_exception('")) expect(got.error).toBe(error);
  }
  expect(recorded.length).toBe(1032);
});
