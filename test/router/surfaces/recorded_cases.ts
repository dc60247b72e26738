/** Requests whose answers are recorded, with what the instances generate for them. A case is in the file of its name under recorded/. */

/** A request, and what the instances generate for it. */
export interface RecordedCase {
  readonly path: string;
  /** The body without `model` and `stream`; whole answers are asked for without `stream_options`. */
  readonly body: Readonly<Record<string, unknown>>;
  /** Texts of the samples of each prompt, a shorter prompt first. An end token follows each. */
  readonly outputs: readonly string[];
  /** Whether no end token follows, so that the instance fails after the text. */
  readonly isBroken?: true;
  /** Tokens of a sequence in one message of the instance; default: 1. */
  readonly perMessage?: number;
  /** Forms of the answer that are recorded; default: both. */
  readonly forms?: readonly ('whole' | 'stream')[];
}

type Body = RecordedCase['body'];
type More = Omit<RecordedCase, 'path' | 'body' | 'outputs'>;

const caseAt =
  (path: string, prompt: Body) =>
  (body: Body, outputs: string | readonly string[], more: More = {}): RecordedCase => ({
    path,
    body: { ...prompt, ...body },
    outputs: typeof outputs === 'string' ? [outputs] : outputs,
    ...more,
  });

const asked = { messages: [{ role: 'user', content: 'Is the harbour open?' }] };
/** Returns a case of chats. */
export const chat = caseAt('/v1/chat/completions', asked);
const completion = caseAt('/v1/completions', { prompt: 'The harbour' });
const response = caseAt('/v1/responses', { input: 'Is the harbour open?' });
const message = caseAt('/v1/messages', { ...asked, max_tokens: 200 });
const refused = { model: 'nobody' };

const OPEN = 'The harbour is open.';
/** Characters of two, three and four bytes, of which the vocabulary has no token. */
const HALVES = 'Né 潮汐 😀!';
const THOUGHT = '<think>\nI look at 潮.\n</think>\n\nIt is open.';
const CALL = '<tool_call>\n{"name": "tide", "arguments": {"place": "mill", "days": 2}}\n</tool_call>';
const OTHER_CALL = '<tool_call>\n{"name": "save", "arguments": {"text": "a 😀"}}\n</tool_call>';
const JSON_TEXT = '{"open": true, "why": "潮"}';

const tideSchema = { type: 'object', properties: { place: { type: 'string' }, days: { type: 'integer' } } };
const saveSchema = { type: 'object', properties: { text: { type: 'string' } } };
const openSchema = {
  type: 'object',
  properties: { open: { type: 'boolean' }, why: { type: 'string' } },
  required: ['open', 'why'],
  additionalProperties: false,
};
const named = [
  { name: 'tide', parameters: tideSchema },
  { name: 'save', parameters: saveSchema },
] as const;
/** Tools in the form of chats. */
export const tools = named.map((one) => ({ type: 'function', function: one }));
const flatTools = named.map((one) => ({ type: 'function', ...one }));
const messageTools = named.map(({ name, parameters }) => ({ name, input_schema: parameters }));
/** Lets the repository's model think. */
export const thinking = { chat_template_kwargs: { enable_thinking: true } };
const schemaFormat = { type: 'json_schema', json_schema: { name: 'harbour', schema: openSchema } };
const usage = { stream_options: { include_usage: true } };
const stream = { forms: ['stream'] } as const;
const whole = { forms: ['whole'] } as const;

