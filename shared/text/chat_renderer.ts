/** Renders chats with a model's chat templates: which template, what it is given, and what it says of the model's output format. */
import { z } from 'zod';
import { Failure, messageOf } from '../base/failure.ts';
import type { TemplateInput, ToolDefinition } from './template_input.ts';
import { chooseFormat, prefixReader, type FormatChoice, type ParserNames } from './output/output_format.ts';
import type { ToolFamily } from './output/tool_families.ts';
import { responseTemplate } from './output/response_template.ts';
import { leftOpen, namesInTags, namesRole, readsVariable, type Messages } from './chat_messages.ts';
import { MessagePlacement } from './message_placement.ts';
import { AS_THEY_ARE, type Chat, spelled, type Spelling, type TemplateTraits } from './spellings.ts';
import { ChatTemplate } from './template/chat_template.ts';
import { exactJson } from './template/exact_json.ts';
import { StepsExceeded } from './template/steps.ts';

/** Names of the special tokens that templates can read, as in transformers. */
const SPECIAL_TOKENS = ['bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask'].map((name) => `${name}_token`);

/** Characters of a message that an error repeats. */
const MAX_SAID = 40;
/** Spellings that are tried where a template takes a chat's shape, and then refuses its texts. */
const MAX_REAL_TRIES = 16;

const templatesSchema = z.union([z.string(), z.array(z.object({ name: z.string(), template: z.string() }))]);

/** A rendered chat. */
export interface RenderedChat {
  readonly text: string;
  readonly addSpecialTokens: boolean;
  /** End of the text that belongs to the answer, for the parser of the output. */
  readonly prefix: string;
}

/** A rendered chat before its end is cut. */
interface Placed {
  readonly text: string;
  readonly messages: Messages;
}

/** A chat template, and which variables and roles its source reads. */
class ReadTemplate implements TemplateTraits {
  readonly source: string;
  readonly template: ChatTemplate | undefined;
  readonly error: string | undefined;
  readonly knowsDeveloper: boolean;
  readonly knowsToolRole: boolean;
  readonly readsTools: boolean;
  /** Whether it reads the tools under another name (SmolLM3). */
  readonly readsXmlTools: boolean;
  readonly readsCalls: boolean;
  readonly readsThinking: boolean;
  readonly readsToolsOfMessage: boolean;
  readonly placement: MessagePlacement;

