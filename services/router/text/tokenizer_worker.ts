/** A tokenizer thread: templates, tokens, text. A long prompt blocks this thread, never the router's control thread. */
import { createContext, Script } from 'node:vm';
import { z } from 'zod';
import { Failure, messageOf } from '../../../shared/base/failure.ts';
import { ThreadLink, type LinkEnd } from '../../../shared/base/thread_link.ts';
import type { TextFiles } from '../../../shared/model/text_files.ts';
import { REPLACEMENT, tokenSpeller, type TokenBytes } from '../../../shared/model/token_bytes.ts';
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

/** Milliseconds after which rendering is stopped. A template takes a millisecond or two, unless it loops. */
const RENDER_MS = 2_000;

/** Names of the special tokens that templates can read, as in transformers. */
const SPECIAL_TOKENS = ['bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask'].map((name) => `${name}_token`);

const templatesSchema = z.union([z.string(), z.array(z.object({ name: z.string(), template: z.string() }))]);

/** The tokenizer and chat template of one model, as called on a tokenizer thread. */
export class TokenizerTools {
  readonly #config: Record<string, unknown>;
  readonly #tokenizer: LibraryTokenizer;
  /** Created at first use, because threads that only decode need none. `fast` is undefined when the library must encode. */
  #encoder: { readonly fast: FastEncoder | undefined } | undefined;
  readonly #template: ChatTemplate | undefined;
  readonly #templateError: string | undefined;
  readonly #knowsDeveloper: boolean = false;
  readonly #answers = new GeneratedTokenCache();
  readonly #spell: (token: string) => Uint8Array;
  /** Contents of the added tokens by id, which the decoder leaves unchanged. */
  readonly #added: ReadonlyMap<number, string>;
  #letter: number | undefined;
  /** Context in which templates are rendered, so that node:vm can stop a template after `renderMs`, whatever it calls. */
  readonly #sandbox = createContext({ render: (): string => '' });
  readonly #rendering = new Script('render()');
  readonly #renderMs: number;

  /**
   * Opens a tokenizer and its template. Rendering is stopped after `renderMs`; with Infinity the template is trusted, and no watchdog
   * thread is needed.
   */
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
      // Completions need no template: chats report the error.
      this.#templateError = messageOf(error);
    }
  }

  get #fast(): FastEncoder | undefined {
    this.#encoder ??= { fast: FastEncoder.create(this.#tokenizer) };
    return this.#encoder.fast;
  }

  /** Encodes parts of long texts for the thread at the other end. */
  helpEncoding(end: LinkEnd): void {
    serveEncoding(new ThreadLink(end), () => this.#fast);
  }

  /** Has parts of long texts encoded by the thread at the other end. */
  acceptHelp(end: LinkEnd): void {
    this.#fast?.partWith(new PartedText(new ThreadLink(end)));
  }

  /**
   * Returns the text of a special token of tokenizer_config.json, which may be a string or an object with `content`; undefined when it
   * is absent.
   */
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

  /**
   * Returns the ids of a text. @throws Failure `context_too_long` for a text that cannot fit the context whatever its tokens are,
   * `invalid_request` for a word that is too long to encode.
   */
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
      // A template that joins contents fails when an assistant message has only tool calls: try once more with empty contents.
      const filled = messages.map((message) => ('content' in message ? message : { ...message, content: '' }));
      try {
        text = renderWith(filled);
      } catch {
        throw refused(first);
      }
    }
    return { text: continueFinalMessage ? leftOpen(text, messages) : text, addSpecialTokens };
  }

  /** Renders messages within the time limit. @throws Failure when there is no template, Error with what the template raises. */
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
        // Defaults for absent values: templates test whether `tools` and `documents` are none.
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

  /**
   * Returns the ids of the tokens that end an answer: the tokenizer's EOS token, and the token that ends an assistant's turn in the
   * chat template.
   */
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

  /**
   * Runs `render` for at most `renderMs`, because a template may loop and this thread serves other requests too. @throws Error when
   * the time is over.
   */
  #inTime(render: () => string): string {
    if (this.#renderMs === Infinity) return render();
    this.#sandbox['render'] = render;
    return this.#rendering.runInContext(this.#sandbox, { timeout: this.#renderMs }) as string;
  }

  /** Returns the ids of the added tokens that split a text before it is encoded; empty when generated answers cannot be cached. */
  addedIds(): number[] {
    return this.#fast?.addedIds ?? [];
  }

  /**
   * Caches a generated answer whose text the tokenizer would encode differently.
   * @returns the answer, for other threads and routers; undefined when it is not cached
   */
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

  /** Returns the length of the vocabulary's longest token, in UTF-16 code units. */
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

  /** Parses a request body and encodes its prompts. */
  readPrompts(job: PromptBodyJob): ReturnType<typeof readPromptBody> {
    return readPromptBody(this, job);
  }

  encodeChat({ template, maxCharacters }: { template: TemplateInput; maxCharacters: number }): Uint32Array {
    const { text, addSpecialTokens } = this.#render(template);
    return this.#encode(text, addSpecialTokens, maxCharacters);
  }

  /**
   * Returns the ids of a text or chat and, with `hasStrings`, its tokens. Both lists are JSON texts, because a long list is only
   * passed on to the client.
   */
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
   * Returns the token's text when it is the same after any other such token and leaves the text after it unchanged. Undefined when it
   * depends on its neighbours: half a character, a special token, punctuation that removes the space before it. Found by decoding the
   * token between letters, so that no type of decoder must be known.
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

  /** Returns the bytes and names of single tokens, independent of neighbours. A token that is not in the vocabulary has no bytes. */
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

/** Returns the chat template of tokenizer_config.json: a string, or the one named `default` in a list. */
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
