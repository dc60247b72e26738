/** Comments of a stream that has nothing to send, under a simulated clock. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { EventStream } from '../../../services/router/api/event_stream.ts';
import type { Sink } from '../../../services/router/api/exchange.ts';
import { openaiEvents } from '../../../services/router/surfaces/openai/events.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';

const KEEP_ALIVE = ': keep-alive\n\n';

class WrittenSink implements Sink {
  readonly written: string[] = [];
  status = 0;
  isBehind = false;

  get hasBegun(): boolean {
    return this.written.length > 0;
  }

  begin(status: number): void {
    this.status = status;
  }

  write(text: string): boolean {
    this.written.push(text);
    return true;
  }

  end(text: string): void {
    this.written.push(text);
  }

  drained(): Promise<void> {
    this.isBehind = false;
    return Promise.resolve();
  }

  destroy(): void {
    this.written.push('destroyed');
  }
}

/** Sends events as they come, and ends the stream after the last one. */
async function sendAll(stream: EventStream, events: AsyncGenerator): Promise<void> {
  try {
    for await (const event of events) {
      stream.send(event);
      await stream.room();
    }
    stream.end();
  } finally {
    stream.close();
  }
}

function opened(keepAliveMs: number): { clock: SimulatedClock; sink: WrittenSink; stream: EventStream } {
  const [clock, sink] = [new SimulatedClock(), new WrittenSink()];
  const scope = { sink, signal: new AbortController().signal, isGone: false };
  const limits = { clock, keepAliveMs, stalledReaderMs: 60_000 };
  return { clock, sink, stream: new EventStream(scope, { ...limits, headers: () => ({}), form: openaiEvents }) };
}

function send(
  events: AsyncGenerator,
  keepAliveMs: number,
): { clock: SimulatedClock; sink: WrittenSink; over: Promise<void> } {
  const { clock, sink, stream } = opened(keepAliveMs);
  return { clock, sink, over: sendAll(stream, events) };
}

test('a stream that waits sends comments, the first with its headers, and none between events that come in time', async () => {
  const wait: (() => void)[] = [];
  const events = (async function* () {
    for (const name of ['a', 'b', 'c']) {
      await new Promise<void>((resolve) => wait.push(resolve));
      yield name;
    }
  })();
  const { clock, sink, over } = send(events, 1_000);
  await clock.run(900);
  assert.deepEqual([sink.written, sink.status], [[], 0]);
  await clock.run(2_500);
  assert.deepEqual([sink.written, sink.status], [[KEEP_ALIVE, KEEP_ALIVE], 200]);
  wait.shift()?.();
  await clock.run(3_400);
  wait.shift()?.();
  await clock.run(4_300);
  assert.deepEqual(sink.written.slice(2), ['data: "a"\n\n', 'data: "b"\n\n']);
  await clock.run(5_500);
  wait.shift()?.();
  await clock.run(5_600);
  await over;
  assert.deepEqual(sink.written.slice(4), [KEEP_ALIVE, KEEP_ALIVE, 'data: "c"\n\n', 'data: [DONE]\n\n']);
  await clock.run(60_000);
  assert.equal(sink.written.length, 8, 'nothing after the end');
});

test('one that fails before a comment was sent has begun nothing, so that its status can still be another', async () => {
  const clockOf = async (failsAtMs: number): Promise<boolean> => {
    let fail: () => void = () => undefined;
    const events = (async function* () {
      await new Promise<void>((_resolve, reject) => {
        fail = () => {
          reject(new Error('no decode instance'));
        };
      });
      yield 1;
    })();
    const { clock, sink, over } = send(events, 1_000);
    over.catch(() => undefined);
    await clock.run(failsAtMs);
    fail();
    await assert.rejects(over, /no decode instance/);
    return sink.hasBegun;
  };
  assert.deepEqual([await clockOf(900), await clockOf(1_100)], [false, true]);
});

test('before anything was sent, the first comment comes after 2 s at the latest', async () => {
  const never = (async function* () {
    await new Promise(() => undefined);
    yield 1;
  })();
  const { clock, sink } = send(never, 15_000);
  await clock.run(1_900);
  assert.deepEqual(sink.written, []);
  await clock.run(16_900);
  assert.deepEqual(sink.written, [KEEP_ALIVE]);
  await clock.run(17_100);
  assert.deepEqual(sink.written, [KEEP_ALIVE, KEEP_ALIVE]);
});

test('0 sends none, and a reader that is behind gets none', async () => {
  const never = (async function* () {
    await new Promise(() => undefined);
    yield 1;
  })();
  const silent = send(never, 0);
  await silent.clock.run(100_000);
  assert.deepEqual(silent.sink.written, []);
  const behind = send(never, 1_000);
  behind.sink.isBehind = true;
  await behind.clock.run(5_000);
  assert.deepEqual(behind.sink.written, []);
});

test('to a reader that is behind one event of a part is sent at a time, and only when it has caught up', async () => {
  const { sink, stream } = opened(0);
  stream.send('a');
  assert.equal(stream.room(), undefined);
  sink.isBehind = true;
  for (const event of ['b', 'c']) stream.send(event);
  assert.deepEqual(sink.written, ['data: "a"\n\n']);
  await stream.room();
  assert.deepEqual(sink.written.slice(1), ['data: "b"\n\n', 'data: "c"\n\n']);
  assert.equal(stream.room(), undefined);
  stream.close();
});
