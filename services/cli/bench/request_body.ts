/** Bodies of the requests, by endpoint. */
import type { Prompt } from './prompts.ts';

/** The API that a request is of, by the end of its path. */
export type Api = 'completions' | 'chat';

/** Returns the API of an endpoint's path; undefined where it is neither. */
export function apiOf(endpoint: string): Api | undefined {
  if (endpoint.endsWith('/chat/completions')) return 'chat';
  return endpoint.endsWith('/completions') ? 'completions' : undefined;
}

/** Values that all bodies share. */
export interface BodyOptions {
  readonly api: Api;
  readonly model: string;
  readonly ignoreEos: boolean;
  readonly temperature: number | undefined;
  /** Further keys; one with null takes the key away. */
  readonly extraBody: Readonly<Record<string, unknown>>;
}

/** A message of a chat. */
export interface Message {
  readonly role: 'user' | 'assistant';
  readonly content: string;
}

/**
 * Returns the body of a request as JSON. `before` are the messages of a chat before this one. With `isStream` false the answer comes whole, for
 * questions before the run.
 */
export function requestBody(
  { api, model, ignoreEos, temperature, extraBody }: BodyOptions,
  { prompt, outputTokens, before = [] }: { prompt: Prompt; outputTokens: number; before?: readonly Message[] },
  isStream = true,
): string {
  const own =
    api === 'chat'
      ? { messages: [...before, { role: 'user', content: prompt }], max_completion_tokens: outputTokens }
      : { prompt, max_tokens: outputTokens };
  const body: Record<string, unknown> = {
    model,
    ...own,
    ...(isStream ? { stream: true, stream_options: { include_usage: true } } : {}),
    ...(ignoreEos ? { ignore_eos: true } : {}),
    ...(temperature === undefined ? {} : { temperature }),
    ...extraBody,
  };
  return JSON.stringify(Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null)));
}
