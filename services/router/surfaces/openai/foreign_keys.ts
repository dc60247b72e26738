/**
 * Request keys of other servers, as of November 2026: llama.cpp (L), SGLang (S), Text Generation Inference (T) and Ollama (O). A client
 * that sends one means something by it, so it is refused by name, unless its value is neutral, or it changes no answer.
 *
 * Sources, each at the commit that was read:
 *   ggml-org/llama.cpp  tools/server/server-schema.cpp @0177c34227eb, server-task.cpp @00efb3e18426, server-common.cpp @006639c3ff51,
 *                       server-chat.cpp @03eb25f39343, README.md @00dc8057ab28
 *   sgl-project/sglang  python/sglang/srt/entrypoints/openai/protocol.py @004c82e07d87, managers/io_struct.py @001067fffe33,
 *                       sampling/sampling_params.py @00c17cafcb9e
 *   huggingface/text-generation-inference  router/src/lib.rs @db931fcf42da
 *   huggingface/transformers  generation/configuration_utils.py (H); Alibaba's DashScope (D) and Google's Gemini (G) API references
 *   ollama/ollama  api/types.go, openai/openai.go, parser/parser.go, docs/api.md @fb3076099687
 */
import { ParameterFailure } from '../../api/parameter_failure.ts';
import { isNeutral, isObject } from '../../api/neutral_value.ts';

/**
 * Table of foreign keys. Each entry lists the servers that know the key (initials as above), its meaning or our name for it, and
 * neutral values, which request nothing. `null`, an empty text and an empty list are always neutral; an empty object is neutral unless
 * it is a schema (llama.cpp: `{}` is any JSON).
 */
type Table = Readonly<Record<string, readonly [servers: string, what: string, ...neutral: unknown[]]>>;

/** Keys of other servers for features that are not supported here, at both endpoints. */
const refused: Table = {
  format: ['O', 'JSON, or a JSON schema, that the text must follow'],
  stop_regex: ['S', 'stop at a regular expression'],
  n_indent: ['L', 'a least indentation of every line', 0],
  t_max_predict_ms: ['L', 'end the generation after so many milliseconds', 0, -1],
  custom_logit_processor: ['S', "a program of the client's over the logits"],
  custom_params: ['S', 'parameters of a custom logit processor'],
  dry_multiplier: ['L', 'the DRY repetition penalty', 0],
  xtc_probability: ['L', 'the XTC sampler', 0],
  mirostat: ['LO', 'Mirostat sampling', 0],
  typical_p: ['LOT', 'locally typical sampling', 1],
  tfs_z: ['L', 'tail-free sampling', 1],
  top_n_sigma: ['L', 'the top-n-sigma sampler', -1, 0],
  dynatemp_range: ['L', 'a dynamic temperature', 0],
  adaptive_target: ['L', 'the adaptive-p sampler', -1],
  min_keep: ['L', 'a least number of candidates after the samplers', 0, 1],
  samplers: ['L', 'which samplers, in which order'],
  repeat_last_n: ['LO', 'the window of the penalties', -1],
  penalize_nl: ['LO', 'whether line ends are penalised', true],
  penalize_newline: ['LO', 'whether line ends are penalised', true],
  beam_width: ['S', 'beam search', 1, 0],
  watermark: ['T', 'a watermark in the text', false],
  lora: ['L', 'LoRA adapters with scales'],
  lora_path: ['S', 'a LoRA adapter'],
  lora_id: ['S', 'a LoRA adapter'],
  adapter_id: ['T', 'a LoRA adapter'],
  session_params: ['S', 'continue a session that the server keeps; changes the prompt'],
  context: ['O', 'token ids of an earlier answer as the beginning of the prompt'],
  previous_response_id: ['L', 'continue an earlier answer (Responses API)'],
  background: ['S', 'answer later (Responses API)', false],
  images: ['O', 'images for the model'],
  image_data: ['S', 'images, video or audio for the model'],
  video_data: ['S', 'images, video or audio for the model'],
  audio_data: ['S', 'images, video or audio for the model'],
  input_embeds: ['S', 'embeddings in place of tokens'],
  positional_embed_overrides: ['S', 'embeddings in place of tokens'],
  multi_item_delimiter_indices: ['S', 'scoring of several items'],
  bootstrap_host: ['S', "another router's transfer of KV between SGLang instances"],
  bootstrap_port: ['S', "another router's transfer of KV between SGLang instances"],
  bootstrap_room: ['S', "another router's transfer of KV between SGLang instances"],
  bootstrap_pair_key: ['S', "another router's transfer of KV between SGLang instances"],
  decode_tp_size: ['S', "another router's transfer of KV between SGLang instances"],
  template: ['O', 'a prompt template of its own'],
  input_prefix: ['L', 'fill in the middle (/infill)'],
  input_suffix: ['L', 'fill in the middle (/infill)'],
  input_extra: ['L', 'fill in the middle (/infill)'],
  tool_prompt: ['T', 'a text before the tools'],
  task: ['S', "a model's quick task (DeepSeek-V4)"],
  options: ['O', 'settings in an object of their own'],
  parameters: ['T', 'settings in an object of their own'],
  sampling_params: ['S', 'settings in an object of their own'],
  _debug_render_only: ['O', 'the rendered prompt in place of an answer', false],
  chat_format: ['L', "llama.cpp's parser of the answer, by number", 0],
  chat_parser: ['L', "llama.cpp's parser of the answer, or text it begins with; the server sets them for itself"],
  generation_prompt: ['L', "llama.cpp's parser of the answer, or text it begins with; the server sets them for itself"],
  parse_tool_calls: ['L', 'tool calls left in the text', true],
  thinking: ['L', 'thinking on or off, with a budget (Anthropic form)', false],
  think: ['O', 'thinking on, off or how much', false, 'none'],
  reasoning_format: [
    'L',
    'the thinking left in the text; start the router with --reasoning-parser none',
    'auto',
    'deepseek',
  ],
  reasoning_control: ['L', 'end the thinking by another call', false],
  reasoning_budget_tokens: ['L', 'a budget of thinking', -1],
  thinking_budget_tokens: ['L', 'a budget of thinking', -1],
  thinking_forced_open: ['L', 'how llama.cpp reads the thinking; mostly set by the server itself', false],
  reasoning_in_content: ['L', 'how llama.cpp reads the thinking; mostly set by the server itself', false],
  reasoning_budget_arm_immediately: ['L', 'how llama.cpp reads the thinking; mostly set by the server itself', false],
  max_thinking_tokens: ['S', 'a budget of thinking'],
  require_reasoning: ['S', 'thinking, by force', false],
  separate_reasoning: ['S', 'the thinking left in the text; start the router with --reasoning-parser none', true],
  return_hidden_states: ['S', 'hidden states in the answer', false],
  return_routed_experts: ['S', 'inner values of the model in the answer', false],
  return_indexer_topk: ['S', 'inner values of the model in the answer', false],
  return_entropy: ['S', 'inner values of the model in the answer', false],
  return_sampling_mask: ['S', 'inner values of the model in the answer', false],
  return_flat_raw_top_logprobs: ['S', 'inner values of the model in the answer', false],
  return_flat_raw_top_logprobs_b64: ['S', 'inner values of the model in the answer', false],
  routed_experts_start_len: ['S', 'from where routed experts are returned', 0],
  return_meta_info: ['S', "SGLang's meta_info in the answer", false],
  return_bytes: ['S', 'bytes in the answer (internal)', false],
  token_ids_logprob: ['S', 'log-probabilities of tokens that the request names'],
  post_sampling_probs: ['L', 'probabilities after the samplers in place of log-probabilities', false],
  response_fields: ['L', 'only some fields of the answer'],
  details: ['T', 'details of the generation in the answer', false],
  no_logs: ['S', 'that nothing of the request is logged', false],
  no_repeat_ngram_size: ['H', 'that no run of tokens comes twice', 0],
  num_beams: ['H', 'beam search', 1, 0],
  stop_strings: ['H', 'texts that end the answer (stop)'],
  thinking_budget: ['D', 'a budget of thinking', -1],
  reasoning_budget: ['L', 'a budget of thinking', -1],
  response_schema: ['G', 'a JSON schema that the text must follow'],
  responseSchema: ['G', 'a JSON schema that the text must follow'],
};