const chats: Readonly<Record<string, RecordedCase>> = {
  plain: chat({}, OPEN),
  usage: chat(usage, OPEN),
  usage_of_each_event: chat({ stream_options: { include_usage: true, continuous_usage_stats: true } }, OPEN, stream),
  no_text: chat({}, ''),
  length: chat({ max_tokens: 3 }, OPEN),
  one_token: chat({ max_tokens: 1 }, OPEN),
  stop: chat({ stop: ['our is o', 'never'] }, OPEN),
  stop_included: chat({ stop: 'our is o', include_stop_str_in_output: true }, OPEN),
  stop_begun: chat({ stop: ['open. Not', 'open.!'] }, OPEN),
  stop_begun_at_length: chat({ stop: ['is op!'], max_tokens: 5 }, OPEN),
  stop_after_min_tokens: chat({ stop: 'o', min_tokens: 4 }, OPEN),
  stop_in_half_characters: chat({ stop: '汐 😀' }, HALVES),
  stop_token: chat({ stop_token_ids: [291] }, OPEN),
  stop_token_included: chat({ stop_token_ids: [291], include_stop_str_in_output: true }, OPEN),
  half_characters: chat({}, HALVES),
  half_character_at_length: chat({ max_tokens: 5 }, HALVES),
  half_characters_with_logprobs: chat({ logprobs: true, top_logprobs: 2 }, HALVES),
  logprobs: chat({ logprobs: true, top_logprobs: 3 }, OPEN),
  logprobs_without_top: chat({ logprobs: true }, OPEN),
  logprobs_with_stop: chat({ logprobs: true, top_logprobs: 1, stop: 'our is o' }, OPEN),
  logprobs_by_id: chat({ logprobs: true, top_logprobs: 1, return_tokens_as_token_ids: true }, 'Né 😀'),
  token_ids: chat({ return_token_ids: true }, 'It is 😀.'),
  prompt_logprobs: chat({ prompt_logprobs: 1 }, OPEN, whole),
  ignore_eos: chat({ ignore_eos: true, max_tokens: 9 }, 'Yes.<|im_end|> And no, never, not at all.'),
  special_tokens: chat({ ignore_eos: true, max_tokens: 4 }, 'Yes<|im_start|>, so.'),
  special_tokens_shown: chat({ skip_special_tokens: false }, 'Yes<|im_start|>, so.'),
  two_samples: chat({ n: 2 }, [OPEN, 'No, not now.']),
  three_samples: chat({ n: 3, ...usage, logprobs: true, top_logprobs: 1 }, [OPEN, 'No.', 'It is not open now.']),
  samples_with_half_characters: chat({ n: 2 }, [HALVES, OPEN], whole),
  samples_in_few_messages: chat({ n: 2 }, [OPEN, 'No, not now.'], { perMessage: 3, ...whole }),
  reasoning: chat(thinking, THOUGHT),
  reasoning_without_text: chat(thinking, '<think>\nI look.\n</think>'),
  reasoning_left_out: chat({ ...thinking, include_reasoning: false }, THOUGHT),
  reasoning_cut: chat({ ...thinking, max_tokens: 6 }, THOUGHT),
  reasoning_with_logprobs: chat({ ...thinking, logprobs: true, top_logprobs: 1, ...usage }, THOUGHT),
  reasoning_and_call: chat({ ...thinking, tools }, `<think>\nI look.\n</think>\n\n${CALL}`),
  call: chat({ tools }, CALL),
  text_and_calls: chat({ tools }, `I look 😀.\n${CALL}\n${OTHER_CALL}`),
  calls_with_logprobs: chat({ tools, logprobs: true, top_logprobs: 1 }, CALL),
  calls_with_ids: chat({ tools, return_token_ids: true }, CALL),
  call_required: chat({ tools, tool_choice: 'required' }, CALL),
  call_named: chat({ tools, tool_choice: { type: 'function', function: { name: 'save' } } }, OTHER_CALL),
  call_alone: chat({ tools, parallel_tool_calls: false }, `${CALL}\n${OTHER_CALL}`),
  call_cut: chat({ tools, max_tokens: 24 }, CALL),
  call_with_stop: chat({ tools, stop: 'ill' }, CALL),
  call_broken: chat({ tools }, 'See <tool_call>\n{"name": "tide", "arg'),
  calls_of_two_samples: chat({ tools, n: 2 }, [`Now.\n${CALL}`, OTHER_CALL], whole),
  calls_in_few_messages: chat({ tools }, `I look 😀.\n${CALL}\n${OTHER_CALL}`, { perMessage: 4 }),
  no_tools_chosen: chat({ tools, tool_choice: 'none' }, OPEN),
  schema: chat({ response_format: schemaFormat }, JSON_TEXT),
  json_object: chat({ response_format: { type: 'json_object' } }, JSON_TEXT),
  choice: chat({ guided_choice: ['open', 'shut'] }, 'shut'),
  schema_after_reasoning: chat(
    { ...thinking, response_format: schemaFormat },
    `<think>\nHm.\n</think>\n\n${JSON_TEXT}`,
  ),
  continued: chat(
    {
      messages: [...asked.messages, { role: 'assistant', content: 'It is' }],
      add_generation_prompt: false,
      continue_final_message: true,
    },
    ' open.',
  ),
  failure: chat({}, 'The harbour', { isBroken: true }),
  failure_in_call: chat({ tools }, CALL.slice(0, 40), { isBroken: true }),
  failure_before_text: chat({}, '', { isBroken: true }),
  failure_of_samples: chat({ n: 2 }, [OPEN, OPEN], { isBroken: true, ...whole }),
  few_messages: chat({}, HALVES, { perMessage: 3 }),
  one_message: chat({ logprobs: true, top_logprobs: 1 }, OPEN, { perMessage: 1_000 }),
  stop_in_one_message: chat({ stop: 'our is o', ...usage }, OPEN, { perMessage: 1_000 }),
  unknown_key: chat({ colour: 'blue' }, OPEN),
  refused_parameter: chat({ temperature: 3 }, []),
  refused_model: chat(refused, []),
};

