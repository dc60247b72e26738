/** Server-sent events of `/v1/chat/completions`: text of the answer as it arrives. */

/** Part of an answer. */
export interface AnswerText {
  readonly content: string;
  readonly reasoning: string;
  /** Why the answer ended; null before its end. */
  readonly finish: string | null;
}

/** Longest event that is read, in characters. */
const MAX_EVENT = 1 << 20;

/** Reads events from the text of a stream, which may be cut anywhere. */
export class EventReader {
  #rest = '';

  /**
   * Returns the data of the events that `text` completes, without the closing `[DONE]`.
   *
   * @throws Error when an event is longer than a megabyte.
   */
  read(text: string): string[] {
    const events = (this.#rest + text).split(/\r?\n\r?\n/);
    this.#rest = events.pop() ?? '';
    if (this.#rest.length > MAX_EVENT) throw new Error('the router sent an event longer than a megabyte');
    return events.map(dataOf).filter((data) => data !== '' && data !== '[DONE]');
  }
}

function dataOf(event: string): string {
  return event
    .split(/\r?\n/)
    .filter((line) => line.startsWith('data:'))
    .map((line) => line.slice(5).replace(/^ /, ''))
    .join('\n');
}

/**
 * Returns the text that an event adds to the answer.
 *
 * @throws Error with the router's message for an event that reports a failure.
 */
export function answerText(data: string): AnswerText {
  const event = JSON.parse(data) as {
    error?: { message?: string };
    choices?: { delta?: Record<string, unknown>; finish_reason?: string | null }[];
  };
  if (event.error) throw new Error(event.error.message ?? 'the router reports an error without a message');
  const choice = event.choices?.[0];
  const textOf = (key: string): string => {
    const value = choice?.delta?.[key];
    return typeof value === 'string' ? value : '';
  };
  return { content: textOf('content'), reasoning: textOf('reasoning_content'), finish: choice?.finish_reason ?? null };
}
