/**
 * An agent that speaks to /v1/messages as Claude Code does: the same system blocks with a billing line that differs with every request,
 * tools, headers and history, in which what came back is sent again as that client sends it.
 */
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import type {
  BetaContentBlock,
  BetaContentBlockParam,
  BetaMessageParam,
  BetaThinkingConfigParam,
  BetaTool,
  BetaToolChoice,
  BetaToolResultBlockParam,
  BetaToolUseBlock,
} from '@anthropic-ai/sdk/resources/beta/messages/messages';
import { Random } from '../../../shared/base/random.ts';
import { listing, projectInstructions, systemPrompt } from './agent_texts.ts';

const ephemeral = { type: 'ephemeral' } as const;
const text = { type: 'string' } as const;

function tool(name: string, description: string, properties: object, required: readonly string[]): BetaTool {
  const $schema = 'http://json-schema.org/draft-07/schema#';
  const schema = { $schema, type: 'object' as const, properties, required: [...required], additionalProperties: false };
  return { name, description, input_schema: schema };
}

const steps = ['Read the log', 'Fix the tide table', 'Run the tests'];
const todo = {
  type: 'object',
  properties: {
    content: { type: 'string', enum: steps },
    status: { type: 'string', enum: ['pending', 'in_progress', 'completed'] },
    activeForm: { type: 'string', enum: ['Reading the log', 'Fixing the tide table', 'Running the tests'] },
  },
  required: ['content', 'status', 'activeForm'],
  additionalProperties: false,
};

const tools: readonly BetaTool[] = [
  tool(
    'Bash',
    'Runs a command in a shell that stays open between calls.\n\nQuote paths that have blanks.',
    {
      command: { ...text, description: 'The command' },
      timeout: { type: 'number', description: 'Milliseconds until it is stopped' },
      description: { ...text, description: 'The command in five to ten words' },
      run_in_background: { type: 'boolean' },
    },
    ['command'],
  ),
  tool('Read', 'Reads a file.', { file_path: text, offset: { type: 'number' }, limit: { type: 'number' } }, [
    'file_path',
  ]),
  tool(
    'Edit',
    'Replaces a text in a file.',
    { file_path: text, old_string: text, new_string: text, replace_all: { type: 'boolean', default: false } },
    ['file_path', 'old_string', 'new_string'],
  ),
  tool('Grep', 'Searches files by a regular expression.', { pattern: text, path: text, glob: text, '-n': {} }, [
    'pattern',
  ]),
  tool(
    'TodoWrite',
    'Keeps the list of steps of a task.',
    { todos: { type: 'array', items: todo, minItems: 2, maxItems: 2 } },
    ['todos'],
  ),
  tool('mcp__harbour__tide', 'When the tide is high at a place.', { place: text }, ['place']),
  tool('mcp__harbour__weather', 'The weather of a day.', { day: text }, ['day']),
];

const systemText = systemPrompt(1, 8_200);

/** How one request differs from the others of its session. */
export interface ClaudeCodeOptions {
  readonly thinking: BetaThinkingConfigParam;
  readonly maxTokens?: number;
  readonly toolChoice?: BetaToolChoice;
}

/** One session: its history, and the client that sends it. */
export class ClaudeCode {
  readonly messages: BetaMessageParam[] = [];
  readonly #random: Random;
  readonly #sessionId: string;
  readonly #model: string;

  constructor(model: string, seed: number) {
    this.#model = model;
    this.#random = new Random(seed);
    this.#sessionId = this.#hex(8);
  }

  /**
   * Adds what the user writes, after the results of tools where there are some. The first message has reminders before it, of what
   * the project's instructions say.
   */
  say(words: string): void {
    const last = this.messages.at(-1);
    if (last?.role === 'user' && Array.isArray(last.content)) {
      last.content.push({ type: 'text', text: words });
      return;
    }
    if (last) {
      this.messages.push({ role: 'user', content: words });
      return;
    }
    const reminder = (inside: string): BetaContentBlockParam => ({
      type: 'text',
      text: `<system-reminder>\n${inside}\n</system-reminder>`,
    });
    const context = `You may use this context.\n# claudeMd\nContents of /repo/harbour/CLAUDE.md:\n\n${projectInstructions}\n# currentDate\nToday is 2026-11-26.\n`;
    const skills = reminder('Skills of the Skill tool:\n\n- commit: Makes a commit\n- review: Reads a change');
    this.messages.push({ role: 'user', content: [skills, reminder(context), { type: 'text', text: words }] });
  }

  /** Adds a reminder of the client after the results of tools: as a block of its own, or in the text of the last result. */
  remind(words: string, isOwnBlock: boolean): void {
    const last = this.messages.at(-1);
    if (!Array.isArray(last?.content)) return;
    const block = `<system-reminder>\n${words}\n</system-reminder>`;
    const result = last.content.at(-1);
    if (isOwnBlock || result?.type !== 'tool_result') last.content.push({ type: 'text', text: block });
    else if (typeof result.content === 'string') result.content += `\n\n${block}`;
  }

