/** A tokenizer thread: templates, tokens, text. A long prompt blocks this thread, never the caller's. */
import { once } from 'node:events';
import { ThreadLink, type LinkEnd } from '../base/thread_link.ts';
import { isSpecialToken } from '../grammar/matcher/token_table.ts';
import type { TextFiles } from '../model/text_files.ts';
import type { AddedTokenJson } from '../model/tokenizer_json.ts';
import type { TokenBytes } from '../model/token_bytes.ts';
import type { TemplateInput } from './template_input.ts';
import { OutputFormat, type FormatChoice, type ParserNames } from './output/output_format.ts';
import { ChatRenderer } from './chat_renderer.ts';
import {
  ANY_REASONING,
  GeneratedTokenCache,
  answerOf,
  type Answer,
  type GeneratedTokens,
} from './encoder/generated_token_cache.ts';
import { joined, refuseTooLong, textNearCut, withinStack } from './encoder/encode_limits.ts';
import { FastEncoder } from './encoder/fast_encoder.ts';
import { endOfTurn } from './end_of_turn.ts';
import { openLibrary } from './encoder/library.ts';
import type { LibraryTokenizer } from './encoder/library_tokenizer.ts';
import { PartedText, serveEncoding } from './encoder/parallel_encoding.ts';
import type { ChatInput, ChatPrompt, TextPrompt } from './prompts.ts';
import { SingleTokens } from './single_tokens.ts';
import type { TextSlice } from './token_texts.ts';
import { tokenizerInfo } from './tokenizer_info.ts';
import { turnReader, type TurnReader } from './turn_reader.ts';

/** Parsers are chosen by the model's files unless options name them. */
const AUTO: ParserNames = { tools: 'auto', reasoning: 'auto' };

/** Input of a tokenizer thread: a model's text files, and the parsers that options name. */
export interface TokenizerInput extends TextFiles {
  readonly parsers?: ParserNames;
  /** Whether turns keep the reasoning that the template drops. */
  readonly keepsReasoning?: boolean;
}

/** Formats of a model's output, and the special tokens that its text leaves out. */
export interface OutputFacts {
  readonly choice: FormatChoice;
  /** Why the response template of tokenizer_config.json is not used. */
  readonly error: string | undefined;
  readonly specialTokens: readonly { readonly id: number; readonly content: string }[];
  /** Special tokens that a grammar may name. */
  readonly grammarTokens: readonly { readonly id: number; readonly content: string }[];
}

/** Turns that models generated, and what they are found by. */
interface GeneratedTurns {
  /** Ids of the tokens that frame messages. */
  readonly delimiters: number[];
  readonly read: TurnReader;
  readonly cache: GeneratedTokenCache;
}

/** The tokenizer and chat template of one model, as called on a tokenizer thread. */
export class TokenizerTools {
  readonly #config: Record<string, unknown>;
  readonly #tokenizer: LibraryTokenizer;
  /** Created at first use, because threads that only decode need none. `fast` is undefined when the library must encode. */
  #encoder: { readonly fast: FastEncoder | undefined } | undefined;
  readonly #chats: ChatRenderer;
  /** Created at first use, as the encoder is. */
  #turns: GeneratedTurns | undefined;
  readonly #keepsReasoning: boolean;
  readonly #single: SingleTokens;
  #taking: Promise<void> | undefined;

  /** Opens a tokenizer and its template. @throws Error when the files cannot be used */
  constructor({ tokenizer, config, template, parsers = AUTO, keepsReasoning = false }: TokenizerInput) {
    this.#config = JSON.parse(config) as Record<string, unknown>;
    this.#tokenizer = openLibrary(JSON.parse(tokenizer), this.#config);
    const { additional_special_tokens: special } = this.#config as { additional_special_tokens?: unknown[] | null };
    this.#single = new SingleTokens(this.#tokenizer, (special ?? []).map(String));
    this.#chats = new ChatRenderer(this.#config, template, parsers, this.#single.added);
    this.#keepsReasoning = keepsReasoning;
  }

