/**
 * The format of gpt-oss. An answer is a list of messages, each with a header that names its channel and, for a call, the recipient:
 *
 *   <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
 */
import type { Choose, ToolStates, Transition } from './output_table.ts';

const RECIPIENT = /\bto=([\w.-]+)/;
/** Namespace of the request's tools. */
const FUNCTIONS = 'functions.';

/**
 * Chooses the state of a message by its header: calls of functions, with their namespace or without, reasoning, and everything else, which is
 * read by the user.
 */
const byHeader: Choose = (header, _, isKnown) => {
  const recipient = RECIPIENT.exec(header)?.[1];
  const own = recipient?.startsWith(FUNCTIONS) === true ? recipient.slice(FUNCTIONS.length) : undefined;
  const last = recipient?.slice(recipient.lastIndexOf('.') + 1);
  const name = own ?? [recipient, last].find((one) => one !== undefined && isKnown(one));
  if (name !== undefined) return { to: 'call', name };
  const channel = /<\|channel\|>\s*(\w+)/.exec(header)?.[1];
  if (channel === undefined) return undefined;
  // Commentary without a recipient is a preamble for the reader; messages to anyone else are part of the model's work.
  const isWork = channel === 'analysis' || (recipient !== undefined && channel !== 'final');
  return { to: isWork ? 'reasoning' : 'content' };
};

const CHANNEL = '<|channel|>';
const channel: Transition = { to: 'next_header', keep: CHANNEL.length };
const ends = {
  '<|end|>': 'between',
  '<|return|>': 'between',
  '<|call|>': 'between',
  '<|start|>': 'next_header',
  [CHANNEL]: channel,
};

/** States of harmony; the prompt ends where the first header begins. */
export const harmonyStates: ToolStates = {
  start: 'header',
  markers: [CHANNEL, '<|constrain|>'],
  states: {
    header: { text: 'word', on: { '<|message|>': { to: byHeader } } },
    next_header: { text: 'word', on: { '<|message|>': { to: byHeader } }, isFormat: true },
    content: { text: 'content', on: ends },
    reasoning: { text: 'reasoning', on: ends },
    call: { text: 'arguments', on: ends },
    between: { text: 'tail', on: { '<|start|>': 'next_header', [CHANNEL]: channel } },
  },
};
