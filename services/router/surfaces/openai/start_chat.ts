/** Starts a chat, in the form of any API that is translated into one. */
import { scopeNumber } from '../../../../shared/kv/format.ts';
import type { CallForm, TextRule } from '../../../../shared/text/grammar/text_rule.ts';
import type { AnswerRuns } from '../../api/parsed_deltas.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { constraintOf } from '../../api/constraints.ts';
import type { ConstraintWish } from '../../api/generation_body.ts';
import { generationOf } from '../../api/new_generation.ts';
import { ParsedChoice } from '../../api/parsed_choice.ts';
import { refuseTooMany } from '../../api/prompt_logprobs.ts';
import { reserveTokens } from '../../api/reserved_tokens.ts';
import { startSamples } from '../../api/samples.ts';
import type { SurfaceRequest } from '../../api/surface.ts';
import { truncated } from '../../api/truncation.ts';
import type { Generation } from '../../relay/generation.ts';
import type { ChatBody } from './parameters.ts';
import { toolRule } from './tool_grammar.ts';
import { schemasOf } from './tools.ts';

/** A chat under way: one run per sample. */
export interface StartedChat<B extends ChatBody = ChatBody> extends AnswerRuns {
  readonly body: B;
  readonly parser: NonNullable<AnswerRuns['parser']>;
}

/**
 * Starts a chat whose body has been read, in the form of any endpoint. With `isCapped` an output for which the context has no room is
 * shortened to what fits; without it, it is refused. @throws Failure when the request is refused
 */
export async function startChat<B extends ChatBody>(
  request: SurfaceRequest<B>,
  isCapped = false,
): Promise<StartedChat<B>> {
  const { context, scope, trace, bodyBytes, body, prompts, prefix } = request;
  const { maxTokens, truncation } = body;
  const [encoded] = prompts ?? [];
  const prompt = encoded
    ? { ids: encoded, prefix: prefix ?? '' }
    : await context.codec.chatPrompt(body.template, bodyBytes, scope, {
        cutSide: truncation?.side,
        answerScope: scopeNumber(body.cacheScope),
      });
  const limits = { maxModelLen: context.maxModelLen(), maxTokens, usualTokens: 1 };
  const promptTokens = truncated(prompt.ids, truncation, limits);
  trace.emit({ kind: 'read', facts: { promptTokens: promptTokens.length } });
  const calls = toolRule(body.tools, context.output.rules.callForm, body.constraint?.rule);
  const constraint = await constraintOf(
    context,
    chatConstraint(context, body, calls, prompt.prefix),
    body.numSamples,
    scope,
  );
  const generation = parsedGeneration(
    context,
    body,
    generationOf(
      request,
      promptTokens,
      isCapped ? capped(maxTokens, limits, promptTokens) : maxTokens,
      'messages',
      constraint,
    ),
  );
  refuseTooMany(promptTokens.length * (1 + body.numPromptLogprobs), 'prompt_logprobs');
  await reserveTokens(context, scope, [{ trace, generation }], body.numSamples);
  const runs = startSamples(context, scope, { trace, generation, echo: undefined }, body.numSamples);
  return { context, body, runs, parser: parserOf(context, body, prompt.prefix, calls?.form) };
}

function parserOf(
  { output, newId }: ApiContext,
  body: ChatBody,
  prefix: string,
  enforced: CallForm | undefined,
): StartedChat['parser'] {
  const { tools } = body;
  return (trace) => {
    const parser = output.parser({
      enforced,
      prefix,
      newId,
      tools: schemasOf(tools),
      isParallel: tools.isParallel,
      hasTools: hasTools(body),
    });
    return parser && new ParsedChoice(parser, trace, output.hasReasoning);
  };
}

/** Returns the constraints of a chat's answer: its rule is for what comes after the reasoning. */
function chatConstraint(
  { output }: ApiContext,
  { constraint }: ChatBody,
  calls: TextRule | undefined,
  prefix: string,
): ConstraintWish | undefined {
  const rule = calls ?? constraint?.rule;
  if (!rule) return constraint;
  return {
    allowedTokenIds: undefined,
    badWords: [],
    ...constraint,
    rule: { ...rule, ...output.rules.frame(prefix) },
  };
}

/** Returns the new tokens that are asked for, at most what the context has room for, and at least one. */
function capped(
  maxTokens: number | undefined,
  { maxModelLen }: { readonly maxModelLen: number },
  { length }: Uint32Array,
): number | undefined {
  return maxTokens === undefined ? undefined : Math.max(1, Math.min(maxTokens, maxModelLen - length));
}

function hasTools({ tools: { tools } }: ChatBody): boolean {
  return tools.length > 0;
}

/** Makes the markers of the output's format visible in its text, where a parser reads them. */
function parsedGeneration({ output }: ApiContext, body: ChatBody, generation: Generation): Generation {
  const hiddenTokens = body.isSkippingSpecial ? output.hiddenTokens(hasTools(body)) : undefined;
  return { ...generation, text: { ...generation.text, hiddenTokens } };
}