/** Unsupported keys at `/v1/chat/completions` only. */
const refusedByChat: Table = {
  raw: ['O', 'no template over the prompt', false],
  suffix: ['O', 'fill in the middle'],
  prompt: ['LO', 'a text prompt besides messages'],
  input_ids: ['S', 'token ids in place of messages'],
  return_full_text: ['T', 'the prompt before the answer', false],
};

/** Unsupported keys at `/v1/completions` only. */
const refusedByCompletions: Table = {
  modalities: ['S', 'what kind the images are', ['text']],
  messages: ['O', 'a chat, at the completions endpoint'],
  reasoning: ['LOS', 'how much thinking ({effort, enabled})', { effort: 'none' }, { enabled: false }],
};

/** Parameters that are honoured under another name, at both endpoints. */
const renamed: Table = {
  n_cmpl: ['L', 'n', 1],
  n_predict: ['L', 'max_tokens', -1],
  num_predict: ['O', 'max_tokens', -1],
  max_new_tokens: ['ST', 'max_tokens'],
  max_output_tokens: ['L', 'max_tokens'],
  min_new_tokens: ['S', 'min_tokens', 0],
  repeat_penalty: ['LO', 'repetition_penalty', 1],
  sampling_seed: ['S', 'seed'],
  do_sample: ['T', 'temperature', true],
  stop_sequences: ['L', 'stop'],
  no_stop_trim: ['S', 'include_stop_str_in_output', false],
  n_probs: ['L', 'logprobs', 0],
  return_logprob: ['S', 'logprobs', false],
  logprob_start_len: ['S', 'prompt_logprobs', -1],
  decoder_input_details: ['T', 'prompt_logprobs', false],
  return_tokens: ['L', 'return_token_ids', false],
  return_prompt_token_ids: ['S', 'return_token_ids', false],
  extra_key: ['S', 'cache_salt'],
  truncate: ['OT', 'truncate_prompt_tokens', false],
};

