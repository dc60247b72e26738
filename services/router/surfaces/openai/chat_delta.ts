/** Parsed answers in the form of the chat API: the deltas of a stream. */
import type { OutputDelta } from '../../../../shared/text/output/output_delta.ts';

type Fields = Readonly<Record<string, unknown>>;

/** Returns the `delta` of a stream's chunk for a piece of an answer. */
export function chunkDelta(delta: OutputDelta): Fields {
  switch (delta.kind) {
    case 'content':
      return { content: delta.text };
    case 'reasoning':
      return { reasoning: delta.text, reasoning_content: delta.text };
    case 'call': {
      const { index, id, name } = delta;
      return { tool_calls: [{ index, id, type: 'function', function: { name, arguments: '' } }] };
    }
    case 'arguments':
      return { tool_calls: [{ index: delta.index, function: { arguments: delta.text } }] };
  }
}
