/** `/v1/messages` and `/v1/messages/count_tokens`: chats in the form of Anthropic's API. */
import { messageCountKind, messageKind } from './body_kinds.ts';
import { Failure } from '../../../../shared/base/failure.ts';
import type { RequestCounts } from '../../record/request_counts.ts';
import type { OutputDelta } from '../../../../shared/text/output/output_delta.ts';
import type { ApiContext } from '../../api/api_context.ts';
import { startChat, type StartedChat } from '../openai/chat.ts';
import { countsWhole } from '../openai/choices.ts';
import { finishedHeaders, ignoredHeaders, usageOf } from '../openai/common.ts';
import { sendEvents, type EventForm } from '../../api/event_stream.ts';
import type { ChatBody } from '../openai/parameters.ts';
import type { AnswerDelta } from '../../api/prompt_run.ts';
import type { RequestScope } from '../../api/request_scope.ts';
import { AnswerBlocks, contentJson, type MessageEvent } from './answer_blocks.ts';

const messageEvents: EventForm = {
  event: (value) => `event: ${(value as MessageEvent).type}\ndata: ${JSON.stringify(value)}\n\n`,
  keepAlive: 'event: ping\ndata: {"type":"ping"}\n\n',
  // The last event, message_stop, says it.
  end: '',
};

/** Answers `/v1/messages`, whole or streamed. @throws Failure when the request is refused or cannot be finished. */
export async function messages(all: ApiContext, scope: RequestScope): Promise<void> {
  const trace = scope.open('/v1/messages');
  const bodyBytes = scope.body.bytes.length;
  const read = await all.bodies.readPrompts(messageKind, scope.body, all.of(undefined), scope.signal);
  const { body } = read;
  const chat = await startChat(all, scope, trace, bodyBytes, read, true);
  const { clock, stalledReaderMs, sseKeepAliveMs: keepAliveMs } = chat.context;
  const headers = (): Record<string, string> => ({
    ...finishedHeaders(trace, body.ignored),
    'request-id': trace.names.clientId ?? trace.id,
  });
  if (body.isStream) {
    const stream = scope.own(events(chat, body, scope.signal));
    await sendEvents(stream, scope, { clock, stalledReaderMs, keepAliveMs, headers, form: messageEvents });
    return;
  }
  const answer = await whole(chat, body, scope.signal);
  scope.answer(answer, headers());
}

/** Answers `/v1/messages/count_tokens`: the tokens of the prompt that the request would have. @throws Failure when it is refused. */
export async function countTokens(all: ApiContext, scope: RequestScope): Promise<void> {
  const trace = scope.open('/v1/messages/count_tokens');
  const bodyBytes = scope.body.bytes.length;
  const read = await all.bodies.readPrompts(messageCountKind, scope.body, all.of(undefined), scope.signal);
  const { body, prompts, failure } = read;
  const context = all.of(body.model);
  trace.model = context.servedName;
  if (failure) throw new Failure(failure.code, failure.message);
  const ids =
    prompts?.[0] ?? (await context.codec.chatPrompt(body.template, bodyBytes, scope.signal, { isShared: true })).ids;
  context.requests.close(trace, 'finished', 'stop');
  const headers = { ...ignoredHeaders(body.ignored), 'request-id': trace.names.clientId ?? trace.id };
  scope.answer(JSON.stringify({ input_tokens: ids.length }), headers);
}

/** A delta of an answer, parsed: its pieces, and what ended the answer. */
interface ParsedDelta {
  readonly pieces: readonly OutputDelta[];
  readonly hasCalls: boolean;
  readonly delta: AnswerDelta;
}

async function* parsedDeltasOf(
  { runs: [run], parser: parserOf }: StartedChat,
  body: ChatBody,
): AsyncGenerator<ParsedDelta> {
  const parser = parserOf(run.generation);
  for await (const delta of run.deltas) {
    const { text } = delta;
    const { pieces, hasCalls } = parser?.read(delta) ?? {
      pieces: text === '' ? [] : [{ kind: 'content' as const, text }],
      hasCalls: false,
    };
    yield {
      pieces: body.includesReasoning ? pieces : pieces.filter(({ kind }) => kind !== 'reasoning'),
      ...{ hasCalls, delta },
    };
  }
}

