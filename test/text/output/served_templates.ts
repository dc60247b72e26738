/** Chat templates of the families that the README lists as served: our own, with what those of the families have of calls and reasoning. */
import type { ReasoningFamily } from '../../../shared/text/output/reasoning_tables.ts';
import type { ToolFamily } from '../../../shared/text/output/tool_families.ts';

/** A family of models as the README names it: the format of its calls, that of its reasoning, and what its template has of both. */
export interface Served {
  readonly tools: ToolFamily;
  readonly reasoning?: ReasoningFamily;
  readonly template: string;
  /** Special tokens of its vocabulary, where its template does not tell. */
  readonly tokens?: readonly string[];
}

const HERMES = `{% for c in m.tool_calls %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}`;
const THINK = `{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}`;
const STRIP = `{% if '</think>' in m.content %}{% set content = m.content.split('</think>')[-1] %}{% endif %}`;
const MISTRAL = `[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments }}`;
const QWEN_XML = `<tool_call>\n<function={{ c.function.name }}>\n<parameter={{ k }}>\n{{ v }}\n</parameter>\n</function>\n</tool_call>`;
const DEEPSEEK = `{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\n' + '\`\`\`json' + '\n' + tool['function']['arguments'] }}`;
const KIMI = `<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>`;

/** The families, by the names of their models. */
export const served: Readonly<Record<string, Served>> = {
  'Llama 3.1 and 3.3': {
    tools: 'llama3_json',
    template: `{{ 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}<|python_tag|>`,
  },
  'Llama 3.2': { tools: 'pythonic', template: '[func_name1(params_name1=params_value1)]<|python_tag|>' },
  'Mistral 7B 0.3, Nemo': { tools: 'mistral', template: '{{ "[TOOL_CALLS][" }}{{ c.function | tojson }}]' },
  'Mistral Small, Ministral 3': {
    tools: 'mistral',
    reasoning: 'mistral',
    template: `${MISTRAL}[THINK]{{ t }}[/THINK]`,
  },
  Mixtral: { tools: 'mistral', template: '[TOOL_CALLS][{{ c.function | tojson }}]' },
  'Qwen2 and Qwen2.5': { tools: 'hermes', template: HERMES },
  'Qwen3, Qwen3-MoE, Qwen3-Next': { tools: 'hermes', reasoning: 'think', template: HERMES + THINK },
  'Qwen3.5 and Qwen3.6': { tools: 'qwen3_xml', reasoning: 'think', template: QWEN_XML + THINK },
  'Phi-3 and Gemma 2, 3': { tools: 'json', template: '<|user|>{{ m.content }}<|end|>' },
  'Phi-4-mini': { tools: 'phi4', template: '<|tool|>{{ m.tools }}<|/tool|>' },
  'Gemma 4': { tools: 'gemma4', reasoning: 'gemma4', template: `<|tool_call>call:{{ n }}<|channel>thought\n` },
  'OLMo 2': { tools: 'json', template: '<|assistant|>\n{{ m.content }}' },
  'OLMo 3': { tools: 'pythonic', reasoning: 'think', template: `<function_calls>{{ calls }}</function_calls>${STRIP}` },
  'Granite 3': {
    tools: 'granite',
    reasoning: 'granite',
    template: `respond with <|tool_call|> followed by a JSON list. Write your thoughts between <think></think> and your response between <response></response>.`,
  },
  'Granite 4': { tools: 'hermes', template: HERMES },
  SmolLM3: { tools: 'hermes', reasoning: 'think', template: HERMES + THINK },
  'gpt-oss': {
    tools: 'harmony',
    reasoning: 'harmony',
    template: `<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>`,
  },
  'GLM-4.5 to 4.7, GLM-4.7-Flash': {
    tools: 'glm',
    reasoning: 'think',
    template: `<tool_call>{{ n }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n</tool_call>${THINK}`,
  },
  'DeepSeek-V3 and R1': { tools: 'deepseek_v3', reasoning: 'think', template: DEEPSEEK + STRIP },
  'DeepSeek V3.1': {
    tools: 'deepseek_v31',
    reasoning: 'think',
    template: `{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + n + '<｜tool▁sep｜>' + a + '<｜tool▁call▁end｜>' }}${STRIP}`,
  },
  'DeepSeek V3.2': {
    tools: 'deepseek_v32',
    reasoning: 'think',
    template: `<｜DSML｜function_calls>\n<｜DSML｜invoke name="{{ n }}">{{ v }}</｜DSML｜invoke>${THINK}`,
  },
  'Kimi K2': { tools: 'kimi_k2', template: KIMI },
  'Kimi K2 Thinking': { tools: 'kimi_k2', reasoning: 'think', template: `<think>{{ rc }}</think>${KIMI}` },
  // The first template of Kimi K2 did not write earlier calls.
  'Kimi K2, first template': {
    tools: 'kimi_k2',
    template: '<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>',
    tokens: ['<|im_end|>', '<|tool_calls_section_begin|>'],
  },
  'MiniMax-M2': {
    tools: 'minimax_m2',
    reasoning: 'think',
    template: `<minimax:tool_call>\n<invoke name="{{ n }}">\n<parameter name="{{ k }}">{{ v }}</parameter>${THINK}<response>{{ m.content }}</response>`,
  },
  LFM2: { tools: 'pythonic', template: 'List of tools: <|tool_list_start|>[{{ tools | tojson }}]<|tool_list_end|>' },
  'LFM2.5': {
    tools: 'pythonic',
    reasoning: 'think',
    template: `List of tools: {{ tools | tojson }}${STRIP}`,
    tokens: ['<|tool_call_start|>', '<|tool_call_end|>'],
  },
};

/** The markers around reasoning. */
export const blocks: Readonly<Record<ReasoningFamily, readonly [open: string, close: string]>> = {
  think: ['<think>', '</think>\n\n'],
  deepseek_r1: ['<think>', '</think>\n\n'],
  mistral: ['[THINK]', '[/THINK]'],
  granite: ['Here is my thought process: ', 'Here is my response: '],
  gemma4: ['<|channel>thought\n', '<channel|>'],
  harmony: ['<|channel|>analysis<|message|>', '<|end|><|start|>assistant'],
};
