/** Answers of model servers without a model, to which a peer's router forwards requests. */

/** Body of a whole completion. */
export const wholeCompletion = JSON.stringify({
  id: 'x',
  object: 'text_completion',
  created: 1,
  model: 'ids-only',
  choices: [{ index: 0, text: 'a', finish_reason: 'length', logprobs: null }],
  usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
});

/** Body of the answer to any GET. */
export const serverInfo = JSON.stringify({
  model_path: 'ids-only',
  served_model_name: 'ids-only',
  is_generation: true,
  status: 'ok',
});
