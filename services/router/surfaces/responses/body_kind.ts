/** Kind of the bodies of `/v1/responses`. */
import type { PromptBodyKind } from '../../api/body_kind.ts';
import { chatPrompts } from '../openai/body_kinds.ts';
import { readResponseBody, type ResponseBody } from './response_parameters.ts';

/** Body of a request for a response. Where it continues another, the main thread alone knows the conversation before it. */
export const responseKind: PromptBodyKind<ResponseBody> = {
  name: 'response',
  fields: ['input'],
  read: readResponseBody,
  prompts: (body) => (body.response.isContinuing ? undefined : chatPrompts(body)),
};
