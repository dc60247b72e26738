/** Prompts that the demo model answers in a known way, for the checks of peers. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { harbour } from '../../support/cluster.ts';

interface Example {
  readonly messages: { readonly role: string; readonly content: string }[];
  readonly answer: string;
}
const { cases } = JSON.parse(readFileSync(`${harbour}/examples.json`, 'utf8')) as { cases: Example[] };
const [first] = cases;
assert(first);

/** Name under which the demo model is served. */
export const model = 'harbour';
/** A log and a question, as a system and a user message. */
export const { messages, answer } = first;
/** A text that the model continues with more than 32 tokens, none of which is certain. */
export const openPrompt = 'The Heron came in at';
/** Text of the demo model's end-of-turn token, and its id. */
export const END = { text: '<|im_end|>', id: 2 } as const;
export const VOCABULARY = 1_536;
export const CONTEXT = 2_048;