  /** Adds a system message in the midst of the conversation. */
  instruct(words: string): void {
    this.messages.push({ role: 'system', content: words });
  }

  /**
   * Sends the history to a router, adds the answer to it, and the results of the tools that it calls.
   * @returns the blocks of the answer, its header x-penstock-request, and whether it has calls
   */
  async ask(
    url: string,
    options: ClaudeCodeOptions,
  ): Promise<{
    readonly parts: readonly BetaContentBlock[];
    readonly header: string | null;
    readonly hasCalls: boolean;
  }> {
    const client = new Anthropic({ baseURL: url, authToken: 'none', apiKey: null, maxRetries: 0 });
    const stream = client.beta.messages.stream(this.#bodyOf(options), {
      headers: { 'x-app': 'cli', 'user-agent': 'claude-cli/2.1.150 (external, cli)' },
    });
    const { response } = await stream.withResponse();
    const { content: parts, stop_reason: reason } = await stream.finalMessage();
    this.messages.push({ role: 'assistant', content: parts.map(sentBack) });
    const calls = parts.filter((block) => block.type === 'tool_use');
    assert(
      calls.length === 0 || reason === 'tool_use',
      `an answer with calls ended by ${reason}: ask for shorter ones`,
    );
    if (calls.length > 0) this.messages.push({ role: 'user', content: calls.map((call) => this.#result(call)) });
    return { parts, header: response.headers.get('x-penstock-request'), hasCalls: calls.length > 0 };
  }

  #bodyOf({
    thinking,
    toolChoice,
    maxTokens = toolChoice ? 256 : 128,
  }: ClaudeCodeOptions): Anthropic.Beta.MessageCreateParamsStreaming {
    const billing = `x-anthropic-billing-header: cc_version=2.1.150.${this.#hex(3)}; cc_entrypoint=cli; cch=${this.#hex(5)};`;
    const isThinking = thinking.type !== 'disabled';
    return {
      model: this.#model,
      max_tokens: maxTokens,
      system: [
        { type: 'text', text: billing },
        { type: 'text', text: 'You are an agent that works in a terminal.', cache_control: ephemeral },
        { type: 'text', text: systemText, cache_control: ephemeral },
        { type: 'text', text: '# Environment\nFolder: /repo/harbour\nGit: yes, branch main\nPlatform: linux' },
      ],
      messages: withCacheControl(this.messages),
      tools: [...tools],
      ...(toolChoice ? { tool_choice: toolChoice } : {}),
      thinking,
      metadata: {
        user_id: `{"device_id":"d0","account_uuid":"","session_id":"${this.#sessionId}"}`,
      },
      betas: ['claude-code-20250219', 'interleaved-thinking-2025-05-14', 'context-management-2025-06-27'],
      ...(isThinking ? { context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] } } : {}),
      output_config: { effort: 'medium' },
      stream: true,
    };
  }

  /** Returns the result of a call: short or long, a text or blocks, or an error. */
  #result({ id, name, input }: BetaToolUseBlock): BetaToolResultBlockParam {
    const base = { type: 'tool_result' as const, tool_use_id: id };
    if (name.includes('tide')) return { ...base, content: [{ type: 'text', text: '{"high": "9:15"}' }] };
    if (name.includes('weather')) {
      const parts = ['{"sky": "rain",', '"wind": 5}'].map((part) => ({ type: 'text' as const, text: part }));
      return { ...base, content: parts };
    }
    if (name === 'TodoWrite') return { ...base, content: 'The list is kept. Go on with it.' };
    if (name === 'Bash' || name === 'Grep') return { ...base, content: listing(3, 900), is_error: false };
    const shown = JSON.stringify(input);
    return { ...base, content: `<tool_use_error>No such tool: ${name} ${shown}</tool_use_error>`, is_error: true };
  }

  #hex(length: number): string {
    return Array.from({ length }, () => this.#random.below(16).toString(16)).join('');
  }
}

/** Returns a block of an answer as the client sends it again: calls without what only their answer has. */
function sentBack(block: BetaContentBlock): BetaContentBlockParam {
  if (block.type === 'tool_use') return { type: 'tool_use', id: block.id, name: block.name, input: block.input };
  if (block.type === 'text') return { type: 'text', text: block.text };
  if (block.type === 'thinking') return { type: 'thinking', thinking: block.thinking, signature: block.signature };
  throw new Error(`${block.type} does not come from this server`);
}

/** Returns the messages with the mark on the last one of the user, whose text becomes a block for it. */
function withCacheControl(messages: readonly BetaMessageParam[]): BetaMessageParam[] {
  const at = messages.findLastIndex(({ role }) => role === 'user');
  return messages.map((message, i) => {
    if (i !== at || message.role !== 'user') return message;
    const { content } = message;
    const blocks = Array.isArray(content) ? content : [{ type: 'text' as const, text: content }];
    const marked = { ...blocks.at(-1), cache_control: ephemeral } as BetaContentBlockParam;
    return { role: 'user', content: [...blocks.slice(0, -1), marked] };
  });
}
