/** `/v1/responses`: a chat whose messages and answer are items, which may be stored and continued by their id. */
import { responseKind } from './body_kind.ts';
import type { Clock } from '../../../../shared/base/clock.ts';
import { Failure } from '../../../../shared/base/failure.ts';
import type { OutputDelta } from '../../../../shared/text/output/output_delta.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { chatLogprobs, startChat, type StartedChat } from '../openai/chat.ts';
import { countsWhole } from '../openai/choices.ts';
import { finishedHeaders, usageOf, type Usage } from '../openai/common.ts';
import { errorBody } from '../openai/errors.ts';
import { openaiEvents } from '../openai/events.ts';
import { sendEvents, type EventForm } from '../../api/event_stream.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import type { AnswerDelta } from '../../api/prompt_run.ts';
import type { RequestScope } from '../../api/request_scope.ts';
import { eventsOf, type ResponseEvent } from './response_events.ts';
import { messagesOf, readInput, type ChatItem } from './response_input.ts';
import { OutputItems, type ItemChange } from './response_items.ts';
import { asResponseError, type ResponseBody, type ResponseWish } from './response_parameters.ts';
import type { ResponseStore } from './response_store.ts';

/** Events with their type as their name. */
const namedEvents: EventForm = {
  ...openaiEvents,
  event: (event) => `event: ${(event as ResponseEvent).type}\ndata: ${JSON.stringify(event)}\n\n`,
};

/** Returns the endpoint `/v1/responses`, whole or streamed, which keeps its answers in `store`. It rejects with a Failure when the request is refused or cannot be finished. */
export function responsesEndpoint(store: ResponseStore): (all: ApiContext, scope: RequestScope) => Promise<void> {
  return (all, scope) => responses(store, all, scope);
}

async function responses(store: ResponseStore, all: ApiContext, scope: RequestScope): Promise<void> {
  const trace = scope.open('/v1/responses');
  const bodyBytes = scope.body.bytes.length;
  const read = await all.bodies.readPrompts(responseKind, scope.body, all.of(undefined), scope.signal);
  const { body } = read;
  const { items, previousId, isContinuing, instructions, toolPaths } = body.response;
  const stored = isContinuing ? resolved(store, items, previousId, all.bodies.limitBytes) : undefined;
  const conversation = stored?.conversation ?? items;
  const template = isContinuing
    ? { ...body.template, messages: messagesOf(conversation, instructions) }
    : body.template;
  let started: StartedChat;
  try {
    started = await startChat(all, scope, trace, bodyBytes + (stored?.numBytes ?? 0), {
      ...read,
      body: { ...body, template },
    });
  } catch (error) {
    throw asResponseError(error, toolPaths);
  }
  const answering = answeringOf(store, scope, started, body, conversation);
  const headers = (): Record<string, string> => finishedHeaders(trace, body.ignored);
  if (body.isStream) {
    const { clock, stalledReaderMs, sseKeepAliveMs: keepAliveMs } = started.context;
    const stream = scope.own(events(answering));
    await sendEvents(stream, scope, { clock, stalledReaderMs, keepAliveMs, headers, form: namedEvents });
    return;
  }
  let finish: AnswerDelta['finish'];
  for await (const step of scope.own(steps(answering))) ({ finish } = step);
  answering.output.end(finish === 'length');
  const { json } = await ended(answering, finish);
  scope.answer(json, headers());
}

/**
 * Returns the conversation of a body, its stored parts included, and the bytes of those parts: at most `maxBytes` (P1). @throws Failure
 * `not_found` naming what is not stored here, `context_too_long` beyond the bound
 */
function resolved(
  store: ResponseStore,
  items: readonly ChatItem[],
  previousId: string | undefined,
  maxBytes: number,
): { readonly conversation: readonly ChatItem[]; readonly numBytes: number } {
  let numBytes = 0;
  const read = (param: string, get: () => Buffer): unknown => {
    let json: Buffer;
    try {
      json = get();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      throw new ParameterFailure(`${param}: ${error.message}`, param, error.code);
    }
    numBytes += json.length;
    if (numBytes <= maxBytes) return JSON.parse(json.toString());
    throw new ParameterFailure(
      `${param}: the stored conversation has over ${maxBytes} bytes; begin a new one, or send less of it`,
      param,
      'context_too_long',
    );
  };
  const before =
    previousId === undefined ? [] : (read('previous_response_id', () => store.conversation(previousId)) as ChatItem[]);
  const own = items.map((item) => {
    const { id = '', referredAt } = item;
    return referredAt === undefined ? item : (read(`${referredAt}.id`, () => store.item(id)) as ChatItem);
  });
  if (before.length + own.length === 0) throw new ParameterFailure('input: a text, or at least one item', 'input');
  return { conversation: [...before, ...own], numBytes };
}

/** One answer under way. */
interface Answering {
  readonly store: ResponseStore;
  readonly scope: RequestScope;
  readonly started: StartedChat;
  readonly wish: ResponseWish;
  /** The conversation before the answer. */
  readonly conversation: readonly ChatItem[];
  readonly output: OutputItems;
  readonly id: string;
  /** Fields that the answer has from its begin. */
  readonly head: Readonly<Record<string, unknown>>;
}

