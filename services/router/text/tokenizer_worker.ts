/** A tokenizer thread: templates, tokens, text. A long prompt blocks this thread, never the router's control thread. */
import { createContext, Script } from 'node:vm';
import { Template } from '@huggingface/jinja';
import { z } from 'zod';
import { Failure, messageOf } from '../../../shared/base/failure.ts';
import { ThreadLink, type LinkEnd } from '../../../shared/base/thread_link.ts';
import type { TextFiles } from '../../../shared/model/text_files.ts';
import type { TemplateInput } from '../openai/parameters.ts';
import { AnswerMemory, answerOf, type Answer, type GeneratedTokens } from './encoder/answer_memory.ts';
import { FastEncoder } from './encoder/fast_encoder.ts';
import { openLibrary, type LibraryTokenizer } from './encoder/library.ts';
import { PartedText, serveParts } from './encoder/parts.ts';
import { REPLACEMENT } from './text_stream.ts';
import { keepWholeLoops } from './whole_loops.ts';

keepWholeLoops();

/** A template takes a millisecond or two; this one loops. */
const RENDER_MS = 2_000;

const templatesSchema = z.union([z.string(), z.array(z.object({ name: z.string(), template: z.string() }))]);

export class TokenizerTools {
  readonly #config: Record<string, unknown>;
  readonly #tokenizer: LibraryTokenizer;
  /** Made when it is first needed: threads that only decode have none. `undefined` inside: the library encodes. */
  #encoder: { readonly fast: FastEncoder | undefined } | undefined;
  readonly #template: Template | undefined;
  readonly #answers = new AnswerMemory();
  #letter: number | undefined;
  /** What runs in it is stopped in time, whatever it calls. */
  readonly #sandbox = createContext({ render: (): string => '' });
  readonly #rendering = new Script('render()');

  constructor({ tokenizer, config, template }: TextFiles) {
    this.#config = JSON.parse(config) as Record<string, unknown>;
    this.#tokenizer = openLibrary(JSON.parse(tokenizer), this.#config);
    const source = template ?? templateOf(this.#config['chat_template']);
    this.#template = source === undefined ? undefined : new Template(source);
  }

  get #fast(): FastEncoder | undefined {
    this.#encoder ??= { fast: FastEncoder.create(this.#tokenizer) };
    return this.#encoder.fast;
  }

  /** Encodes parts of long texts for the thread at the other end. */
  lendHand(end: LinkEnd): void {
    serveParts(new ThreadLink(end), () => this.#fast);
  }

  /** Has parts of long texts encoded by the thread at the other end. */
  takeHand(end: LinkEnd): void {
    this.#fast?.partWith(new PartedText(new ThreadLink(end)));
  }

  /** Special tokens are text, or an object that holds it. */
  #specialToken(name: string): string | undefined {
    const value = this.#config[name];
    if (typeof value === 'string') return value;
    return typeof value === 'object' && value !== null && 'content' in value ? String(value.content) : undefined;
  }

