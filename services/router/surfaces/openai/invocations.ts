/** `/invocations`, the one path that SageMaker calls: a chat or a completion, by its body. */
import type { Surface } from '../../api/surface.ts';
import { invocationKind } from './body_kinds.ts';
import { answerChat } from './chat.ts';
import { answerCompletion } from './completions.ts';
import { openaiErrors } from './errors.ts';
import { openaiEvents } from './events.ts';
import { chatSchema, completionSchema } from './parameter_schemas.ts';
import type { ChatBody, CompletionBody } from './parameters.ts';

/** A chat or a completion. */
export const invocationSurface: Surface<ChatBody | CompletionBody> = {
  paths: ['/invocations'],
  kind: invocationKind,
  counts: 'generation',
  operation: 'chat',
  errors: openaiErrors,
  events: openaiEvents,
  describe: {
    summary: 'Answers a chat or a completion, by its body',
    schemas: { Chat: chatSchema, Completion: completionSchema },
  },
  answer(request) {
    const { body } = request;
    return 'template' in body ? answerChat({ ...request, body }) : answerCompletion({ ...request, body });
  },
};