const prompts = [[5], [5, 6], [5, 6, 7]];
const ids = { ...usage, return_token_ids: true };
const completions: Readonly<Record<string, RecordedCase>> = {
  plain: completion({}, ' is open.'),
  usage: completion(usage, ' is open.'),
  ids: completion({ prompt: [5, 6, 7], ...ids }, ' is 😀.'),
  length: completion({ max_tokens: 3 }, OPEN),
  one_token: completion({ max_tokens: 1 }, OPEN),
  stop: completion({ stop: 'our is o' }, OPEN),
  stop_included: completion({ stop: 'our is o', include_stop_str_in_output: true, logprobs: 1 }, OPEN),
  stop_begun: completion({ stop: ['open. Not'] }, OPEN),
  ignore_eos: completion({ ignore_eos: true, max_tokens: 5 }, ' is.<|im_end|> And no, never.'),
  half_characters: completion({}, HALVES),
  half_character_at_length: completion({ max_tokens: 4 }, ' 😀'),
  logprobs: completion({ logprobs: 2 }, OPEN),
  logprobs_without_top: completion({ logprobs: 0 }, OPEN),
  logprobs_with_half_characters: completion({ logprobs: 2, stop: '😀' }, HALVES),
  logprobs_by_id: completion({ logprobs: 1, return_tokens_as_token_ids: true }, 'Né 😀'),
  prompt_logprobs: completion({ prompt_logprobs: 2 }, ' is open.', whole),
  echo: completion({ echo: true }, ' is open.'),
  echo_of_ids: completion({ echo: true, prompt: [5, 6, 7] }, ' is open.'),
  echo_with_logprobs: completion({ echo: true, logprobs: 1, prompt: 'The 潮 is' }, ' 😀 in.'),
  echo_alone: completion({ echo: true, max_tokens: 0, logprobs: 1 }, OPEN),
  echo_of_two_samples: completion({ echo: true, logprobs: 1, n: 2 }, [' is open.', ' is not.']),
  two_samples: completion({ n: 2 }, [OPEN, 'No, not now.']),
  two_samples_with_logprobs: completion({ n: 2, logprobs: 1, ...usage }, [OPEN, 'No, not now.']),
  best_of: completion({ n: 2, best_of: 3 }, [OPEN, 'No.', 'It is not.'], whole),
  prompts: completion({ prompt: prompts, ...usage }, [OPEN, 'No.', 'It is not.']),
  prompts_with_echo: completion({ prompt: ['It', 'The harbour is'], echo: true }, [' is.', ' open.']),
  prompts_and_samples: completion({ prompt: prompts.slice(1), n: 2, ...ids }, [OPEN, 'No.', 'It is not.', 'Yes.']),
  regex: completion({ guided_regex: '[a-z]+' }, 'open'),
  failure: completion({}, ' is', { isBroken: true }),
  failure_before_text: completion({}, '', { isBroken: true }),
  failure_of_prompts: completion({ prompt: prompts.slice(1) }, [OPEN, OPEN], { isBroken: true, ...whole }),
  few_messages: completion({ logprobs: 1 }, HALVES, { perMessage: 3 }),
  one_message: completion({ ...usage, return_token_ids: true }, OPEN, { perMessage: 1_000 }),
  samples_in_few_messages: completion({ n: 2 }, [OPEN, 'No, not now.'], { perMessage: 3 }),
  refused_parameter: completion({ logprobs: 99 }, []),
};

