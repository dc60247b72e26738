/** `/v1/responses`: a chat whose messages and answer are items, which may be stored and continued by their id. */
import type { Clock } from '../../../../shared/base/clock.ts';
import { Failure } from '../../../../shared/base/failure.ts';
import type { Caller } from '../../access/caller.ts';
import type { ParsedDelta } from '../../api/parsed_deltas.ts';
import type { AnswerWriters, StreamWriter, WholeWriter } from '../../api/answer_writer.ts';
import type { EventForm, EventWriter } from '../../api/event_stream.ts';
import { EventTemplate, LastTemplate } from '../../api/event_template.ts';
import { ParameterFailure } from '../../api/parameter_failure.ts';
import { piecesOf } from '../../api/parsed_choice.ts';
import { countsOf } from '../../api/samples.ts';
import type { Surface, SurfaceRequest } from '../../api/surface.ts';
import { chatLogprobs } from '../openai/chat.ts';
import { errorBody } from '../openai/errors.ts';
import { openaiEvents } from '../openai/events.ts';
import { startChat, type StartedChat } from '../openai/start_chat.ts';
import { usageOf, type Usage } from '../openai/usage.ts';
import { responseKind } from './body_kind.ts';
import { responseErrors } from './response_errors.ts';
import { eventsOf, type ResponseEvent } from './response_events.ts';
import { messagesOf, readInput, type ChatItem } from './response_input.ts';
import { OutputItems, type ItemChange } from './response_items.ts';
import { asResponseError, responseSchema, type ResponseBody } from './response_parameters.ts';
import { ResponseStore } from './response_store.ts';

/** Events with their type as their name. */
const namedEvents: EventForm = {
  ...openaiEvents,
  event: (event) => `event: ${(event as ResponseEvent).type}\ndata: ${JSON.stringify(event)}\n\n`,
};

const STORED = '/v1/responses/{id}';

/** `/v1/responses`, whole or streamed, which keeps its answers for their clients. */
export const responseSurface: Surface<ResponseBody, ResponseStore> = {
  paths: ['/v1/responses'],
  kind: responseKind,
  counts: 'generation',
  operation: 'chat',
  errors: responseErrors,
  events: namedEvents,
  describe: {
    summary: 'Answers a conversation of items as JSON, or with `stream` as server-sent events',
    schemas: { Response: responseSchema },
    routes: 'Returns (GET) or forgets (DELETE) a stored answer of /v1/responses',
  },
  open: ({ clock }) => new ResponseStore(clock),
  asOwn: (error, { response }) => asResponseError(error, response.toolPaths),
  answer: respond,
  routes: [
    { method: 'GET', path: STORED, answer: stored },
    { method: 'DELETE', path: STORED, answer: forget },
  ],
};

function stored(
  store: ResponseStore,
  { id = '' }: Readonly<Record<string, string>>,
  { stream }: Readonly<Record<string, string | undefined>>,
  { tenant }: Pick<Caller, 'tenant'>,
): Buffer {
  if (stream !== undefined && stream !== 'false')
    throw new ParameterFailure('stream: an answer is streamed once, while it is made; leave it out', 'stream');
  return store.answer(tenant, id);
}

function forget(
  store: ResponseStore,
  { id = '' }: Readonly<Record<string, string>>,
  _query: Readonly<Record<string, string | undefined>>,
  { tenant }: Pick<Caller, 'tenant'>,
): object {
  store.delete(tenant, id);
  return { id, object: 'response', deleted: true };
}

async function respond(request: SurfaceRequest<ResponseBody>, store: ResponseStore): Promise<AnswerWriters> {
  const { context, body, bodyBytes, scope } = request;
  const { tenant } = scope.caller;
  const { items, isContinuing, instructions } = body.response;
  const found = isContinuing ? resolved(store, body.response, tenant, context.bodies.limitBytes) : undefined;
  const conversation = found?.conversation ?? items;
  const template = isContinuing
    ? { ...body.template, messages: messagesOf(conversation, instructions) }
    : body.template;
  const started = await startChat({
    ...request,
    bodyBytes: bodyBytes + (found?.numBytes ?? 0),
    body: { ...body, template },
  });
  const answering = answeringOf(store, started, conversation, tenant);
  return { ...started, stream: (events) => streamedResponse(answering, events), whole: () => wholeResponse(answering) };
}

/**
 * Returns the conversation of a body, its stored parts included, and the bytes of those parts: at most `maxBytes` (P1). @throws Failure
 * `not_found` naming what is not stored here, `context_too_long` beyond the bound
 */
function resolved(
  store: ResponseStore,
  { items, previousId }: Pick<ResponseBody['response'], 'items' | 'previousId'>,
  owner: string,
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
    previousId === undefined
      ? []
      : (read('previous_response_id', () => store.conversation(owner, previousId)) as ChatItem[]);
  const own = items.map((item) => {
    const { id = '', referredAt } = item;
    return referredAt === undefined ? item : (read(`${referredAt}.id`, () => store.item(owner, id)) as ChatItem);
  });
  if (before.length + own.length === 0) throw new ParameterFailure('input: a text, or at least one item', 'input');
  return { conversation: [...before, ...own], numBytes };
}

