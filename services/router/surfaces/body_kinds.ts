/** The kinds of bodies of all surfaces, for the threads that read them. */
import type { BodyKind, PromptBodyKind } from '../api/body_kind.ts';
import { messageCountKind, messageKind } from './anthropic/body_kinds.ts';
import { lookupKind } from './lookup/body_kind.ts';
import {
  chatKind,
  completionKind,
  detokenizeKind,
  embeddingKind,
  invocationKind,
  tokenizeKind,
} from './openai/body_kinds.ts';
import { responseKind } from './responses/body_kind.ts';

/** Kinds of bodies with prompts. The cast holds since a kind is given the bodies only that it has read itself. */
export const promptBodyKinds = [
  chatKind,
  completionKind,
  embeddingKind,
  invocationKind,
  responseKind,
  messageKind,
  messageCountKind,
  lookupKind,
] as readonly PromptBodyKind[];

/** Kinds of all bodies. */
export const bodyKinds: readonly BodyKind[] = [...promptBodyKinds, tokenizeKind, detokenizeKind];