async function whole(chat: StartedChat, body: ChatBody, signal: AbortSignal): Promise<string> {
  const pieces: OutputDelta[] = [];
  let last: ParsedDelta | undefined;
  for await (const part of parsedDeltasOf(chat, body)) {
    pieces.push(...part.pieces);
    last = part;
  }
  await countsWhole(chat.runs, signal);
  const { generation } = chat.runs[0];
  const fields = {
    ...messageOf(chat),
    ...endingOf(chat, body, last),
    usage: { ...usageFields(generation.counts), ...noUsage },
  };
  return `${JSON.stringify(fields).slice(0, -1)},"content":${contentJson(pieces)}}`;
}

async function* events(chat: StartedChat, body: ChatBody, signal: AbortSignal): AsyncGenerator<MessageEvent> {
  const { counts } = chat.runs[0].generation;
  const blocks = new AnswerBlocks();
  let last: ParsedDelta | undefined;
  for await (const part of parsedDeltasOf(chat, body)) {
    if (!last) {
      const usage = usageFields(counts, part.delta.numTokens);
      const open = { stop_reason: null, stop_sequence: null, stop_details: null };
      const message = { ...messageOf(chat), content: [], ...open, usage: { ...usage, ...noUsage } };
      yield { type: 'message_start', message };
      yield { type: 'ping' };
    }
    last = part;
    for (const piece of part.pieces) yield* blocks.push(piece);
  }
  yield* blocks.end();
  await countsWhole(chat.runs, signal);
  const delta = { ...endingOf(chat, body, last), container: null };
  yield { type: 'message_delta', delta, usage: usageFields(counts) };
  yield { type: 'message_stop' };
}

/** Returns what is known of a message before its first token. */
function messageOf({ context, runs: [{ trace }] }: StartedChat): object {
  const { servedName: model } = context;
  const id = `msg_${trace.names.clientId ?? trace.id}`;
  return { id, type: 'message', role: 'assistant', model, container: null, diagnostics: null };
}

/** Returns why an answer has ended: text of a stop sequence, calls, the length asked for, or that of the context. */
function endingOf(
  { runs: [{ generation }] }: StartedChat,
  { maxTokens }: ChatBody,
  last: ParsedDelta | undefined,
): object {
  const { finish, stopReason = null } = last?.delta ?? {};
  const numNew = generation.request.maxLength - generation.promptTokens.length;
  const isCut = maxTokens !== undefined && numNew < maxTokens;
  const sequence = finish === 'stop' && typeof stopReason === 'string' ? stopReason : null;
  const usual = sequence === null ? 'end_turn' : 'stop_sequence';
  const stopped = last?.hasCalls === true ? 'tool_use' : usual;
  const atLength = isCut ? 'model_context_window_exceeded' : 'max_tokens';
  return { stop_reason: finish === 'length' ? atLength : stopped, stop_sequence: sequence, stop_details: null };
}

/** Keys of a message's usage that say nothing here, which clients look for. */
const noUsage = { cache_creation: null, inference_geo: null, service_tier: null };

/** Returns the usage in Anthropic's form, in which tokens that were read from a cache are no input tokens. */
function usageFields(counts: RequestCounts, numTokens?: number): object {
  const {
    prompt_tokens: prompt,
    completion_tokens: output,
    prompt_tokens_details: { cached_tokens: cached, ...lost },
    completion_tokens_details: details,
  } = usageOf([counts], numTokens === undefined ? undefined : { counts, numTokens });
  return {
    input_tokens: prompt - cached,
    output_tokens: output,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cached,
    ...lost,
    output_tokens_details: details ? { thinking_tokens: details.reasoning_tokens } : null,
    server_tool_use: null,
  };
}