/** Keys at `/v1/chat/completions` only, whose parameter has another name here. */
const renamedByChat: Table = {
  top_logprobs_num: ['S', 'top_logprobs', 0],
  top_n_tokens: ['T', 'top_logprobs', 0],
  inputs: ['T', 'messages'],
  text: ['S', 'messages'],
  input: ['L', 'messages'],
  system: ['LO', 'messages'],
  instructions: ['L', 'messages'],
  reasoning: ['LOS', 'reasoning_effort', { effort: 'none' }, { enabled: false }],
};

/** Keys at `/v1/completions` only, whose parameter has another name here. */
const renamedByCompletions: Table = {
  max_completion_tokens: ['L', 'max_tokens'],
  top_logprobs_num: ['S', 'logprobs', 0],
  top_logprobs: ['O', 'logprobs', 0],
  top_n_tokens: ['T', 'logprobs', 0],
  return_full_text: ['T', 'echo', false],
  inputs: ['T', 'prompt'],
  text: ['S', 'prompt'],
  input: ['L', 'prompt'],
  input_ids: ['S', 'prompt'],
  system: ['LO', 'prompt'],
  instructions: ['L', 'prompt'],
};

const hints: ReadonlySet<string> = new Set(
  (
    'adaptive_decay backend_sampling cache_prompt conversation_id custom_labels data_parallel_rank ' +
    'disagg_prefill_dp_rank draft_num_predict dry_allowed_length dry_base dry_penalty_last_n ' +
    'dry_sequence_breakers dynatemp_exponent external_trace_header f16_kv grammar_lazy grammar_triggers ' +
    'grammar_type id_slot image_max_dynamic_patch images_config keep_alive kv_router_hint log_metrics ' +
    'low_vram main_gpu max_dynamic_patch min_dynamic_patch mirostat_eta mirostat_tau mm_content_hashes ' +
    'mm_hashes n_cache_reuse n_discard n_keep ngram_corpus_id num_batch num_ctx num_gpu num_keep ' +
    'num_thread numa preserved_tokens reasoning_budget_end_tag reasoning_budget_end_tags ' +
    'reasoning_budget_message reasoning_budget_start_tag return_cached_tokens_details return_progress ' +
    'return_text_in_logprobs rid routed_dp_rank routing_key shift sse_ping_interval stream_reasoning ' +
    'timings_per_token use_audio_in_video use_mlock use_mmap verbose video_config video_max_dynamic_patch ' +
    'xtc_threshold'
  ).split(' '),
);

/** Names that no server reads, and clients send by mistake. */
const misplaced: Readonly<Record<string, string>> = {
  enable_thinking: 'put it into chat_template_kwargs',
  extra_body: 'put its keys next to the others: the openai client does so with its argument of that name',
};

/** Whether a key changes no output: a listed hint, or an option of speculative decoding, which changes only how fast tokens come. */
const isHint = (key: string): boolean => hints.has(key) || key.startsWith('speculative.');

/** Endpoint that generates tokens. */
export type GeneratingEndpoint = 'chat' | 'completion';

/** Tables whose keys are looked for at an endpoint. */
const tables: Readonly<Record<GeneratingEndpoint, { readonly refused: Table; readonly renamed: Table }>> = {
  chat: { refused: { ...refused, ...refusedByChat }, renamed: { ...renamed, ...renamedByChat } },
  completion: {
    refused: { ...refused, ...refusedByCompletions },
    renamed: { ...renamed, ...renamedByCompletions },
  },
};

/** Keys whose value is a schema, where an empty object still asks for JSON. */
const schemas: readonly string[] = ['format'];

function asksForNothing(key: string, value: unknown, neutral: readonly unknown[]): boolean {
  // Anthropic's form, whatever stands next to it.
  if (key === 'thinking' && isObject(value) && value['type'] === 'disabled') return true;
  return isNeutral(value, ['', [], ...(schemas.includes(key) ? [] : [{}]), ...neutral]);
}

/**
 * Whether a key belongs to another server and its value asks for nothing. Returns false for a key that is in no table.
 * @throws ParameterFailure for a key of another server whose value asks for something
 */
export function isForeign(endpoint: GeneratingEndpoint, key: string, value: unknown): boolean {
  const place = misplaced[key];
  if (place !== undefined && Object.hasOwn(misplaced, key)) throw new ParameterFailure(`${key}: ${place}`, key);
  if (isHint(key) || (endpoint === 'completion' && key === 'raw')) return true;
  const { refused: asked, renamed: named } = tables[endpoint];
  const found = Object.hasOwn(asked, key) ? asked[key] : Object.hasOwn(named, key) ? named[key] : undefined;
  if (!found) return false;
  const [, what, ...neutral] = found;
  if (asksForNothing(key, value, neutral)) return true;
  throw new ParameterFailure(
    Object.hasOwn(asked, key)
      ? `${key}: is not supported (${what}); leave it out`
      : `${key}: is called ${what} here; send that instead`,
    key,
  );
}
