/** Events of a streamed answer, as OpenAI's completions and chats have them. */

/** Token counts that a server reports at the end of an answer. */
export interface Usage {
  readonly promptTokens: number | undefined;
  readonly outputTokens: number | undefined;
  /** Prompt tokens whose KV was there; undefined where the server does not say. */
  readonly cachedTokens: number | undefined;
}

/** An event, as far as a load generator reads it. */
export interface AnswerEvent {
  /** Whether the event has a choice, so that it belongs to the time of the answer. */
  readonly isChoice: boolean;
  /** Whether the event brings at least one token. */
  readonly hasToken: boolean;
  /** Whether the event says why the answer ended (`finish_reason`). */
  readonly isEnd: boolean;
  /** Text of the answer, without its reasoning. */
  readonly text: string;
  readonly usage: Usage | undefined;
  /** Message of an error in place of an answer. */
  readonly error: string | undefined;
}

type Value = Readonly<Record<string, unknown>>;

const isObject = (value: unknown): value is Value => typeof value === 'object' && value !== null;
const isText = (value: unknown): value is string => typeof value === 'string' && value !== '';
const countOf = (value: unknown): number | undefined => (typeof value === 'number' ? value : undefined);

/**
 * Reads the data of an event. Empty text counts as a token, since special tokens have none, unless the event only opens the message of a chat
 * (`role`) or only closes the answer (`finish_reason`): some servers send those apart from any token.
 * @throws SyntaxError when the data are not JSON
 */
export function readAnswerEvent(data: string): AnswerEvent {
  const body: unknown = JSON.parse(data);
  if (!isObject(body)) throw new SyntaxError(`an event of the answer is no object: ${data.slice(0, 100)}`);
  const { choices, usage, error } = body;
  const [choice] = Array.isArray(choices) ? (choices as unknown[]) : [];
  return {
    ...choiceOf(isObject(choice) ? choice : undefined),
    usage: isObject(usage) ? usageOf(usage) : undefined,
    error: error === undefined || error === null ? undefined : errorText(error),
  };
}

function choiceOf(choice: Value | undefined): Pick<AnswerEvent, 'isChoice' | 'hasToken' | 'isEnd' | 'text'> {
  if (!choice) return { isChoice: false, hasToken: false, isEnd: false, text: '' };
  const { delta, text: ofCompletion, finish_reason: finishReason } = choice;
  const message = isObject(delta) ? delta : undefined;
  const content = message ? message['content'] : ofCompletion;
  const text = isText(content) ? content : '';
  const { reasoning, reasoning_content: reasoningContent, tool_calls: toolCalls, role } = message ?? {};
  const hasText = text !== '' || isText(reasoning) || isText(reasoningContent) || isObject(toolCalls);
  const isEnd = isText(finishReason);
  return { isChoice: true, hasToken: hasText || !(isEnd || isText(role)), isEnd, text };
}

/** Returns the token counts of a `usage` object. */
export function usageOf(usage: Value): Usage {
  const details = usage['prompt_tokens_details'];
  return {
    promptTokens: countOf(usage['prompt_tokens']),
    outputTokens: countOf(usage['completion_tokens']),
    cachedTokens: isObject(details) ? countOf(details['cached_tokens']) : undefined,
  };
}

/** Longest message of a server that is kept. */
const MAX_MESSAGE_LENGTH = 400;

/** Returns the message of an error object, or of the body of an unsuccessful answer, shortened. */
export function errorText(error: unknown): string {
  const inner = isObject(error) && isObject(error['error']) ? error['error'] : error;
  const message = isObject(inner) ? (inner['message'] ?? inner['detail'] ?? JSON.stringify(inner)) : inner;
  const text = typeof message === 'string' ? message : JSON.stringify(message);
  return text.length > MAX_MESSAGE_LENGTH ? `${text.slice(0, MAX_MESSAGE_LENGTH)}…` : text;
}