  /** What an empty text begins with where the tokenizer adds nothing: the model must be given a token to go on from. */
  #startToken(): number[] {
    const token = this.#specialToken('bos_token') ?? this.#specialToken('eos_token');
    const id = token === undefined ? undefined : this.#tokenizer.token_to_id(token);
    return id === undefined ? [] : [id];
  }

  /** @throws Failure `context_too_long` for text that cannot fit whatever its tokens are, `invalid_request` for a piece without an end. */
  #encode(text: string, addSpecialTokens: boolean, maxCharacters: number): Uint32Array {
    refuseTooLong(text, maxCharacters);
    return withinStack(() => this.#idsOf(text, addSpecialTokens));
  }

  #idsOf(text: string, addSpecialTokens: boolean): Uint32Array {
    const fast = this.#fast;
    const sections = fast && !this.#answers.isEmpty ? fast.sections(text) : [];
    if (fast && this.#answers.mayHave(sections)) {
      const { before, after } = addSpecialTokens ? fast.ends : { before: [], after: [] };
      return joined([...this.#answers.encode(sections, before, fast), Uint32Array.from(after)]);
    }
    if (fast) return fast.encode(text, addSpecialTokens);
    return Uint32Array.from(this.#tokenizer.encode(text, { add_special_tokens: addSpecialTokens }).ids);
  }

  /** Renders the chat template, which brings its own special tokens. @throws Failure with what the template raises. */
  #render(json: string): { readonly text: string; readonly addSpecialTokens: boolean } {
    const template = this.#template;
    if (!template) throw new Failure('invalid_request', 'this model has no chat template: use /v1/completions');
    const { messages, addGenerationPrompt, continueFinalMessage, addSpecialTokens, kwargs } = JSON.parse(
      json,
    ) as TemplateInput;
    const renderWith = (list: TemplateInput['messages']): string =>
      this.#inTime(() =>
        template.render({
          bos_token: this.#specialToken('bos_token'),
          eos_token: this.#specialToken('eos_token'),
          pad_token: this.#specialToken('pad_token'),
          unk_token: this.#specialToken('unk_token'),
          ...kwargs,
          messages: list,
          add_generation_prompt: addGenerationPrompt,
        }),
      );
    let text: string;
    try {
      text = renderWith(messages);
    } catch (first) {
      if (isTooLong(first)) throw refused(first);
      // A template that joins contents cannot join null, which an assistant message that only calls has.
      const filled = messages.map((message) => (message['content'] === null ? { ...message, content: '' } : message));
      try {
        text = renderWith(filled);
      } catch {
        throw refused(first);
      }
    }
    return { text: continueFinalMessage ? leftOpen(text, messages) : text, addSpecialTokens };
  }

  /** A template may loop, and this thread has others to serve. @throws Error when it takes too long. */
  #inTime(render: () => string): string {
    this.#sandbox['render'] = render;
    return this.#rendering.runInContext(this.#sandbox, { timeout: RENDER_MS }) as string;
  }

  /** Ids that split a text; empty: answers are not remembered. */
  addedIds(): number[] {
    return this.#fast?.addedIds ?? [];
  }

  /** Remembers an answer whose tokens the tokenizer would not have. @returns what others should learn */
  remember(generated: GeneratedTokens): Answer | undefined {
    const fast = this.#fast;
    if (!fast) return undefined;
    const answer = answerOf(generated, fast, (ids) => this.#tokenizer.decode(ids, { skip_special_tokens: false }));
    if (answer) this.#answers.learn(answer);
    return answer;
  }

  /** What another thread, or another router, has found. */
  learn(answer: Answer): void {
    this.#answers.learn(answer);
  }

  /** Characters of the longest token of the vocabulary. */
  longestToken(): number {
    let longest = 1;
    for (const token of this.#tokenizer.get_vocab().keys()) longest = Math.max(longest, token.length);
    return longest;
  }

  encode({
    text,
    addSpecialTokens,
    maxCharacters,
  }: {
    text: string;
    addSpecialTokens: boolean;
    maxCharacters: number;
  }): Uint32Array {
    const ids = this.#encode(text, addSpecialTokens, maxCharacters);
    return ids.length === 0 ? Uint32Array.from(this.#startToken()) : ids;
  }

  encodeChat({ template: json, maxCharacters }: { template: string; maxCharacters: number }): Uint32Array {
    const { text, addSpecialTokens } = this.#render(json);
    return this.#encode(text, addSpecialTokens, maxCharacters);
  }

  /** The lists as JSON: a long one is text for its client and nothing else. */
  tokenize({
    text,
    template: json,
    hasSpecialTokens,
    hasStrings,
    maxCharacters,
  }: {
    text: string | undefined;
    template: string | undefined;
    hasSpecialTokens: boolean;
    hasStrings: boolean;
    maxCharacters: number;
  }): { count: number; tokens: string; strings: string } {
    const rendered = json === undefined ? { text: text ?? '', addSpecialTokens: hasSpecialTokens } : this.#render(json);
    refuseTooLong(rendered.text, maxCharacters);
    const options = { add_special_tokens: rendered.addSpecialTokens };
    const { ids, tokens } = withinStack(() => this.#tokenizer.encode(rendered.text, options));
    return { count: ids.length, tokens: JSON.stringify(ids), strings: JSON.stringify(hasStrings ? tokens : null) };
  }

  detokenize(ids: Uint32Array): string {
    return ids.length === 0 ? '' : this.#tokenizer.decode([...ids], { skip_special_tokens: false });
  }

  /**
   * The token's text where it is the same after any other such token, and changes nothing behind it: measured between letters, so that
   * no decoder needs to be known. Undefined where it depends: half a character, a special token, punctuation that takes the space before it away.
   */
  plainText(id: number): string | undefined {
    const textOf = (...ids: number[]): string => this.#tokenizer.decode(ids, { skip_special_tokens: true });
    this.#letter ??= this.#tokenizer.encode('x', { add_special_tokens: false }).ids[0];
    const letter = this.#letter;
    if (letter === undefined) return undefined;
    const first = textOf(letter);
    const next = textOf(letter, letter).slice(first.length);
    const text = textOf(letter, id).slice(first.length);
    if (text === '' || text.includes(REPLACEMENT)) return undefined;
    if (this.#tokenizer.clean_up_tokenization_spaces && /[.?!,']/.test(text)) return undefined;
    const isPlain =
      textOf(letter, id) === first + text &&
      textOf(letter, id, letter) === first + text + next &&
      textOf(letter, id, id) === first + text + text;
    return isPlain ? text : undefined;
  }

  /** One text per list of ids; an empty list is the empty text. */
  decode({
    lists,
    skipSpecialTokens,
  }: {
    lists: readonly (readonly number[])[];
    skipSpecialTokens: boolean;
  }): string[] {
    return lists.map((ids) =>
      ids.length === 0 ? '' : this.#tokenizer.decode([...ids], { skip_special_tokens: skipSpecialTokens }),
    );
  }
}

function joined(parts: readonly Uint32Array[]): Uint32Array {
  const all = new Uint32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** The library keeps as much of a piece on the stack as it has tokens. @throws Failure `invalid_request` where that is too much */
function withinStack<T>(encode: () => T): T {
  try {
    return encode();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new Failure('invalid_request', 'the text has a word that is too long to be tokenized: put breaks into it');
  }
}

/** @throws Failure `context_too_long` for text that cannot fit whatever its tokens are. */
function refuseTooLong(text: string, maxCharacters: number): void {
  if (text.length <= maxCharacters) return;
  throw new Failure(
    'context_too_long',
    `the prompt has ${text.length} characters; no more than ${maxCharacters} can fit the context: shorten it`,
  );
}

/** The template by itself, or in a list of named ones. */
function templateOf(ofConfig: unknown): string | undefined {
  const found = templatesSchema.safeParse(ofConfig).data;
  return typeof found === 'string' ? found : found?.find(({ name }) => name === 'default')?.template;
}

function isTooLong(error: unknown): boolean {
  // It is of the context that was stopped, and so no Error of this one.
  return (
    typeof error === 'object' && error !== null && 'code' in error && error.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT'
  );
}

function refused(cause: unknown): Failure {
  if (isTooLong(cause)) {
    return new Failure('invalid_request', `messages: the chat template is not done with them after ${RENDER_MS} ms`);
  }
  return new Failure('invalid_request', `messages: the chat template refuses them: ${messageOf(cause)}`, { cause });
}

/** The text up to the end of the final message's content, as Hugging Face's apply_chat_template cuts it. */
function leftOpen(text: string, messages: TemplateInput['messages']): string {
  const content = messages.at(-1)?.['content'];
  const final = typeof content === 'string' ? content : '';
  const at = text.lastIndexOf(final.trim());
  if (final.trim() === '' || at < 0) {
    throw new Failure(
      'invalid_request',
      'continue_final_message: the final message does not appear in what the chat template makes of it',
    );
  }
  const whole = final.trimStart();
  return text.slice(0, at + (text.startsWith(whole, at) ? whole.length : final.trim().length));
}

export function start(texts: TextFiles): TokenizerTools {
  return new TokenizerTools(texts);
}
