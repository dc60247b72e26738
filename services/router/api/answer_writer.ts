/** Writers of generated output in the form of an API: a whole answer, or a stream of events. */
import { eachDelta, type ParsedDelta, type AnswerRuns } from './parsed_deltas.ts';
import type { GenerationBody } from './generation_body.ts';
import { EventStream, type EventForm, type EventWriter } from './event_stream.ts';
import type { RequestScope } from './request_scope.ts';
import { countsWhole } from './samples.ts';

/** Writes a stream. */
export interface StreamWriter {
  /** Whether its last events have counts, for which a prefill that still runs is waited for. */
  readonly hasCounts: boolean;
  /** Takes the next delta of the output; the last one of a choice has its finish reason. */
  onDelta(delta: ParsedDelta): void;
  /** Called when all output has come, and its counts are whole if it has some. */
  end(): void;
  /** Called when the answer cannot be finished: the writer says so in events of its own. Without it the form of errors does. */
  fail?(failure: unknown): void;
}

/** Writes a whole answer. */
export interface WholeWriter {
  /** Takes the next delta of the output; the last one of a choice has its finish reason. */
  onDelta(delta: ParsedDelta): void;
  /** Returns the answer as JSON, when all output has come and its counts are whole. */
  whole(): string | Promise<string>;
}

/** An answer that is about to begin, and its writers. A writer holds no promise while it takes deltas. */
export interface AnswerWriters extends AnswerRuns {
  readonly body: GenerationBody;
  /** Returns the writer of a stream, which gives it each event. */
  stream(events: EventWriter): StreamWriter;
  /** Returns the writer of a whole answer. */
  whole(): WholeWriter;
}

/** Form and headers of an answer. */
interface AnswerForm {
  readonly events: EventForm;
  readonly headers: () => Record<string, string>;
}

/** Answers a request with the output of its runs, whole or streamed. @throws Failure for output that cannot be finished and a writer does not say so */
export async function writeAnswer(scope: RequestScope, answer: AnswerWriters, form: AnswerForm): Promise<void> {
  if (answer.body.isStream) {
    await writeStream(scope, answer, form);
    return;
  }
  const writer = answer.whole();
  await eachDelta(answer, scope, (delta) => {
    writer.onDelta(delta);
    return undefined;
  });
  await countsWhole(answer.runs, scope.signal);
  scope.answer(await writer.whole(), form.headers());
}

async function writeStream(scope: RequestScope, answer: AnswerWriters, { events, headers }: AnswerForm): Promise<void> {
  const { clock, stalledReaderMs, sseKeepAliveMs: keepAliveMs, metrics } = answer.context;
  const stream = new EventStream(scope, { clock, stalledReaderMs, keepAliveMs, headers, form: events });
  try {
    const writer = answer.stream(stream);
    try {
      await eachDelta(answer, scope, (delta) => {
        writer.onDelta(delta);
        return stream.room();
      });
      if (writer.hasCounts) await countsWhole(answer.runs, scope.signal);
      writer.end();
      await stream.room();
    } catch (thrown) {
      if (!writer.fail || !stream.canGoOn || scope.isGone) throw thrown;
      const failure = scope.reason(thrown);
      metrics.failed(failure);
      writer.fail(failure);
      await stream.room();
    }
    stream.end();
  } finally {
    stream.close();
  }
}
