/** All endpoints of the API: whoever adds one adds a line here. */
import type { BodyKind } from '../api/body_kind.ts';
import type { Surface } from '../api/surface.ts';
import { countSurface, messageSurface } from './anthropic/messages.ts';
import { lookupSurface } from './lookup/lookup.ts';
import { chatSurface } from './openai/chat.ts';
import { completionSurface } from './openai/completions.ts';
import { embeddingSurface } from './openai/embeddings.ts';
import { invocationSurface } from './openai/invocations.ts';
import { detokenizeSurface, templateSurface, tokenizeSurface } from './openai/token_endpoints.ts';
import { responseSurface } from './responses/responses.ts';

/** Endpoints in the order in which they are listed. The first one's form of errors is that of paths that are none. The cast holds since a surface is given the bodies and the state only that it has made itself. */
export const surfaces = [
  chatSurface,
  completionSurface,
  embeddingSurface,
  responseSurface,
  messageSurface,
  countSurface,
  invocationSurface,
  tokenizeSurface,
  detokenizeSurface,
  templateSurface,
  lookupSurface,
] as readonly Surface[];

/** Kinds of the bodies of all endpoints, for the threads that read them. */
export const bodyKinds: readonly BodyKind[] = [...new Set(surfaces.map(({ kind }) => kind))];