/** One answer under way. */
interface Answering {
  readonly store: ResponseStore;
  /** Tenant for which the answer is stored. */
  readonly owner: string;
  readonly started: StartedChat<ResponseBody>;
  /** The conversation before the answer. */
  readonly conversation: readonly ChatItem[];
  readonly output: OutputItems;
  readonly id: string;
  /** Fields that the answer has from its begin. */
  readonly head: Readonly<Record<string, unknown>>;
}

function answeringOf(
  store: ResponseStore,
  started: StartedChat<ResponseBody>,
  conversation: readonly ChatItem[],
  owner: string,
): Answering {
  const { context, runs, body } = started;
  const { response: wish } = body;
  const { newId, clock, servedName } = context;
  const { temperature, topP, presencePenalty, frequencyPenalty } = runs[0].generation.request.sampling;
  // Nobody else can guess it: who knows the id may read the answer.
  const id = `resp_${newId()}${newId()}`;
  return {
    store,
    started,
    conversation,
    owner,
    id,
    output: new OutputItems({ newId, tools: wish.tools }),
    head: {
      id,
      object: 'response',
      created_at: secondsOf(clock),
      model: servedName,
      background: false,
      service_tier: null,
      ...wish.repeated,
      temperature,
      top_p: topP,
      presence_penalty: presencePenalty,
      frequency_penalty: frequencyPenalty,
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

/** Takes a delta of the output, and returns what it changes; the last delta ends the output. */
function changesOf({ started, output }: Answering, delta: ParsedDelta): ItemChange[] {
  const { context, body } = started;
  const logprobs = body.response.hasLogprobs && delta.logprobs ? chatLogprobs(context, delta.logprobs) : [];
  const changes = output.push(piecesOf(delta), logprobs);
  return delta.finish ? [...changes, ...output.end(delta.finish === 'length')] : changes;
}

/** Returns the whole answer, whose output has ended, and its JSON; and stores it for the client. */
function ended(
  answering: Answering,
  finish: ParsedDelta['finish'],
): { readonly answer: Readonly<Record<string, unknown>>; readonly json: string } {
  const { store, started, conversation, output, id, owner } = answering;
  const { clock } = started.context;
  const usage = responseUsage(usageOf(countsOf(started.runs)));
  const answer =
    finish === 'length'
      ? answerOf(answering, 'incomplete', { incomplete_details: { reason: 'max_output_tokens' }, usage })
      : answerOf(answering, 'completed', { completed_at: secondsOf(clock), usage });
  const json = JSON.stringify(answer);
  if (started.body.response.isStored) {
    const own = readInput(output.items, Infinity, []).map((item, i): ChatItem => ({
      ...item,
      id: output.items[i]?.id ?? '',
    }));
    store.put(owner, id, json, conversation, own);
  }
  return { answer, json };
}

function responseUsage(usage: Usage): object {
  const { prompt_tokens: input, completion_tokens: output, total_tokens: total } = usage;
  const { cached_tokens: cached, ...lost } = usage.prompt_tokens_details;
  return {
    input_tokens: input,
    input_tokens_details: { cached_tokens: cached, cache_write_tokens: 0, ...lost },
    output_tokens: output,
    output_tokens_details: { reasoning_tokens: usage.completion_tokens_details?.reasoning_tokens ?? 0 },
    total_tokens: total,
  };
}

function wholeResponse(answering: Answering): WholeWriter {
  let finish: ParsedDelta['finish'];
  return {
    onDelta(delta) {
      changesOf(answering, delta);
      ({ finish } = delta);
    },
    whole: () => ended(answering, finish).json,
  };
}

/** Writes the events of a streamed answer, numbered. One that cannot be finished ends with `response.failed`. */
function streamedResponse(answering: Answering, events: EventWriter): StreamWriter {
  const { output } = answering;
  let number = 0;
  /** Deltas of an item, which differ in text and number alone. */
  const template = new LastTemplate();
  const sendNumbered = (event: ResponseEvent): void => {
    const { type, delta, item_id: item, logprobs = [] } = event;
    const made = (): EventTemplate =>
      new EventTemplate(2, ([text, count]) => events.form.event({ ...event, delta: text, sequence_number: count }));
    if (typeof delta !== 'string' || (logprobs as readonly unknown[]).length > 0)
      events.send({ ...event, sequence_number: number });
    else {
      const same = template.of(`${type} ${String(item)}`, made);
      events.sendText(same.fill(JSON.stringify(delta), String(number)));
    }
    number++;
  };
  const sendAnswer = (type: string, response: object): void => {
    sendNumbered({ type: `response.${type}`, response });
  };
  let finish: ParsedDelta['finish'];
  return {
    hasCounts: true,
    onDelta(delta) {
      if (number === 0) {
        sendAnswer('created', answerOf(answering, 'in_progress'));
        sendAnswer('in_progress', answerOf(answering, 'in_progress'));
      }
      ({ finish } = delta);
      changesOf(answering, delta).flatMap(eventsOf).forEach(sendNumbered);
    },
    end() {
      const { answer } = ended(answering, finish);
      sendAnswer(String(answer['status']), answer);
    },
    fail(failure) {
      const { code, message } = errorBody(failure).error;
      // The output so far is part of the answer.
      output.end(true).flatMap(eventsOf).forEach(sendNumbered);
      const error = { code: code === 'overloaded' ? 'rate_limit_exceeded' : 'server_error', message };
      sendAnswer('failed', answerOf(answering, 'failed', { error }));
    },
  };
}
