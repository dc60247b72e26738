/** Kinds of bodies of Anthropic's endpoints. */
import type { PromptBodyKind } from '../../api/body_kind.ts';
import { chatPrompts } from '../openai/body_kinds.ts';
import type { ChatBody } from '../openai/parameters.ts';
import { readCountBody, readMessagesBody } from './message_parameters.ts';

/** Body of a request for a message. */
export const messageKind: PromptBodyKind<ChatBody> = {
  name: 'message',
  fields: ['messages'],
  read: readMessagesBody,
  prompts: chatPrompts,
};

/** Body of a request for the number of its tokens. */
export const messageCountKind: PromptBodyKind<ChatBody> = {
  name: 'messageCount',
  fields: ['messages'],
  read: readCountBody,
  prompts: chatPrompts,
};
