/** Parses request bodies on the thread that encodes their prompts: body bytes in, request parameters and token ids out. */
import { Failure } from '../../../shared/base/failure.ts';
import { readBody, type BodyOf } from '../openai/body_kinds.ts';
import { refusalOf, type BodyLimits, type Refusal } from '../openai/parameter_failure.ts';
import type { TemplateInput } from '../openai/parameters.ts';
import type { Truncation } from '../openai/truncation.ts';

/**
 * Kind of a request body with prompts: `chat`, `message` and `messageCount` have messages, `response` items of a conversation, `invocation`
 * and `lookup` messages or a prompt, the others texts or token ids.
 */
export type PromptBodyKind =
  'chat' | 'completion' | 'embedding' | 'invocation' | 'response' | 'message' | 'messageCount' | 'lookup';

const NO_IDS = new Uint32Array(0);

/** A request body to parse, whose prompts are then encoded. */
export interface PromptBodyJob<K extends PromptBodyKind = PromptBodyKind> {
  readonly kind: K;
  readonly bytes: Uint8Array;
  readonly limits: BodyLimits;
  /** The model whose tokenizer this is: prompts for another are left as they are. */
  readonly model: string;
  readonly maxCharacters: number;
}

/** Limits of a prompt that is encoded. */
interface PromptLimits {
  readonly maxCharacters: number;
  /** Side on which the ids are cut afterwards; undefined: a text over `maxCharacters` is refused. */
  readonly cutSide?: Truncation['side'] | undefined;
  /** Whether cached tokens of other requests' answers may stand for turns of this prompt; false under a cache salt. */
  readonly isShared?: boolean;
}

/** A text to encode. */
export interface TextPrompt extends PromptLimits {
  readonly text: string;
  readonly addSpecialTokens: boolean;
}

/** A chat to render and encode. */
export interface ChatInput extends PromptLimits {
  readonly template: TemplateInput;
}

/** Encodes texts and chats to token ids. */
export interface PromptEncoder {
  /** Returns the token ids of a text. @throws Failure when the text is too long. */
  encode(prompt: TextPrompt): Uint32Array;
  /** Renders a chat and returns its token ids. @throws Failure when the template refuses the chat, or its text is too long. */
  chatPrompt(chat: ChatInput): ChatPrompt;
}

/** Prompt of a chat: its token ids, and the end of its text that belongs to the answer, for the parser of the output. */
export interface ChatPrompt {
  readonly ids: Uint32Array;
  readonly prefix: string;
}

/**
 * A parsed body and the token ids of each of its prompts. `prompts` is undefined when the prompts are for another model's tokenizer,
 * or cannot be encoded.
 */
export interface ReadPromptBody<K extends PromptBodyKind = PromptBodyKind> {
  readonly body: BodyOf<K>;
  readonly prompts: readonly Uint32Array[] | undefined;
  /** End of a chat's prompt that belongs to the answer. */
  readonly prefix?: string;
  /** Why the prompts cannot be encoded. The caller throws this after it has recorded the request's model and id. */
  readonly failure?: Pick<Failure, 'code' | 'message'>;
}

/**
 * Parses a body and encodes its prompts. Errors in the body are the client's; they are returned as values, which cross threads
 * complete.
 */
export function readPromptBody(
  tools: PromptEncoder,
  { kind, bytes, limits, model, maxCharacters }: PromptBodyJob,
): ReadPromptBody | { readonly refused: Refusal } {
  let body: BodyOf<PromptBodyKind>;
  try {
    body = readBody(kind, bytes, limits);
  } catch (error) {
    return { refused: refusalOf(error) };
  }
  if ((body.model ?? '') !== '' && body.model !== model) return { body, prompts: undefined };
  try {
    return encoded(tools, body, maxCharacters);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    return { body: withoutText(body), prompts: undefined, failure: { code: error.code, message: error.message } };
  }
}

function encoded(tools: PromptEncoder, body: BodyOf<PromptBodyKind>, maxCharacters: number): ReadPromptBody {
  const limits: PromptLimits = {
    maxCharacters,
    cutSide: 'truncation' in body ? body.truncation?.side : undefined,
    // An embedding is one of its text alone.
    isShared: 'sampling' in body && body.cacheSalt === '',
  };
  // The main thread alone knows the conversation before it.
  if ('response' in body && body.response.isContinuing) return { body, prompts: undefined };
  if ('template' in body) {
    const { ids, prefix } = tools.chatPrompt({ template: body.template, ...limits });
    return { body: withoutText(body), prompts: [ids], prefix };
  }
  const { hasSpecialTokens: addSpecialTokens } = body;
  const prompts = body.prompts.map((prompt) =>
    typeof prompt === 'string' ? tools.encode({ text: prompt, addSpecialTokens, ...limits }) : prompt,
  );
  return { body: 'isEchoing' in body && body.isEchoing ? body : withoutText(body), prompts };
}

/** Returns the body without the text and ids of its prompts, which are not needed after encoding; of a prompt only its kind is left. */
function withoutText(body: BodyOf<PromptBodyKind>): BodyOf<PromptBodyKind> {
  if ('template' in body) return { ...body, template: { ...body.template, messages: [], kwargs: {}, tools: [] } };
  return { ...body, prompts: body.prompts.map((prompt) => (typeof prompt === 'string' ? '' : NO_IDS)) };
}