const customTool = { type: 'custom', name: 'note' };
const responses: Readonly<Record<string, RecordedCase>> = {
  plain: response({}, OPEN),
  instructions: response({ instructions: 'Be short.', metadata: { a: 'b' }, store: false }, OPEN),
  no_text: response({}, ''),
  length: response({ max_output_tokens: 3 }, OPEN),
  one_token: response({ max_output_tokens: 1 }, OPEN),
  stop: response({ stop: 'our is o' }, OPEN),
  half_characters: response({}, HALVES),
  logprobs: response({ include: ['message.output_text.logprobs'], top_logprobs: 2 }, HALVES),
  reasoning: response(thinking, THOUGHT),
  reasoning_cut: response({ ...thinking, max_output_tokens: 6 }, THOUGHT),
  reasoning_and_call: response({ ...thinking, tools: flatTools }, `<think>\nI look.\n</think>\n\n${CALL}`),
  text_and_calls: response({ tools: flatTools }, `I look 😀.\n${CALL}\n${OTHER_CALL}`),
  call_required: response({ tools: flatTools, tool_choice: 'required' }, CALL),
  call_named: response({ tools: flatTools, tool_choice: { type: 'function', name: 'save' } }, OTHER_CALL),
  call_cut: response({ tools: flatTools, max_output_tokens: 24 }, CALL),
  custom_call: response(
    { tools: [customTool] },
    '<tool_call>\n{"name": "note", "arguments": {"input": "a 😀"}}\n</tool_call>',
  ),
  schema: response({ text: { format: { type: 'json_schema', name: 'harbour', schema: openSchema } } }, JSON_TEXT),
  failure: response({}, 'The harbour', { isBroken: true }),
  failure_before_text: response({}, '', { isBroken: true }),
  few_messages: response({ tools: flatTools }, `I look 😀.\n${CALL}`, { perMessage: 4 }),
  one_message: response({}, HALVES, { perMessage: 1_000 }),
  refused_parameter: response({ temperature: 3 }, []),
};

const budget = { thinking: { type: 'enabled', budget_tokens: 1_024 } };
const messages: Readonly<Record<string, RecordedCase>> = {
  plain: message({}, OPEN),
  system: message({ system: 'Be short.' }, OPEN),
  no_text: message({}, ''),
  length: message({ max_tokens: 3 }, OPEN),
  one_token: message({ max_tokens: 1 }, OPEN),
  context_window: message({ max_tokens: 4_000 }, OPEN),
  stop: message({ stop_sequences: ['our is o', 'never'] }, OPEN),
  half_characters: message({}, HALVES),
  half_character_at_length: message({ max_tokens: 5 }, HALVES),
  thinking: message(budget, THOUGHT),
  thinking_cut: message({ ...budget, max_tokens: 6 }, THOUGHT),
  thinking_and_call: message({ ...budget, tools: messageTools }, `<think>\nI look.\n</think>\n\n${CALL}`),
  text_and_calls: message({ tools: messageTools }, `I look 😀.\n${CALL}\n${OTHER_CALL}`),
  call_required: message({ tools: messageTools, tool_choice: { type: 'any' } }, CALL),
  call_named: message({ tools: messageTools, tool_choice: { type: 'tool', name: 'save' } }, OTHER_CALL),
  call_cut: message({ tools: messageTools, max_tokens: 24 }, CALL),
  schema: message({ output_config: { format: { type: 'json_schema', schema: openSchema } } }, JSON_TEXT),
  failure: message({}, 'The harbour', { isBroken: true }),
  failure_before_text: message({}, '', { isBroken: true }),
  few_messages: message({ tools: messageTools }, `I look 😀.\n${CALL}`, { perMessage: 4 }),
  one_message: message({}, HALVES, { perMessage: 1_000 }),
  refused_parameter: message({ temperature: 3 }, []),
  count_tokens: caseAt('/v1/messages/count_tokens', asked)({}, [], whole),
};

const others: Readonly<Record<string, RecordedCase>> = {
  invocation_of_chat: caseAt('/invocations', asked)({}, OPEN),
  invocation_of_completion: caseAt('/invocations', { prompt: 'The harbour' })({}, OPEN),
  tokenize: caseAt('/tokenize', { prompt: HALVES })({ return_token_strs: true }, [], whole),
  detokenize: caseAt('/detokenize', { tokens: [70, 71, 90, 1_948] })({}, [], whole),
  template: caseAt('/apply-template', asked)({ tools }, [], whole),
};

/** All cases of the repository's model that calls tools, by the names of their recordings. */
export const recordedCases: Readonly<Record<string, RecordedCase>> = Object.fromEntries(
  Object.entries({ chats, completions, responses, messages, others }).flatMap(([group, cases]) =>
    Object.entries(cases).map(([name, one]) => [`${group}/${name}`, one]),
  ),
);
