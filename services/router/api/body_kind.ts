/** Kinds of request bodies, as values: how one is read, and which prompts it has. Threads find a kind by its name. */
import type { CutSide } from '../../../shared/text/prompts.ts';
import type { TemplateInput } from '../../../shared/text/template_input.ts';
import type { BodyLimits } from './parameter_failure.ts';

/** A parsed body of any kind. */
export interface ParsedBody {
  /** Name of the model that the request is for; undefined or empty: the router's first. */
  readonly model: string | undefined;
  /** The client's id of the request; left out by kinds that have none. */
  readonly requestId?: string | undefined;
  /** Unknown keys of the body, which are ignored and named to the client. */
  readonly ignored: readonly string[];
}

/** A kind of request body. */
export interface BodyKind<B extends ParsedBody = ParsedBody> {
  readonly name: string;
  /** Fields that it reads before a schema has checked them: its prompts, in whatever form. Its surface's schemas must have them. */
  readonly fields?: readonly string[];
  /** Parses and validates a body. @throws ParameterFailure naming the refused parameter */
  read(bytes: Uint8Array, limits: BodyLimits): B;
}

/** The prompts of a body: one chat, or texts and lists of token ids. */
export interface BodyPrompts<B extends ParsedBody = ParsedBody> {
  readonly source:
    | { readonly template: TemplateInput }
    | { readonly texts: readonly (string | Uint32Array)[]; readonly addSpecialTokens: boolean };
  /** Side on which prompts are cut afterwards; undefined: they are not. */
  readonly cutSide: CutSide | undefined;
  /** Number of the scope of which generated tokens may stand for turns of the prompts; undefined: none may. */
  readonly answerScope: bigint | undefined;
  /** Whether the answer repeats the prompts. */
  readonly isEchoing: boolean;
  /** Returns the body without the text and ids of its prompts, which are not needed after encoding; of a prompt only its kind is left. */
  withoutText(): B;
}

/** A kind of request body that has prompts. */
export interface PromptBodyKind<B extends ParsedBody = ParsedBody> extends BodyKind<B> {
  /** Returns the prompts of a body; undefined where the thread that read it cannot know all of them. */
  prompts(body: B): BodyPrompts<B> | undefined;
  /** Field that may have token ids; left out: none has. */
  readonly idsField?: string;
}

/** Whether a kind of body has prompts. */
export function hasPrompts(kind: BodyKind): kind is PromptBodyKind {
  return 'prompts' in kind;
}
