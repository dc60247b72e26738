/** Events of OpenAI's streams. */
import { eventStreamType, type EventForm } from '../../api/event_stream.ts';

/** Events of OpenAI's streams, without names. */
export const openaiEvents: EventForm = {
  contentType: eventStreamType,
  event: (value) => `data: ${JSON.stringify(value)}\n\n`,
  keepAlive: ': keep-alive\n\n',
  end: 'data: [DONE]\n\n',
};
