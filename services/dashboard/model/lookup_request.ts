/** Request of `/api/lookup`. */

/** Fields of the form that looks a prompt up. */
export interface LookupForm {
  readonly kind: 'chat' | 'prompt';
  readonly text: string;
  /** Served model; empty for the router's only one. */
  readonly model: string;
  readonly salt: string;
}

/** Message of a chat. */
export interface ChatMessage {
  readonly role: 'system' | 'user' | 'assistant';
  readonly content: string;
}

/** POST of JSON, as `fetch` takes it. */
export interface PostedJson {
  readonly method: 'POST';
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** Returns `value` as the body of a POST. */
export function postedJson(value: unknown): PostedJson {
  return { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(value) };
}

/** Returns the request that looks up the prompt of a form. */
export function lookupRequest({ kind, text, model, salt }: LookupForm): PostedJson {
  const prompt = kind === 'chat' ? { messages: [{ role: 'user', content: text }] } : { prompt: text };
  return postedJson({ ...prompt, ...named(model, salt) });
}

/** Returns the request that looks up the prompt of a chat. */
export function lookupOfChat(messages: readonly ChatMessage[], model: string, salt: string): PostedJson {
  return postedJson({ messages, ...named(model, salt) });
}

function named(model: string, salt: string): Record<string, string> {
  return { ...(model === '' ? {} : { model }), ...(salt === '' ? {} : { cache_salt: salt }) };
}
