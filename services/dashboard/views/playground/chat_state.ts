/** The chat of the playground. It lives as long as the page, also while other views are shown, and nowhere else. */
import { computed, signal, type Signal } from '@preact/signals';
import type { LookupBody } from '../../../../shared/protocol/router_api.ts';
import { askJson, askStream } from '../../browser.ts';
import { messageOf } from '../../messages.ts';
import { answerText, EventReader } from '../../model/answer_stream.ts';
import { lookupOfChat, postedJson, type ChatMessage } from '../../model/lookup_request.ts';
import { hasEnded } from '../../model/request_filter.ts';
import type { RequestDetail } from '../../../../shared/protocol/request_detail.ts';
import { host } from '../../page.ts';

/** Turns that are kept; older ones leave the page, and with it the prompt. */
const MAX_TURNS = 50;
/** Looks at a request that has just ended, and the milliseconds between them. */
const LOOKS = { count: 10, pauseMs: 200 };

/** Settings of the requests. */
export interface ChatSettings {
  readonly model: string;
  readonly system: string;
  readonly temperature: number;
  readonly maxTokens: number;
  readonly salt: string;
}

/** One question and its answer. */
export interface Turn {
  readonly number: number;
  readonly question: string;
  readonly answer: Signal<Answer>;
}

/** Answer as far as it has come. */
export interface Answer {
  readonly isRunning: boolean;
  readonly content: string;
  readonly reasoning: string;
  readonly finish: string | null;
  readonly error: string | undefined;
  /** Id of the request; undefined before its first answer. */
  readonly id: string | undefined;
  /** Where the prompt lay just before the request, with the texts of its tokens; undefined where the router did not say. */
  readonly lookup: LookupBody | undefined;
  /** The request as the router knows it, once it has ended. */
  readonly request: RequestDetail | undefined;
}

const BEGIN: Answer = {
  isRunning: true,
  content: '',
  reasoning: '',
  finish: null,
  error: undefined,
  id: undefined,
  lookup: undefined,
  request: undefined,
};

/** A chat with a model. */
class Chat {
  readonly settings = signal<ChatSettings>({ model: '', system: '', temperature: 0.7, maxTokens: 128, salt: '' });
  readonly turns = signal<readonly Turn[]>([]);
  readonly isRunning = computed(() => this.turns.value.at(-1)?.answer.value.isRunning ?? false);
  #aborter = new AbortController();
  #numTurns = 0;

  /** Sends a question with all turns before it. Resolves when the answer has ended; failures are part of the answer. */
  async send(question: string): Promise<void> {
    const messages = this.#messages(question);
    const answer = signal<Answer>(BEGIN);
    this.turns.value = [...this.turns.peek(), { number: this.#numTurns++, question, answer }].slice(-MAX_TURNS);
    const { signal: aborted } = (this.#aborter = new AbortController());
    try {
      await this.#run(messages, answer, aborted);
    } catch (error) {
      const text = aborted.aborted ? undefined : messageOf(error);
      answer.value = { ...answer.peek(), error: text, finish: aborted.aborted ? 'stopped' : answer.peek().finish };
    }
    answer.value = { ...answer.peek(), isRunning: false };
    await readRequest(answer);
  }

  /** Ends the answer that comes now. */
  stop(): void {
    this.#aborter.abort();
  }

  /** Begins anew. */
  clear(): void {
    this.stop();
    this.turns.value = [];
  }

  #messages(question: string): ChatMessage[] {
    const { system } = this.settings.peek();
    const before = this.turns.peek().flatMap(({ question: asked, answer }): ChatMessage[] => {
      const { content } = answer.peek();
      return content === '' ? [] : [said('user', asked), said('assistant', content)];
    });
    return [...(system === '' ? [] : [said('system', system)]), ...before, said('user', question)];
  }

  async #run(messages: ChatMessage[], answer: Signal<Answer>, aborted: AbortSignal): Promise<void> {
    const { model, temperature, maxTokens, salt } = this.settings.peek();
    // The look-up comes before the request, after which all of the prompt is held.
    const lookup = await askJson<LookupBody>('api/lookup', {
      ...lookupOfChat(messages, model, salt),
      signal: aborted,
    }).catch(() => undefined);
    aborted.throwIfAborted();
    answer.value = { ...answer.peek(), lookup };
    const body = {
      model,
      messages,
      stream: true,
      temperature,
      max_tokens: maxTokens,
      ...(salt === '' ? {} : { cache_salt: salt }),
    };
    const events = new EventReader();
    await askStream(
      'v1/chat/completions',
      { ...postedJson(body), signal: aborted },
      {
        onHeaders: (headers) => {
          answer.value = { ...answer.peek(), id: idIn(headers) };
        },
        onText: (text) => {
          for (const data of events.read(text)) {
            const { content, reasoning, finish } = answerText(data);
            const now = answer.peek();
            answer.value = {
              ...now,
              content: now.content + content,
              reasoning: now.reasoning + reasoning,
              finish: finish ?? now.finish,
            };
          }
        },
      },
    );
  }
}

function said(role: ChatMessage['role'], content: string): ChatMessage {
  return { role, content };
}

function idIn(headers: Headers): string | undefined {
  try {
    const { id } = JSON.parse(headers.get('x-penstock-request') ?? '{}') as { id?: unknown };
    return typeof id === 'string' ? id : undefined;
  } catch {
    return undefined;
  }
}

/** Reads what the router knows of the request, which ends a moment after its last token. */
async function readRequest(answer: Signal<Answer>): Promise<void> {
  const { id } = answer.peek();
  if (id === undefined) return;
  for (let look = 0; look < LOOKS.count; look++) {
    const request = await askJson<RequestDetail>(`api/requests/${encodeURIComponent(id)}`).catch(() => undefined);
    if (request) answer.value = { ...answer.peek(), request };
    if (request && hasEnded(request)) return;
    await new Promise<void>((resolve) => host.later(LOOKS.pauseMs, resolve));
  }
}

/** The chat of this page. */
export const chat = new Chat();
