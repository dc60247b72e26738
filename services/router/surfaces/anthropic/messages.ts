/** `/v1/messages` and `/v1/messages/count_tokens`: chats in the form of Anthropic's API. */
import { scopeNumber } from '../../../../shared/kv/format.ts';
import type { ParsedDelta } from '../../api/parsed_deltas.ts';
import type { StreamWriter, WholeWriter } from '../../api/answer_writer.ts';
import { anthropicLimitHeaders } from '../../api/limit_headers.ts';
import { eventStreamType, type EventForm, type EventWriter } from '../../api/event_stream.ts';
import { EventTemplate, LastTemplate } from '../../api/event_template.ts';
import { piecesOf } from '../../api/parsed_choice.ts';
import type { Surface } from '../../api/surface.ts';
import type { RequestCounts } from '../../record/request_counts.ts';
import type { OutputDelta } from '../../../../shared/text/output/output_delta.ts';
import type { ChatBody } from '../openai/parameters.ts';
import { startChat, type StartedChat } from '../openai/start_chat.ts';
import { usageOf } from '../openai/usage.ts';
import { AnswerBlocks, contentJson, type MessageEvent } from './answer_blocks.ts';
import { messageCountKind, messageKind } from './body_kinds.ts';
import { messageErrors } from './message_errors.ts';
import { countSchema, messagesSchema } from './message_parameters.ts';

const messageEvents: EventForm = {
  contentType: eventStreamType,
  event: (value) => `event: ${(value as MessageEvent).type}\ndata: ${JSON.stringify(value)}\n\n`,
  keepAlive: 'event: ping\ndata: {"type":"ping"}\n\n',
  // The last event, message_stop, says it.
  end: '',
};

const requestIdHeader = (requestId: string): Readonly<Record<string, string>> => ({ 'request-id': requestId });

/** `/v1/messages`, whole or streamed. */
export const messageSurface: Surface<ChatBody> = {
  paths: ['/v1/messages'],
  kind: messageKind,
  counts: 'generation',
  operation: 'chat',
  errors: messageErrors,
  limitHeaders: anthropicLimitHeaders,
  events: messageEvents,
  describe: {
    summary: "Answers a chat in the form of Anthropic's API, as JSON, or with `stream` as server-sent events",
    schemas: { Messages: messagesSchema },
  },
  headers: requestIdHeader,
  async answer(request) {
    const chat = await startChat(request, true);
    return { ...chat, stream: (events) => streamedMessage(chat, events), whole: () => wholeMessage(chat) };
  },
};

/** `/v1/messages/count_tokens`: the tokens of the prompt that the request would have. */
export const countSurface: Surface<ChatBody> = {
  paths: ['/v1/messages/count_tokens'],
  kind: messageCountKind,
  counts: 'none',
  errors: messageErrors,
  limitHeaders: anthropicLimitHeaders,
  describe: {
    summary: 'Counts the tokens that a request to /v1/messages has',
    schemas: { CountTokens: countSchema },
  },
  headers: requestIdHeader,
  async answer({ context, scope, bodyBytes, body, prompts }) {
    const ids =
      prompts?.[0] ??
      (
        await context.codec.chatPrompt(body.template, bodyBytes, scope, {
          answerScope: scopeNumber(body.cacheScope),
        })
      ).ids;
    return JSON.stringify({ input_tokens: ids.length });
  },
};

/** Returns the pieces of a delta that the client is shown. */
function shownPieces(delta: ParsedDelta, { includesReasoning }: ChatBody): readonly OutputDelta[] {
  const pieces = piecesOf(delta);
  return includesReasoning ? pieces : pieces.filter(({ kind }) => kind !== 'reasoning');
}

function wholeMessage(chat: StartedChat): WholeWriter {
  const pieces: OutputDelta[] = [];
  let last: ParsedDelta | undefined;
  return {
    onDelta(delta) {
      pieces.push(...shownPieces(delta, chat.body));
      last = delta;
    },
    whole() {
      const usage = { ...usageFields(chat.runs[0].trace.record.counts), ...noUsage };
      const fields = { ...messageOf(chat), ...endingOf(chat, last), usage };
      return `${JSON.stringify(fields).slice(0, -1)},"content":${contentJson(pieces)}}`;
    },
  };
}

function streamedMessage(chat: StartedChat, events: EventWriter): StreamWriter {
  const { counts } = chat.runs[0].trace.record;
  const blocks = new AnswerBlocks();
  /** The text deltas of a block, which differ in their text alone. */
  const template = new LastTemplate();
  const send = (event: MessageEvent): void => {
    const { index, delta } = event as { readonly index?: number; readonly delta?: { readonly text?: string } };
    const made = (): EventTemplate =>
      new EventTemplate(1, ([text]) => events.form.event({ ...event, delta: { ...delta, text } }));
    if (delta?.text === undefined) events.send(event);
    else events.sendText(template.of(String(index), made).fill(JSON.stringify(delta.text)));
  };
  let last: ParsedDelta | undefined;
  return {
    hasCounts: true,
    onDelta(delta) {
      if (!last) {
        const usage = usageFields(counts, delta.numTokens);
        const open = { stop_reason: null, stop_sequence: null, stop_details: null };
        const message = { ...messageOf(chat), content: [], ...open, usage: { ...usage, ...noUsage } };
        send({ type: 'message_start', message });
        send({ type: 'ping' });
      }
      last = delta;
      for (const piece of shownPieces(delta, chat.body)) blocks.push(piece).forEach(send);
      if (delta.finish) blocks.end().forEach(send);
    },
    end() {
      const delta = { ...endingOf(chat, last), container: null };
      send({ type: 'message_delta', delta, usage: usageFields(counts) });
      send({ type: 'message_stop' });
    },
  };
}

/** Returns what is known of a message before its first token. */
function messageOf({ context, runs: [{ trace }] }: StartedChat): object {
  const { servedName: model } = context;
  const id = `msg_${trace.shownId}`;
  return { id, type: 'message', role: 'assistant', model, container: null, diagnostics: null };
}

/** Returns why an answer has ended: text of a stop sequence, calls, the length asked for, or that of the context. */
function endingOf({ runs, body: { maxTokens } }: StartedChat, last: ParsedDelta | undefined): object {
  const [{ generation }] = runs;
  const { finish, stopReason = null } = last ?? {};
  const numNew = generation.request.maxLength - generation.promptTokens.length;
  const isCut = maxTokens !== undefined && numNew < maxTokens;
  const sequence = finish === 'stop' && typeof stopReason === 'string' ? stopReason : null;
  const usual = sequence === null ? 'end_turn' : 'stop_sequence';
  const stopped = last?.parsed?.hasCalls === true ? 'tool_use' : usual;
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
