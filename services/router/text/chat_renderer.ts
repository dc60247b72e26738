/** Renders chats with a model's chat templates: which template, what it is given, and what it says of the model's output format. */
import { z } from 'zod';
import { Failure, messageOf } from '../../../shared/base/failure.ts';
import type { TemplateInput } from '../openai/parameters.ts';
import { chooseFormat, prefixReader, type FormatChoice, type ParserNames } from '../output/output_format.ts';
import { responseTemplate } from '../output/response_template.ts';
import { forTemplate, leftOpen, namesInTags, namesRole, readsVariable, type Messages } from './chat_messages.ts';
import { ChatTemplate } from './template/chat_template.ts';
import { StepsExceeded } from './template/steps.ts';
import { instructions, toolsJson, withCallsAsText, withoutSystem, withShortIds, withSystemText } from './tool_texts.ts';

/** Names of the special tokens that templates can read, as in transformers. */
const SPECIAL_TOKENS = ['bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask'].map((name) => `${name}_token`);

const templatesSchema = z.union([z.string(), z.array(z.object({ name: z.string(), template: z.string() }))]);

/** A rendered chat. */
export interface RenderedChat {
  readonly text: string;
  readonly addSpecialTokens: boolean;
  /** End of the text that belongs to the answer, for the parser of the output. */
  readonly prefix: string;
}

/** A chat template, and which variables and roles its source reads. */
class ReadTemplate {
  readonly source: string;
  readonly template: ChatTemplate | undefined;
  readonly error: string | undefined;
  readonly knowsDeveloper: boolean;
  readonly knowsToolRole: boolean;
  readonly readsTools: boolean;
  /** Whether it reads the tools under another name (SmolLM3). */
  readonly readsXmlTools: boolean;
  readonly readsCalls: boolean;
  /** Whether it reads the tools from a key of the system message, as text (Phi-4-mini). */
  readonly readsToolsOfMessage: boolean;

  constructor(source: string) {
    this.source = source;
    this.knowsDeveloper = namesRole(source, 'developer');
    this.knowsToolRole = namesRole(source, 'tool');
    this.readsXmlTools = readsVariable(source, 'xml_tools');
    this.readsTools = this.readsXmlTools || readsVariable(source, 'tools');
    this.readsCalls = namesInTags(source, /\btool_calls\b/);
    this.readsToolsOfMessage = namesInTags(source, /message(\.tools\b|\[['"]tools['"]\])/);
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
   */
  constructor(config: Readonly<Record<string, unknown>>, file: string | undefined, parsers: ParserNames) {
    this.#config = config;
    const found = file ?? templatesSchema.safeParse(config['chat_template']).data;
    const named = (name: string): string | undefined =>
      typeof found === 'string' ? undefined : found?.find((one) => one.name === name)?.template;
    const usual = typeof found === 'string' ? found : named('default');
    const forTools = named('tool_use') ?? usual;
    this.#usual = usual === undefined ? undefined : new ReadTemplate(usual);
    this.#forTools = forTools === usual ? this.#usual : forTools === undefined ? undefined : new ReadTemplate(forTools);
    const response = config['response_template'] ?? undefined;
    this.formatError = response === undefined ? undefined : whyUnusable(response);
    this.format = chooseFormat(forTools, this.formatError === undefined ? response : undefined, parsers);
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

  /** Renders the chat template, which brings its own special tokens. @throws Failure with what the template raises. */
  render({ addSpecialTokens, ...input }: TemplateInput): RenderedChat {
    const { continueFinalMessage, tools = [] } = input;
    const template = tools.length > 0 ? this.#forTools : this.#usual;
    const messages = this.#messagesFor(template, input);
    const text = this.#firstOf(template, messages, input);
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

  /** Returns the messages as the template reads them; the tools are among them when it reads none. */
  #messagesFor(
    template: ReadTemplate | undefined,
    { messages, tools = [] }: Omit<TemplateInput, 'addSpecialTokens'>,
  ): Messages {
    const family = this.format.tools ?? 'json';
    const isLosingCalls = tools.length > 0 && template?.readsCalls === false;
    const spelled = isLosingCalls ? withCallsAsText(messages, family, template.knowsToolRole) : messages;
    const known = forTemplate(spelled, template?.knowsDeveloper === true);
    if (tools.length === 0 || !template || template.readsTools) return known;
    if (!template.readsToolsOfMessage) return withSystemText(known, instructions(tools, family));
    const [first, ...rest] = withSystemText(known, '');
    return [{ ...first, tools: toolsJson(tools) }, ...rest];
  }

  /** Renders the messages in the first spelling that the template takes. @throws Failure with what it raises for the first. */
  #firstOf(
    template: ReadTemplate | undefined,
    messages: Messages,
    input: Omit<TemplateInput, 'addSpecialTokens'>,
  ): string {
    let first: unknown;
    const hasInstructions = (input.tools ?? []).length > 0 && template?.readsTools === false;
    for (const spelled of spellings(messages, hasInstructions)) {
      try {
        return this.#rendered(template, spelled, input);
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
    return template.render({
      ...Object.fromEntries(SPECIAL_TOKENS.map((name) => [name, this.specialToken(name)])),
      // Defaults for absent values: templates test whether `tools` and `documents` are none.
      ...{ tools: tools.length === 0 ? null : tools, documents: null },
      ...(read.readsXmlTools && tools.length > 0 ? { xml_tools: tools.map((tool) => tool.function) } : {}),
      ...kwargs,
      messages,
      add_generation_prompt: addGenerationPrompt,
    });
  }
}

/**
 * Yields messages in the spellings that templates ask for: as they are; with an empty content where there is none, since a template that
 * joins contents fails on an assistant's message that has only calls; with short ids of calls; without a system message that was made
 * here (`hasInstructions`).
 */
function* spellings(messages: Messages, hasInstructions: boolean): Generator<Messages> {
  yield messages;
  const filled = messages.map((message) => ('content' in message ? message : { ...message, content: '' }));
  yield filled;
  const hasCalls = messages.some((message) => Array.isArray(message['tool_calls']));
  if (hasCalls) yield withShortIds(messages);
  if (hasCalls) yield withShortIds(filled);
  if (hasInstructions) yield withoutSystem(filled);
}

function whyUnusable(response: unknown): string | undefined {
  try {
    responseTemplate(response);
    return undefined;
  } catch (error) {
    return messageOf(error);
  }
}