function answeringOf(
  store: ResponseStore,
  scope: RequestScope,
  started: StartedChat,
  { response: wish }: ResponseBody,
  conversation: readonly ChatItem[],
): Answering {
  const { context, runs } = started;
  const { newId, clock, servedName } = context;
  const { temperature, topP, presencePenalty, frequencyPenalty } = runs[0].generation.request.sampling;
  // Nobody else can guess it: who knows the id may read the answer.
  const id = `resp_${newId()}${newId()}`;
  return {
    ...{ store, scope, started, wish, conversation, id },
    output: new OutputItems({ newId, tools: wish.tools }),
    head: {
      ...{ id, object: 'response', created_at: secondsOf(clock), model: servedName, background: false },
      ...{ service_tier: null, ...wish.repeated, temperature, top_p: topP },
      ...{ presence_penalty: presencePenalty, frequency_penalty: frequencyPenalty },
    },
  };
}

function secondsOf(clock: Clock): number {
  return Math.floor(clock.wallMs() / 1_000);
}

/** Returns the answer as it is now. */
function answerOf({ head, output }: Answering, status: string, more: object = {}): Readonly<Record<string, unknown>> {
  const nothing = { completed_at: null, error: null, incomplete_details: null, usage: null };
  return { ...head, status, output: output.items, ...nothing, ...more };
}

interface Step {
  readonly changes: readonly ItemChange[];
  readonly finish: AnswerDelta['finish'];
}

/** Yields what each part of the output changes; the last one has the finish reason, and ends no item yet. */
async function* steps({ started, output, wish }: Answering): AsyncGenerator<Step> {
  const { context, runs, parser: parserOf } = started;
  const [{ generation, deltas }] = runs;
  const parser = parserOf(generation);
  for await (const delta of deltas) {
    const { text, tokens, finish } = delta;
    const plain: OutputDelta[] = text === '' ? [] : [{ kind: 'content', text }];
    const pieces = parser?.read(delta).pieces ?? plain;
    const logprobs = wish.hasLogprobs ? await chatLogprobs(context, tokens, false) : [];
    yield { changes: output.push(pieces, logprobs), finish };
  }
}

/** Returns the whole answer, whose output has ended, and its JSON; and stores it for the client. */
async function ended(
  answering: Answering,
  finish: AnswerDelta['finish'],
): Promise<{ readonly answer: Readonly<Record<string, unknown>>; readonly json: string }> {
  const { store, scope, started, wish, conversation, output, id } = answering;
  const { clock } = started.context;
  await countsWhole(started.runs, scope.signal);
  const usage = responseUsage(usageOf(started.runs.map(({ generation }) => generation.counts)));
  const answer =
    finish === 'length'
      ? answerOf(answering, 'incomplete', { incomplete_details: { reason: 'max_output_tokens' }, usage })
      : answerOf(answering, 'completed', { completed_at: secondsOf(clock), usage });
  const json = JSON.stringify(answer);
  if (wish.isStored) {
    const own = readInput(output.items, Infinity, []).map((item, i): ChatItem => ({
      ...item,
      id: output.items[i]?.id ?? '',
    }));
    store.put(id, json, conversation, own);
  }
  return { answer, json };
}

function responseUsage(usage: Usage): object {
  const { prompt_tokens: input, completion_tokens: output, total_tokens: total } = usage;
  const { cached_tokens: cached, ...lost } = usage.prompt_tokens_details;
  return {
    ...{ input_tokens: input, input_tokens_details: { cached_tokens: cached, cache_write_tokens: 0, ...lost } },
    output_tokens: output,
    output_tokens_details: { reasoning_tokens: usage.completion_tokens_details?.reasoning_tokens ?? 0 },
    total_tokens: total,
  };
}

/**
 * Yields the events of a streamed answer, numbered. One that cannot be finished ends with `response.failed`. @throws what happens before
 * the first part, which has a status of its own
 */
async function* events(answering: Answering): AsyncGenerator<ResponseEvent> {
  const { scope, started, output } = answering;
  let number = 0;
  const numbered = (event: ResponseEvent): ResponseEvent => ({ ...event, sequence_number: number++ });
  const ofAnswer = (type: string, response: object): ResponseEvent => numbered({ type: `response.${type}`, response });
  let hasBegun = false;
  let finish: AnswerDelta['finish'];
  try {
    for await (const step of steps(answering)) {
      if (!hasBegun) {
        hasBegun = true;
        yield ofAnswer('created', answerOf(answering, 'in_progress'));
        yield ofAnswer('in_progress', answerOf(answering, 'in_progress'));
      }
      ({ finish } = step);
      for (const event of step.changes.flatMap(eventsOf)) yield numbered(event);
    }
    for (const event of output.end(finish === 'length').flatMap(eventsOf)) yield numbered(event);
    const { answer } = await ended(answering, finish);
    yield ofAnswer(String(answer['status']), answer);
  } catch (thrown) {
    const failure = scope.reason(thrown);
    if (!hasBegun || scope.isGone) throw thrown;
    started.context.metrics.failed(failure);
    const { code, message } = errorBody(failure).error;
    // The output so far is part of the answer.
    for (const event of output.end(true).flatMap(eventsOf)) yield numbered(event);
    const error = { code: code === 'overloaded' ? 'rate_limit_exceeded' : 'server_error', message };
    yield ofAnswer('failed', answerOf(answering, 'failed', { error }));
  }
}
