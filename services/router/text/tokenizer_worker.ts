/** A tokenizer thread: templates, tokens, text. A long prompt blocks this thread, never the router's control thread. */
import { createContext, Script } from 'node:vm';
import { z } from 'zod';
import { Failure, messageOf } from '../../../shared/base/failure.ts';
import { ThreadLink, type LinkEnd } from '../../../shared/base/thread_link.ts';
import type { TextFiles } from '../../../shared/model/text_files.ts';
import type { TemplateInput } from '../openai/parameters.ts';
import { forTemplate, leftOpen, namesRole, type Messages } from './chat_messages.ts';
import { GeneratedTokenCache, answerOf, type Answer, type GeneratedTokens } from './encoder/generated_token_cache.ts';
import { joined, refuseTooLong, withinStack } from './encoder/encode_limits.ts';
import { FastEncoder } from './encoder/fast_encoder.ts';
import { endOfTurn } from './end_of_turn.ts';
import { openLibrary } from './encoder/library.ts';
import type { LibraryTokenizer } from './encoder/library_tokenizer.ts';
import { PartedText, serveEncoding } from './encoder/parallel_encoding.ts';
import { readPromptBody, type PromptBodyJob } from './prompt_body.ts';
import { ChatTemplate } from './template/chat_template.ts';
import { REPLACEMENT, tokenSpeller, type TokenBytes } from './token_bytes.ts';

/** A template takes a millisecond or two; this one loops. */
const RENDER_MS = 2_000;

/** Special tokens that templates are told, as transformers calls them. */
const SPECIAL_TOKENS = ['bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask'].map((name) => `${name}_token`);

const templatesSchema = z.union([z.string(), z.array(z.object({ name: z.string(), template: z.string() }))]);

/** The tokenizer and chat template of one model, as called on a tokenizer thread. */
export class TokenizerTools {
  readonly #config: Record<string, unknown>;
  readonly #tokenizer: LibraryTokenizer;
  /** Made when it is first needed: threads that only decode have none. `undefined` inside: the library encodes. */
  #encoder: { readonly fast: FastEncoder | undefined } | undefined;
  readonly #template: ChatTemplate | undefined;
  readonly #templateError: string | undefined;
  readonly #knowsDeveloper: boolean = false;
  readonly #answers = new GeneratedTokenCache();
  readonly #spell: (token: string) => Uint8Array;
  /** Added tokens have no decoder: they are their own text. */
  readonly #added: ReadonlyMap<number, string>;
  #letter: number | undefined;
  /** Context in which templates are rendered, so that node:vm can stop a template after `renderMs`, whatever it calls. */
  readonly #sandbox = createContext({ render: (): string => '' });
  readonly #rendering = new Script('render()');
  readonly #renderMs: number;

  /** A template that renders for longer than `renderMs` is stopped; Infinity trusts it, and needs no thread that watches it. */
  constructor({ tokenizer, config, template }: TextFiles, renderMs = RENDER_MS) {
    this.#renderMs = renderMs;
    this.#config = JSON.parse(config) as Record<string, unknown>;
    this.#tokenizer = openLibrary(JSON.parse(tokenizer), this.#config);
    this.#spell = tokenSpeller(this.#tokenizer.tokenizer.decoder);
    this.#added = new Map(this.#tokenizer.tokenizer.added_tokens.map(({ id, content }) => [id, content]));
    const source = template ?? templateOf(this.#config['chat_template']);
    if (source === undefined) return;
    this.#knowsDeveloper = namesRole(source, 'developer');
    try {
      this.#template = new ChatTemplate(source, () => new Date());
    } catch (error) {
      // Completions need none.
      this.#templateError = messageOf(error);
    }
  }

  get #fast(): FastEncoder | undefined {
    this.#encoder ??= { fast: FastEncoder.create(this.#tokenizer) };
    return this.#encoder.fast;
  }

