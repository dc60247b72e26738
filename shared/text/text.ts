/** Encodes text to token ids and decodes ids to text, on threads of its own. A model folder without a tokenizer serves token ids only. */
import type { CallFor } from '../base/call_queue.ts';
import { Failure, messageOf } from '../base/failure.ts';
import type { Thread, ThreadModule, Threads } from '../base/threads.ts';
import type { Model } from '../model/model_folder.ts';
import type { TextFiles } from '../model/text_files.ts';
import { charactersOf, escapedBytes } from '../model/token_bytes.ts';
import type { TemplateInput } from './template_input.ts';
import type { ChatInput, ChatPrompt, TextPrompt } from './prompts.ts';
import { generatedTokens, type Answer } from './encoder/generated_token_cache.ts';
import type { OutputFacts, TokenizerInput, TokenizerTools } from './tokenizer_tools.ts';
import { SLICE_TOKENS, TokenTexts } from './token_texts.ts';
import { startWorkers, tokenizerModule, type Workers } from './tokenizer_threads.ts';

/**
 * A prompt with more UTF-16 code units goes to the thread for long prompts, where it delays no short one. Encoding takes a millisecond
 * per 8,000 characters.
 */
const LONG_CHARACTERS = 32_768;
/** Approximate number of characters per token. */
const CHARACTERS_A_TOKEN = 4;
/** Token names that one call of a thread asks for, at most: some milliseconds of work. */
const NAMES_AT_ONCE = 1_024;

/** Tokens whose texts are fetched in advance (P1): twice the largest vocabularies there are. */
const MAX_TABLE_TOKENS = 2 ** 19;

/** Name, bytes and text of a single token, independent of its neighbours. */
export interface TokenName {
  readonly bytes: readonly number[];
  /** The token's characters; undefined when the token's bytes are not whole characters. */
  readonly text: string | undefined;
  /** The token's bytes, each written as `\xNN`. */
  readonly escaped: string;
  /** The vocabulary's spelling, which no other token has. */
  readonly name: string;
  /** Whether this is an added token. The text it belongs to may lack such a token at its start or end. */
  readonly isAdded: boolean;
}

const NO_NAME: TokenName = { bytes: [], text: '', escaped: '', name: '', isAdded: false };

/** Encodes and decodes text for one model, on tokenizer threads. Without a tokenizer, encoding fails with Failure `invalid_request`. */
export class TextCodec {
  readonly #workers: Workers | undefined;
  /** Ids of the tokens that frame the messages of a chat. When empty, answers are not remembered. */
  readonly #delimiters: ReadonlySet<number>;
  /** Longer text cannot fit the context, and is not tokenised to find out. */
  readonly #maxCharacters: number;
  /** Names of tokens that were looked up, by id. Bounded by the vocabulary (P1). */
  readonly #names = new Map<number, TokenName>();
  readonly #texts = new TokenTexts((id) => this.#streams()?.call('plainText', id));

  private constructor(workers: Workers | undefined, maxCharacters: number, delimiters: readonly number[] = []) {
    this.#workers = workers;
    this.#delimiters = new Set(delimiters);
    this.#maxCharacters = maxCharacters;
  }

  /**
   * Starts the first tokenizer thread of a model. `maxTokens` is the length of the longest context, `input` says how answers are
   * parsed and remembered, `module` is what the threads run. @throws ModelError when the tokenizer's files cannot be used.
   */
  static async open(
    model: Pick<Model, 'path' | 'readTexts'>,
    maxTokens: number,
    threads: Threads,
    onDeath: (error: Error) => void,
    input: Omit<TokenizerInput, keyof TextFiles> = {},
    module: ThreadModule = tokenizerModule,
  ): Promise<TextCodec> {
    const texts = await model.readTexts();
    if (!texts) return new TextCodec(undefined, 0);
    const workers = await startWorkers(model.path, { ...texts, ...input }, module, threads, onDeath);
    const longest = await workers.prompts.call('longestToken', undefined);
    // This also builds the thread's encoder, so that no prompt has to wait for one.
    const delimiters = await workers.prompts.call('delimiters', undefined);
    const codec = new TextCodec(workers, maxTokens * longest, delimiters);
    // Until they are there, the tokenizer decodes. The death of its thread is reported by itself.
    void codec.#loadTexts(workers).catch(() => undefined);
    return codec;
  }

