/**
 * An agent that speaks to /v1/responses as Codex does: instructions, tools of all its kinds, nothing stored, and a history of items, in
 * which what came back is sent again as that client sends it.
 */
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import type {
  ResponseCreateParamsStreaming,
  ResponseInputItem,
  ResponseOutputItem,
  Tool,
  ToolChoiceFunction,
  ToolChoiceCustom,
} from 'openai/resources/responses/responses';
import { listing, projectInstructions, systemPrompt } from './agent_texts.ts';

const text = { type: 'string' } as const;

function tool(name: string, description: string, properties: object, required: readonly string[]): Tool {
  const parameters = { type: 'object', properties, required, additionalProperties: false };
  return { type: 'function', name, description, strict: false, parameters };
}

const planStep = {
  type: 'object',
  properties: {
    step: { type: 'string', enum: ['Read the log', 'Fix the tide table', 'Run the tests'] },
    status: { type: 'string', enum: ['pending', 'in_progress', 'completed'] },
  },
  required: ['step', 'status'],
  additionalProperties: false,
};

const tools: readonly Tool[] = [
  tool(
    'exec_command',
    'Runs a command in a terminal, and returns its output or the id of a session that goes on.',
    {
      cmd: { ...text, description: 'The command' },
      workdir: text,
      yield_time_ms: { type: 'number', description: 'Milliseconds to wait for output' },
      max_output_tokens: { type: 'number' },
    },
    ['cmd'],
  ),
  tool('write_stdin', 'Writes to a session that goes on.', { session_id: { type: 'number' }, chars: text }, [
    'session_id',
  ]),
  tool(
    'update_plan',
    'Keeps the plan of a task.\nAt most one step is in_progress.',
    { plan: { type: 'array', items: planStep, minItems: 2, maxItems: 2 } },
    ['plan'],
  ),
  {
    type: 'custom',
    name: 'apply_patch',
    description: 'Changes files by a patch.',
    format: { type: 'grammar', syntax: 'lark', definition: 'start: "*** Begin Patch" LF /[^*]+/ "*** End Patch"' },
  },
  { type: 'web_search' },
  {
    type: 'namespace',
    name: 'mcp__harbour__',
    description: 'The harbour.',
    tools: [
      tool('tide', 'When the tide is high at a place.', { place: text }, ['place']),
      tool('weather', 'The weather of a day.', { day: text }, ['day']),
    ],
  } as unknown as Tool,
];

const instructions = systemPrompt(2, 8_500);

/** How one request differs from the others of its session. */
export interface CodexOptions {
  /** Whether the template opens reasoning: the demo model's does so by this key alone, not by the effort. */
  readonly isThinking: boolean;
  readonly toolChoice?: 'required' | ToolChoiceFunction | ToolChoiceCustom;
  /** Seed of an answer that is sampled at a temperature of 1.2; without one it is greedy. */
  readonly seed?: number;
  readonly maxTokens?: number;
}

/** One session: its history, and the client that sends it. */
export class Codex {
  readonly input: ResponseInputItem[] = [
    message(
      'developer',
      '<permissions instructions>\nFiles may be written in the folder only.\n</permissions instructions>',
    ),
    message(
      'user',
      `# AGENTS.md instructions for /repo/harbour\n\n<INSTRUCTIONS>\n${projectInstructions}\n</INSTRUCTIONS>`,
      '<environment_context>\n  <cwd>/repo/harbour</cwd>\n  <shell>bash</shell>\n  <current_date>2026-11-26</current_date>\n</environment_context>',
    ),
  ];
  readonly #model: string;

  constructor(model: string) {
    this.#model = model;
  }

  /** Adds what the user writes. */
  say(words: string): void {
    this.input.push(message('user', words));
  }