  /** Encodes parts of long texts for the thread at the other end. */
  lendHand(end: LinkEnd): void {
    serveEncoding(new ThreadLink(end), () => this.#fast);
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

  /**
   * Returns the token that stands for a text without ids (BOS, else EOS): the model needs a token to continue from. Empty when there
   * is neither.
   */
  #startToken(): number[] {
    const token = this.#specialToken('bos_token') ?? this.#specialToken('eos_token');
    const id = token === undefined ? undefined : this.#tokenizer.token_to_id(token);
    return id === undefined ? [] : [id];
  }

  /** @throws Failure `context_too_long` for text that cannot fit whatever its tokens are, `invalid_request` for a pretoken without an end. */
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
  #render(template: TemplateInput): { readonly text: string; readonly addSpecialTokens: boolean } {
    const { addGenerationPrompt, continueFinalMessage, addSpecialTokens, kwargs, ...input } = template;
    const messages = forTemplate(input.messages, this.#knowsDeveloper);
    const renderWith = (list: Messages): string => this.#rendered(list, addGenerationPrompt, kwargs);
    let text: string;
    try {
      text = renderWith(messages);
    } catch (first) {
      if (isTooLong(first)) throw refused(first);
      // A template that joins contents cannot join none, which an assistant message that only calls has.
      const filled = messages.map((message) => ('content' in message ? message : { ...message, content: '' }));
      try {
        text = renderWith(filled);
      } catch {
        throw refused(first);
      }
    }
    return { text: continueFinalMessage ? leftOpen(text, messages) : text, addSpecialTokens };
  }

  /** @throws Failure where there is no template, Error with what the template raises. */
  #rendered(messages: Messages, addGenerationPrompt: boolean, kwargs: TemplateInput['kwargs'] = {}): string {
    const template = this.#template;
    if (!template) {
      const why = this.#templateError;
      throw new Failure(
        'invalid_request',
        why === undefined
          ? 'this model has no chat template: use /v1/completions'
          : `the chat template of this model cannot be read (${why}): use /v1/completions`,
      );
    }
    return this.#inTime(() =>
      template.render({
        ...Object.fromEntries(SPECIAL_TOKENS.map((name) => [name, this.#specialToken(name)])),
        // Nobody gave any: templates ask whether they are none.
        ...{ tools: null, documents: null },
        ...kwargs,
        messages,
        add_generation_prompt: addGenerationPrompt,
      }),
    );
  }

  /** Why the chat template cannot be used; undefined: it can, or there is none. */
  templateError(): string | undefined {
    return this.#templateError;
  }

  /** Tokens that end an answer by what the tokenizer says: its end token, and the one that ends an assistant's turn in a chat. */
  endTokens(): number[] {
    const token = this.#specialToken('eos_token');
    const end = token === undefined ? undefined : this.#tokenizer.token_to_id(token);
    return [...new Set([end, this.#endOfTurn()].filter((id) => id !== undefined))];
  }

  /** The special token that the template puts behind an assistant's message. */
  #endOfTurn(): number | undefined {
    if (!this.#template) return undefined;
    const start = this.#specialToken('bos_token');
    const special = this.#tokenizer.tokenizer.added_tokens.filter(
      ({ id, special: isSpecial, content }) =>
        (isSpecial === true || this.#isSpecial(id)) && content !== '' && content !== start,
    );
    return endOfTurn(special, (messages) => this.#rendered(messages, false))?.id;
  }

  /** Whether tokenizer_config.json marks the token as special, which tokenizer.json may fail to do. */
  #isSpecial(id: number): boolean {
    const added = this.#config['added_tokens_decoder'] as Partial<Record<string, { special?: unknown }>> | undefined;
    return added?.[String(id)]?.special === true;
  }

  /** A template may loop, and this thread has others to serve. @throws Error when it takes too long. */
  #inTime(render: () => string): string {
    if (this.#renderMs === Infinity) return render();
    this.#sandbox['render'] = render;
    return this.#rendering.runInContext(this.#sandbox, { timeout: this.#renderMs }) as string;
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

  /** Stores an answer that another thread or another router found. */
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

  /** A body with prompts, and their ids. */
  readPrompts(job: PromptBodyJob): ReturnType<typeof readPromptBody> {
    return readPromptBody(this, job);
  }

  encodeChat({ template, maxCharacters }: { template: TemplateInput; maxCharacters: number }): Uint32Array {
    const { text, addSpecialTokens } = this.#render(template);
    return this.#encode(text, addSpecialTokens, maxCharacters);
  }

  /** The lists as JSON: a long one is text for its client and nothing else. */
  tokenize({
    text,
    template,
    hasSpecialTokens,
    hasStrings,
    maxCharacters,
  }: {
    text: string | undefined;
    template: TemplateInput | undefined;
    hasSpecialTokens: boolean;
    hasStrings: boolean;
    maxCharacters: number;
  }): { count: number; tokens: string; strings: string } {
    const rendered = template ? this.#render(template) : { text: text ?? '', addSpecialTokens: hasSpecialTokens };
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
    const isPlain =
      textOf(letter, id) === first + text &&
      textOf(letter, id, letter) === first + text + next &&
      textOf(letter, id, id) === first + text + text;
    return isPlain ? text : undefined;
  }

  /** Single tokens, whatever stands beside them; one that the vocabulary does not have has no bytes. */
  tokenBytes(ids: readonly number[]): TokenBytes[] {
    return ids.map((id) => {
      const added = this.#added.get(id);
      if (added !== undefined) return { bytes: new TextEncoder().encode(added), name: added, isAdded: true };
      const name = this.#tokenizer.model.vocab[id];
      const bytes = name === undefined ? new Uint8Array(0) : this.#spell(name);
      return { bytes, name: name ?? `token_id:${id}`, isAdded: false };
    });
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

/** The template by itself, or in a list of named ones. */
function templateOf(ofConfig: unknown): string | undefined {
  const found = templatesSchema.safeParse(ofConfig).data;
  return typeof found === 'string' ? found : found?.find(({ name }) => name === 'default')?.template;
}

function isTooLong(error: unknown): boolean {
  // The error comes from the stopped context, so it is not an instance of this context's Error.
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

/** Entry point of a tokenizer thread. @throws Error when the tokenizer's files cannot be used */
export function start(texts: TextFiles): TokenizerTools {
  return new TokenizerTools(texts);
}
