/**
 * JSON schemas of the parameters that body_parts.ts reads, for the description of the API: to zod they are unknown, because a loop
 * checks them faster.
 */

const ids = { type: 'array', items: { type: 'integer', minimum: 0 } };
const textPart = {
  type: 'object',
  required: ['type', 'text'],
  properties: { type: { enum: ['text', 'input_text', 'output_text'] }, text: { type: 'string' } },
};

/** Schema of `messages`. */
export const messagesShape = {
  type: 'array',
  minItems: 1,
  items: {
    type: 'object',
    required: ['role'],
    properties: {
      role: { type: 'string', description: 'A role of the chat template: system, user, assistant, ...' },
      content: { anyOf: [{ type: 'string' }, { type: 'array', items: textPart }, { type: 'null' }] },
    },
  },
};

/** Schema of `prompt` of a completion. */
export const promptShape = {
  anyOf: [
    { type: 'string' },
    { ...ids, minItems: 1 },
    { type: 'array', minItems: 1, items: { anyOf: [{ type: 'string' }, { ...ids, minItems: 1 }] } },
  ],
};

/** Schema of `tokens`. */
export const tokensShape = ids;

/** Schema of `logit_bias`. */
export const biasShape = {
  type: 'object',
  description: 'Biases by token id',
  propertyNames: { pattern: '^\\d+$' },
  additionalProperties: { type: 'number', minimum: -100, maximum: 100 },
};