  /**
   * Sends the history to a router, adds the items of the answer to it, and the outputs of the tools that it calls.
   * @returns the items, the answer's header x-penstock-request, and whether it has calls
   */
  async ask(
    url: string,
    options: CodexOptions,
  ): Promise<{
    readonly parts: readonly ResponseOutputItem[];
    readonly header: string | null;
    readonly hasCalls: boolean;
  }> {
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
    const { data: events, response } = await client.responses
      .create(this.#bodyOf(options), { headers: { originator: 'codex_cli_rs' } })
      .withResponse();
    const items: ResponseOutputItem[] = [];
    let ending: string | undefined;
    for await (const event of events) {
      if (event.type === 'response.output_item.done') items.push(event.item);
      ending = event.type;
    }
    this.input.push(...items.map(sentBack));
    const outputs = items.flatMap(outputOf);
    const isCut = ending === 'response.incomplete' && outputs.length === 0;
    assert(ending === 'response.completed' || isCut, `an answer ended with ${ending}: ask for shorter calls`);
    this.input.push(...outputs);
    return { parts: items, header: response.headers.get('x-penstock-request'), hasCalls: outputs.length > 0 };
  }

  #bodyOf({
    isThinking,
    toolChoice,
    seed,
    maxTokens = toolChoice ? 256 : 128,
  }: CodexOptions): ResponseCreateParamsStreaming {
    return {
      model: this.#model,
      instructions,
      input: this.input,
      tools: [...tools],
      tool_choice: toolChoice ?? 'auto',
      parallel_tool_calls: true,
      reasoning: { effort: 'medium', summary: 'auto' },
      store: false,
      stream: true,
      include: ['reasoning.encrypted_content'],
      prompt_cache_key: '019ac0de-0000-7000-8000-000000000001',
      text: { verbosity: 'low' },
      max_output_tokens: maxTokens,
      ...(seed === undefined ? {} : { temperature: 1.2, seed }),
      ...(isThinking ? { chat_template_kwargs: { enable_thinking: true } } : {}),
    };
  }
}

function message(role: 'developer' | 'user', ...texts: string[]): ResponseInputItem {
  return { type: 'message', role, content: texts.map((one) => ({ type: 'input_text', text: one })) };
}

/** Returns an item of an answer as the client sends it again: without its id, and with the keys alone that its own types have. */
function sentBack(item: ResponseOutputItem): ResponseInputItem {
  if (item.type === 'message') {
    const content = item.content.flatMap((part) =>
      part.type === 'output_text' ? [{ type: part.type, text: part.text }] : [],
    );
    return { type: 'message', role: 'assistant', content } as unknown as ResponseInputItem;
  }
  if (item.type === 'reasoning') {
    const { type, summary, content = [], encrypted_content: encrypted = null } = item;
    const shown = content.length > 0 ? { content } : {};
    return { type, summary, ...shown, encrypted_content: encrypted } as ResponseInputItem;
  }
  if (item.type === 'function_call') {
    const { type, name, arguments: json, call_id: id, namespace } = item;
    return { type, name, ...(namespace === undefined ? {} : { namespace }), arguments: json, call_id: id };
  }
  if (item.type === 'custom_tool_call') {
    const { type, call_id: id, name, input } = item;
    return { type, call_id: id, name, input };
  }
  throw new Error(`${item.type} does not come from this server`);
}

/** Returns the output of a call; empty for other items. */
function outputOf(item: ResponseOutputItem): ResponseInputItem[] {
  if (item.type === 'custom_tool_call') {
    const output = '{"output":"Success. Updated the following files:\\nM src/tide.py\\n","metadata":{"exit_code":0}}';
    return [{ type: 'custom_tool_call_output', call_id: item.call_id, output }];
  }
  if (item.type !== 'function_call') return [];
  const { name, call_id: id } = item;
  const ran = `Chunk ID: 0a1b2c\nWall time: 0.0512 seconds\nProcess exited with code 0\nOutput:\n${listing(4, 800)}\n`;
  const outputs: readonly (readonly [part: string, output: string | { type: 'input_text'; text: string }[]])[] = [
    ['exec_command', ran],
    ['update_plan', 'Plan updated'],
    ['tide', [{ type: 'input_text', text: '{"high": "9:15"}' }]],
    ['weather', '{"sky": "rain", "wind": 5}'],
  ];
  const [, output = `{"error": "unsupported call: ${name}"}`] = outputs.find(([part]) => name.includes(part)) ?? [];
  return [{ type: 'function_call_output', call_id: id, output }];
}