  get #generated(): GeneratedTurns {
    if (this.#turns) return this.#turns;
    const output = new OutputFormat(this.#chats.format);
    const [delimiters, read] = [this.#delimitersOf(output), turnReader(output)];
    const cache = new GeneratedTokenCache(new Set(delimiters), read, this.#keepsReasoning);
    return (this.#turns = { delimiters, read, cache });
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
   * Returns the token that stands for a text without ids (BOS, else EOS): the model needs a token to continue from. Empty when there
   * is neither.
   */
  #startToken(): number[] {
    const token = this.#chats.specialToken('bos_token') ?? this.#chats.specialToken('eos_token');
    const id = token === undefined ? undefined : this.#tokenizer.token_to_id(token);
    return id === undefined ? [] : [id];
  }

  /**
   * Returns the ids of a text. @throws Failure `context_too_long` for a text that cannot fit the context whatever its tokens are,
   * `invalid_request` for a word that is too long to encode.
   */
  #encode(prompt: TextPrompt, chat?: { readonly marked: string | undefined }): Uint32Array {
    const { text, maxCharacters, cutSide } = prompt;
    if (!cutSide) refuseTooLong(text, maxCharacters);
    const near = cutSide ? textNearCut(text, maxCharacters, cutSide) : text;
    return withinStack(() => this.#idsOf({ ...prompt, text: near }, chat));
  }

  #idsOf(
    { text, addSpecialTokens, answerScope: scope }: TextPrompt,
    chat: { readonly marked: string | undefined } | undefined,
  ): Uint32Array {
    const fast = this.#fast;
    if (fast) {
      const ids = fast.encode(text, addSpecialTokens);
      if (scope === undefined || this.#generated.cache.isEmpty || !this.#generated.cache.mayContinue(ids, scope))
        return ids;
      const { before, after } = addSpecialTokens ? fast.ends : { before: [], after: [] };
      const marked = chat?.marked === undefined ? undefined : fast.sections(chat.marked);
      const prompt = { scope, sections: fast.sections(text), before, isChat: chat !== undefined, marked };
      return joined([...this.#generated.cache.encode(prompt, fast), Uint32Array.from(after)]);
    }
    return Uint32Array.from(this.#tokenizer.encode(text, { add_special_tokens: addSpecialTokens }).ids);
  }

  /** Why the chat template cannot be used; undefined: it can, or there is none. */
  templateError(): string | undefined {
    return this.#chats.error;
  }

  /**
   * Returns the ids of the tokens that end an answer: the tokenizer's EOS token, and the token that ends an assistant's turn in the
   * chat template.
   */
  endTokens(): number[] {
    const token = this.#chats.specialToken('eos_token');
    const end = token === undefined ? undefined : this.#tokenizer.token_to_id(token);
    return [...new Set([end, this.#endOfTurn()].filter((id) => id !== undefined))];
  }

  /** The special token that the template puts after an assistant's message. */
  #endOfTurn(): number | undefined {
    if (!this.#chats.hasTemplate) return undefined;
    const start = this.#chats.specialToken('bos_token');
    const isSpecial = isSpecialToken(this.#config);
    const special = this.#tokenizer.tokenizer.added_tokens.filter(
      (token) => isSpecial(token) && token.content !== '' && token.content !== start,
    );
    return endOfTurn(special, (messages) => this.#chats.renderMessages(messages, false))?.id;
  }

  /** Returns the formats of the model's output. */
  outputFacts(): OutputFacts {
    const textOf = (id: number, skips: boolean): string => this.#tokenizer.decode([id], { skip_special_tokens: skips });
    const isSpecial = ({ id }: { readonly id: number }): boolean => textOf(id, true) === '' && textOf(id, false) !== '';
    const added = this.#tokenizer.tokenizer.added_tokens;
    const named = ({ id, content }: AddedTokenJson): { id: number; content: string } => ({ id, content });
    return {
      choice: this.#chats.format,
      error: this.#chats.formatError,
      specialTokens: added.filter(isSpecial).map(named),
      grammarTokens: added.filter(isSpecialToken(this.#config)).map(named),
    };
  }

  /**
   * Returns the ids of the tokens that frame the messages of a chat: special tokens, and others that the template names, but the markers of
   * the output's format, which stand within an answer. Empty when generated answers cannot be cached.
   */
  delimiters(): number[] {
    return this.#generated.delimiters;
  }

  #delimitersOf(output: OutputFormat): number[] {
    const { format, source = '' } = this.#chats;
    const isSpecial = isSpecialToken(this.#config);
    const ids = new Set(this.#fast?.addedIds);
    const frames = this.#tokenizer.tokenizer.added_tokens.filter((token) => {
      const { content } = token;
      const isFrame = isSpecial(token) || (content.trim() !== '' && source.includes(content));
      // Every message of harmony's is framed by its markers.
      return ids.has(token.id) && isFrame && (format.tools === 'harmony' || !output.isMarker(content));
    });
    return frames.map(({ id }) => id);
  }

  /**
   * Caches a generated answer whose text the tokenizer would encode differently.
   * @returns the answer, for other threads and routers; undefined when it is not cached
   */
  remember(generated: GeneratedTokens): Answer | undefined {
    const fast = this.#fast;
    if (!fast) return undefined;
    const answer = answerOf(
      generated,
      fast,
      (ids) => this.#tokenizer.decode(ids, { skip_special_tokens: false }),
      this.#generated.read,
      this.#keepsReasoning,
    );
    if (answer) this.#generated.cache.learn(answer);
    return answer;
  }

  /** Stores an answer that another thread or another router found. */
  learn(answer: Answer): void {
    this.#generated.cache.learn(answer);
  }

  /** Sends the answers that are cached to the thread at the other end, the oldest first. */
  giveAnswers(end: LinkEnd): void {
    end.postMessage(this.#generated.cache.answers());
  }

  /** Learns the answers that come from the thread at the other end. */
  takeAnswers(end: LinkEnd): void {
    this.#taking = once(end, 'message').then(([answers]) => {
      for (const answer of answers as Answer[]) this.learn(answer);
      end.close();
    });
  }

  /** Resolves when the answers have come that `takeAnswers` waits for. */
  async answersTaken(): Promise<void> {
    await this.#taking;
  }

  /** Returns the length of the vocabulary's longest token, in UTF-16 code units. */
  longestToken(): number {
    let longest = 1;
    for (const token of this.#tokenizer.get_vocab().keys()) longest = Math.max(longest, token.length);
    return longest;
  }

  encode(prompt: TextPrompt): Uint32Array {
    const ids = this.#encode(prompt);
    return ids.length === 0 ? Uint32Array.from(this.#startToken()) : ids;
  }

  /** Returns the ids of a chat's prompt, and the end of its text that belongs to the answer. */
  chatPrompt({ template, ...limits }: ChatInput): ChatPrompt {
    const { text, addSpecialTokens, prefix } = this.#chats.render(template);
    const marked =
      limits.answerScope !== undefined && this.#generated.cache.needsMarks
        ? this.#chats.renderMarked(template, ANY_REASONING)
        : undefined;
    return { ids: this.#encode({ text, addSpecialTokens, ...limits }, { marked }), prefix };
  }

  /** Returns the text of a chat's prompt. */
  render({ template, maxCharacters }: { template: TemplateInput; maxCharacters: number }): string {
    const { text } = this.#chats.render(template);
    refuseTooLong(text, maxCharacters);
    return text;
  }

  /** Returns what is known of the tokenizer, in the keys of tokenizer_config.json. */
  info(): Record<string, unknown> {
    return tokenizerInfo(this.#config, this.#tokenizer.tokenizer.added_tokens, this.#chats.source);
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
    const rendered = template ? this.#chats.render(template) : { text: text ?? '', addSpecialTokens: hasSpecialTokens };
    refuseTooLong(rendered.text, maxCharacters);
    const options = { add_special_tokens: rendered.addSpecialTokens };
    const { ids, tokens } = withinStack(() => this.#tokenizer.encode(rendered.text, options));
    return { count: ids.length, tokens: JSON.stringify(ids), strings: JSON.stringify(hasStrings ? tokens : null) };
  }

  detokenize(ids: Uint32Array): string {
    return ids.length === 0 ? '' : this.#tokenizer.decode([...ids], { skip_special_tokens: false });
  }

  /** Returns a text by {@link SingleTokens.plainText}. */
  plainText(id: number): string | undefined {
    return this.#single.plainText(id);
  }

  /** Returns texts by {@link SingleTokens.textsOf}. */
  textsOf(from: number): TextSlice {
    return this.#single.textsOf(from);
  }

  /** Returns bytes and names by {@link SingleTokens.bytesOf}. */
  tokenBytes(ids: readonly number[]): TokenBytes[] {
    return this.#single.bytesOf(ids);
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