  /** Longest text in UTF-16 code units that can fit the context. */
  get maxCharacters(): number {
    return this.#maxCharacters;
  }

  get hasTokenizer(): boolean {
    return this.#workers !== undefined;
  }

  #own(): Workers {
    if (this.#workers) return this.#workers;
    throw new Failure(
      'invalid_request',
      'this model has no tokenizer: send the prompt as token ids to /v1/completions',
    );
  }

  #encoder(characters: number): Thread<TokenizerTools> | Promise<Thread<TokenizerTools>> {
    const { prompts, long } = this.#own();
    return characters > LONG_CHARACTERS ? long.get() : prompts;
  }

  /** Returns the thread of running streams, and starts it at first use. */
  #streams(): Thread<TokenizerTools> | undefined {
    if (!this.#workers) return undefined;
    const { streams, prompts, onDeath } = this.#workers;
    if (streams.running) return streams.running;
    void streams.get().catch((error: unknown) => {
      onDeath(error instanceof Error ? error : new Error(messageOf(error)));
    });
    return prompts;
  }

  /**
   * Encodes a text. @throws Failure `context_too_long` for a text that cannot fit the context whatever its tokens are, unless the
   * prompt is cut on `cutSide` afterwards.
   */
  async encode(
    text: string,
    addSpecialTokens: boolean,
    { signal, share }: CallFor,
    options: Pick<TextPrompt, 'cutSide' | 'answerScope'> = {},
  ): Promise<Uint32Array> {
    const maxCharacters = this.#maxCharacters;
    const encoder = await this.#encoder(text.length);
    return encoder.call('encode', { text, addSpecialTokens, maxCharacters, ...options }, signal, share);
  }

  /**
   * Returns the thread that encodes a prompt of this many characters, for methods that its module has besides those of a tokenizer.
   * `T` is what the `start` of that module returns.
   */
  async encoderOf<T extends TokenizerTools>(characters: number): Promise<Thread<T>> {
    const thread: unknown = await this.#encoder(characters);
    return thread as Thread<T>;
  }

  /**
   * Renders and encodes a chat. `bodyBytes`, the size of its request body, selects the thread; a prompt that is cut on `cutSide`
   * afterwards may be longer than the context. @throws Failure `invalid_request` with the template's own message.
   */
  async chatPrompt(
    template: TemplateInput,
    bodyBytes: number,
    { signal, share }: CallFor,
    options: Pick<ChatInput, 'cutSide' | 'answerScope'> = {},
  ): Promise<ChatPrompt> {
    const maxCharacters = this.#maxCharacters;
    const encoder = await this.#encoder(bodyBytes);
    return encoder.call('chatPrompt', { template, maxCharacters, ...options }, signal, share);
  }

  /** Returns the token ids of a text or chat and, with `hasStrings`, the tokens, as JSON lists. */
  async tokenize(
    request: {
      readonly text: string | undefined;
      readonly template: TemplateInput | undefined;
      readonly hasSpecialTokens: boolean;
      readonly hasStrings: boolean;
    },
    { signal, share }: CallFor,
  ): Promise<{ count: number; tokens: string; strings: string }> {
    const { text, template, hasSpecialTokens, hasStrings } = request;
    return (await this.#tools()).call(
      'tokenize',
      { text, template, hasSpecialTokens, hasStrings, maxCharacters: this.#maxCharacters },
      signal,
      share,
    );
  }

  /** Returns the text of a chat's prompt. @throws Failure `invalid_request` with the template's own message. */
  async render(template: TemplateInput, { signal, share }: CallFor): Promise<string> {
    return (await this.#tools()).call('render', { template, maxCharacters: this.#maxCharacters }, signal, share);
  }

  /** Returns what is known of the tokenizer, in the keys of tokenizer_config.json. @throws Failure when the model has none. */
  async tokenizerInfo(): Promise<Readonly<Record<string, unknown>>> {
    return (await this.#tools()).call('info', undefined);
  }

  /** Tokens that end an answer, by the tokenizer's configuration and the chat template. */
  async endTokens(): Promise<number[]> {
    return this.#workers ? this.#workers.prompts.call('endTokens', undefined) : [];
  }

  /** Returns the formats of the model's output; undefined without a tokenizer. */
  async outputFacts(): Promise<OutputFacts | undefined> {
    return this.#workers?.prompts.call('outputFacts', undefined);
  }

  /** Returns why the model's chat template cannot be used; undefined when it can, or when there is none. */
  async templateError(): Promise<string | undefined> {
    return this.#workers?.prompts.call('templateError', undefined);
  }

  async detokenize(ids: Uint32Array, { signal, share }: CallFor): Promise<string> {
    return (await this.#tools()).call('detokenize', ids, signal, share);
  }

  #tools(): Promise<Thread<TokenizerTools>> {
    return this.#own().tools.get();
  }

  /**
   * Caches the tokens that a model generated after a prompt, because the chat's next turn begins with both. The thread that will
   * encode the next turn has the answer before that turn can arrive. `scope`: number of the request's scope, in which alone they are used.
   * @returns the answer, for other routers; undefined when it is not cached
   */
  async remember(prompt: Uint32Array, generated: readonly number[], scope: bigint): Promise<Answer | undefined> {
    const workers = this.#workers;
    if (!workers || this.#delimiters.size === 0) return undefined;
    const tokens = generatedTokens(prompt, generated, this.#delimiters, scope);
    if (!tokens) return undefined;
    const { prompts } = workers;
    const own = await this.#encoder(CHARACTERS_A_TOKEN * (prompt.length + generated.length));
    const answer = await own.call('remember', tokens);
    if (!answer) return undefined;
    if (own === prompts) this.#learnLong(answer);
    else prompts.notify('learn', answer);
    return answer;
  }

  /** Stores an answer that another router sent, in the two threads that encode prompts. */
  learn(answer: Answer): void {
    this.#workers?.prompts.notify('learn', answer);
    this.#learnLong(answer);
  }

  /** Stores an answer in the thread of long prompts. One that starts later gets all answers of the other. */
  #learnLong(answer: Answer): void {
    this.#workers?.long.notify((long) => {
      long.notify('learn', answer);
    });
  }

  /** Decodes tokens of running streams: returns one text per list of ids. Without a tokenizer every text is empty. */
  decode(lists: readonly (readonly number[])[], skipSpecialTokens: boolean): Promise<string[]> {
    return this.#streams()?.call('decode', { lists, skipSpecialTokens }) ?? Promise.resolve(lists.map(() => ''));
  }

  /** Returns the text of a token when it does not depend on neighbours; undefined when it does, or is not known yet. */
  plainText(id: number): string | undefined {
    return this.#texts.plainText(id);
  }

  /** Returns the bytes of a token that is part of a character; undefined for any other, and while they are not known. */
  partOf(id: number): Uint8Array | undefined {
    return this.#texts.partOf(id);
  }

  /** Fetches the texts of the vocabulary, in slices: prompts are encoded between them. */
  async #loadTexts({ prompts }: Workers): Promise<void> {
    for (let from = 0, isLast = false; !isLast && from < MAX_TABLE_TOKENS; from += SLICE_TOKENS) {
      const slice = await prompts.call('textsOf', from);
      this.#texts.add(slice);
      ({ isLast } = slice);
    }
  }

  /** Returns a function from ids to names of tokens, special ones included; a promise where the thread must be asked for some, each once. */
  names(ids: readonly number[]): ((id: number) => TokenName) | Promise<(id: number) => TokenName> {
    return ids.every((id) => this.#names.has(id)) ? this.#nameOf : this.#askedNames(ids);
  }

  readonly #nameOf = (id: number): TokenName => this.#names.get(id) ?? NO_NAME;

  async #askedNames(ids: readonly number[]): Promise<(id: number) => TokenName> {
    const missing = [...new Set(ids)].filter((id) => !this.#names.has(id));
    // In slices: the text of every stream comes from the same thread.
    for (let at = 0; at < missing.length; at += NAMES_AT_ONCE) {
      const slice = missing.slice(at, at + NAMES_AT_ONCE);
      const all = (await this.#streams()?.call('tokenBytes', slice)) ?? [];
      slice.forEach((id, i) => {
        const { bytes, name, isAdded } = all[i] ?? { bytes: new Uint8Array(0), name: '', isAdded: false };
        const [text, escaped] = [charactersOf(bytes), escapedBytes(bytes)];
        this.#names.set(id, { bytes: Array.from(bytes), name, text, escaped, isAdded });
      });
    }
    return this.#nameOf;
  }

  async close(): Promise<void> {
    if (!this.#workers) return;
    const { streams, prompts, long, tools } = this.#workers;
    await Promise.all([streams, prompts, long, tools].map((worker) => worker.close()));
  }
}