  constructor(source: string, family: ToolFamily) {
    this.source = source;
    this.knowsDeveloper = namesRole(source, 'developer');
    this.knowsToolRole = namesRole(source, 'tool');
    this.readsXmlTools = readsVariable(source, 'xml_tools');
    this.readsTools = this.readsXmlTools || readsVariable(source, 'tools');
    this.readsCalls = namesInTags(source, /\btool_calls\b/);
    this.readsThinking = namesInTags(source, /[.'"]thinking\b/);
    this.readsToolsOfMessage = namesInTags(source, /message(\.tools\b|\[['"]tools['"]\])/);
    this.placement = new MessagePlacement(this, family);
    try {
      this.template = new ChatTemplate(source, () => new Date());
    } catch (error) {
      // Completions need no template: chats report the error.
      this.error = messageOf(error);
    }
  }
}

/** The chat templates of one model. */
export class ChatRenderer {
  readonly format: FormatChoice;
  /** Why the response template of tokenizer_config.json is not used; undefined when it is, or there is none. */
  readonly formatError: string | undefined;
  readonly #usual: ReadTemplate | undefined;
  readonly #forTools: ReadTemplate | undefined;
  readonly #config: Readonly<Record<string, unknown>>;
  readonly #prefixOf: ReturnType<typeof prefixReader>;

  /**
   * @param config tokenizer_config.json
   * @param file text of chat_template.jinja; undefined when there is none
   * @param tokens special tokens of the vocabulary
   */
  constructor(
    config: Readonly<Record<string, unknown>>,
    file: string | undefined,
    parsers: ParserNames,
    tokens: readonly string[] = [],
  ) {
    this.#config = config;
    const found = file ?? templatesSchema.safeParse(config['chat_template']).data;
    const named = (name: string): string | undefined =>
      typeof found === 'string' ? undefined : found?.find((one) => one.name === name)?.template;
    const usual = typeof found === 'string' ? found : named('default');
    const forTools = named('tool_use') ?? usual;
    const response = config['response_template'] ?? undefined;
    this.formatError = response === undefined ? undefined : whyUnusable(response);
    this.format = chooseFormat(forTools, this.formatError === undefined ? response : undefined, parsers, tokens);
    const read = (source: string): ReadTemplate => new ReadTemplate(source, this.#family);
    this.#usual = usual === undefined ? undefined : read(usual);
    this.#forTools = forTools === usual ? this.#usual : forTools === undefined ? undefined : read(forTools);
    this.#prefixOf = prefixReader(this.format);
  }

  /** Why the chat template cannot be used; undefined: it can, or there is none. */
  get error(): string | undefined {
    return this.#usual?.error;
  }

  /** Text of the usual chat template; undefined when there is none. */
  get source(): string | undefined {
    return this.#usual?.source;
  }

  get hasTemplate(): boolean {
    return this.#usual?.template !== undefined;
  }

  /**
   * Returns the text of a special token of tokenizer_config.json, which may be a string or an object with `content`; undefined when it
   * is absent.
   */
  specialToken(name: string): string | undefined {
    const value = this.#config[name];
    if (typeof value === 'string') return value;
    return typeof value === 'object' && value !== null && 'content' in value ? String(value.content) : undefined;
  }

  get #family(): ToolFamily {
    return this.format.tools ?? 'json';
  }

  /** Renders the chat template, which brings its own special tokens. @throws Failure with what the template raises. */
  render({ addSpecialTokens, ...input }: TemplateInput): RenderedChat {
    const { continueFinalMessage, tools = [] } = input;
    const template = tools.length > 0 ? this.#forTools : this.#usual;
    const { text, messages } = this.#placed(template, { messages: input.messages, tools }, input);
    const final = input.messages.at(-1)?.['content'];
    const whole = continueFinalMessage ? leftOpen(text, messages) : text;
    const continued = continueFinalMessage && typeof final === 'string' ? final : undefined;
    return { text: whole, addSpecialTokens, prefix: this.#prefixOf(whole, continued) };
  }

  /**
   * Renders a chat with `mark` as the reasoning of each assistant's message with calls that has none; undefined when there is no such message,
   * or the template does not render the mark.
   */
  renderMarked({ messages, ...input }: TemplateInput, mark: string): string | undefined {
    const isBare = ({ role, reasoning, reasoning_content: other, tool_calls: calls }: Messages[number]): boolean =>
      role === 'assistant' && Array.isArray(calls) && typeof reasoning !== 'string' && typeof other !== 'string';
    if (input.continueFinalMessage || !messages.some(isBare)) return undefined;
    const marked = messages.map((message) => (isBare(message) ? { ...message, reasoning: mark } : message));
    try {
      const { text } = this.render({ messages: marked, ...input });
      return text.includes(mark) ? text : undefined;
    } catch {
      // A template that takes no reasoning is rendered without it.
      return undefined;
    }
  }

  /** Renders messages without tools. @throws Failure when there is no template, Error with what the template raises. */
  renderMessages(messages: Messages, addGenerationPrompt: boolean): string {
    return this.#rendered(this.#usual, messages, { addGenerationPrompt, kwargs: {} });
  }

  /** Renders a chat in the spelling in which the template keeps its texts. @throws Failure with what it raises for the first. */
  #placed(read: ReadTemplate | undefined, chat: Chat, input: Omit<TemplateInput, 'addSpecialTokens'>): Placed {
    const render = (one: Chat): string => this.#rendered(read, one.messages, { ...input, tools: one.tools });
    const { addGenerationPrompt, continueFinalMessage, kwargs } = input;
    const shape = JSON.stringify([addGenerationPrompt, continueFinalMessage, kwargs]);
    const { spelling, lost } = read?.template
      ? read.placement.of(chat, shape, render)
      : { spelling: AS_THEY_ARE, lost: undefined };
    if (lost !== undefined) throw lostMessage(chat.messages[lost]);
    let first: unknown;
    for (const one of withOthers(spelling, read, chat)) {
      try {
        const own = spelled(chat, one, read, this.#family);
        return { messages: own.messages, text: render(own) };
      } catch (error) {
        if (error instanceof Failure) throw error;
        first ??= error;
        if (error instanceof StepsExceeded) break;
      }
    }
    throw this.#refused(first);
  }

  #refused(cause: unknown): Failure {
    const why = cause instanceof StepsExceeded ? `loops: ${cause.message}` : `refuses them: ${messageOf(cause)}`;
    return new Failure('invalid_request', `messages: the chat template ${why}`, { cause });
  }

  /** Renders messages. @throws Failure when there is no template, Error with what the template raises. */
  #rendered(
    read: ReadTemplate | undefined,
    messages: Messages,
    { addGenerationPrompt, kwargs, tools = [] }: Pick<TemplateInput, 'addGenerationPrompt' | 'kwargs' | 'tools'>,
  ): string {
    const template = read?.template;
    if (!template) {
      const why = read?.error;
      throw new Failure(
        'invalid_request',
        why === undefined
          ? 'this model has no chat template: use /v1/completions'
          : `the chat template of this model cannot be read (${why}): use /v1/completions`,
      );
    }
    const own = tools.map(withExactParameters);
    return template.render({
      ...Object.fromEntries(SPECIAL_TOKENS.map((name) => [name, this.specialToken(name)])),
      // Defaults for absent values: templates test whether `tools` and `documents` are none.
      tools: tools.length === 0 ? null : own,
      documents: null,
      ...(read.readsXmlTools && tools.length > 0 ? { xml_tools: own.map((tool) => tool.function) } : {}),
      ...kwargs,
      messages,
      add_generation_prompt: addGenerationPrompt,
    });
  }
}

function lostMessage({ role, content = '' }: Messages[number] = {}): Failure {
  const begin = JSON.stringify(String(content).slice(0, MAX_SAID));
  return new Failure(
    'invalid_request',
    `messages: the chat template leaves out the message of the ${String(role)} that begins with ${begin}, in every spelling that was tried; send it as a message of the user`,
  );
}

/** Yields a spelling, and others for a template that refuses the chat in it. */
function* withOthers(spelling: Spelling, read: ReadTemplate | undefined, chat: Chat): Generator<Spelling> {
  yield spelling;
  if (read) yield* read.placement.candidates(chat, MAX_REAL_TRIES);
}

/** Nesting depth of a tool's parameters, as a body may have it. */
const MAX_SCHEMA_DEPTH = 64;

/** Returns a tool whose parameters print as the client wrote them. */
function withExactParameters({ exactParameters, ...tool }: ToolDefinition): { readonly function: object } {
  if (exactParameters === undefined) return tool;
  const parameters = exactJson(exactParameters, MAX_SCHEMA_DEPTH) ?? tool.function.parameters;
  return { ...tool, function: { ...tool.function, parameters } };
}

function whyUnusable(response: unknown): string | undefined {
  try {
    responseTemplate(response);
    return undefined;
  } catch (error) {
    return messageOf(error);
  }
}
