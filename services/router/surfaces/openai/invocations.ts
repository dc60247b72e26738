/** `/invocations`, the one path that SageMaker calls: a chat or a completion, by its body. */
import { invocationKind } from './body_kinds.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { answerChat } from './chat.ts';
import { answerCompletion } from './completions.ts';
import type { RequestScope } from '../../api/request_scope.ts';

/** Answers a chat or a completion. @throws Failure when the request is refused or cannot be finished. */
export async function invocations(all: ApiContext, scope: RequestScope): Promise<void> {
  const trace = scope.open('/invocations');
  const bodyBytes = scope.body.bytes.length;
  const read = await all.bodies.readPrompts(invocationKind, scope.body, all.of(undefined), scope.signal);
  const { body } = read;
  if ('template' in body) await answerChat(all, scope, trace, bodyBytes, { ...read, body });
  else await answerCompletion(all, scope, trace, { ...read, body });
}
