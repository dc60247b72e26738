/** JSON schemas of the parameters of `/v1/responses` that are checked by a loop, for the description of the API. */

const text = { type: 'string' };
const content = {
  anyOf: [text, { type: 'array', items: { type: 'object', required: ['type'], properties: { type: text, text } } }],
};

/** Schema of `input`. */
export const inputShape = {
  anyOf: [
    text,
    {
      type: 'array',
      items: {
        type: 'object',
        properties: {
          type: {
            enum: [
              ...['message', 'function_call', 'function_call_output', 'custom_tool_call', 'custom_tool_call_output'],
              ...['reasoning', 'item_reference', null],
            ],
          },
          id: { type: ['string', 'null'] },
          role: text,
          content: { anyOf: [...content.anyOf, { type: 'null' }] },
          call_id: text,
          name: text,
          arguments: text,
          input: text,
          output: content,
        },
      },
    },
  ],
};
