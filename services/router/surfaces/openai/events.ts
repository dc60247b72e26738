/** Events of OpenAI's streams. */
import type { EventForm } from '../../api/event_stream.ts';

/** Events of OpenAI's streams, without names. */
export const openaiEvents: EventForm = {
  event: (value) => `data: ${JSON.stringify(value)}\n\n`,
  keepAlive: ': keep-alive\n\n',
  end: 'data: [DONE]\n\n',
};
