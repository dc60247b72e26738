/** The benchmark of streams runs, tiny: every reader gets its own text, whole, although an instance or another router is killed. Budget: 60 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { benchRouterStream, type RouterStreamOptions } from './router_stream.ts';
import { EventReader } from './stream/event_reader.ts';
import { ExpectedText, tokenOf } from './stream/stream_text.ts';

type Varied = Pick<RouterStreamOptions, 'numRouters' | 'killed' | 'print'>;

/** Measures six readers for a second, and returns what finds a value by the end of its name. */
async function valuesOf(measured: string, varied: Varied): Promise<(name: string) => number> {
  const common = { numReaders: [6], seconds: 1, numStalled: 0, hasPeer: false, onFigure: () => undefined };
  const figures = await benchRouterStream({ ...common, ...varied });
  return (name) => {
    const figure = figures.find((one) => one.name === `router/stream/${measured}/${name}`);
    // A thread with few tokens may use less CPU time than Linux counts: then its capacity is infinite.
    assert(figure && !Number.isNaN(figure.value), name);
    return figure.value;
  };
}

test('no reader sees a gap, a repeat or another text when an instance is killed, and all figures are there', async () => {
  const lines: string[] = [];
  const options = { numRouters: 1, killed: 'instance', print: (line: string) => lines.push(line) } as const;
  const valueOf = await valuesOf('6 readers', options);
  for (const name of ['with a gap', 'with a repeat', 'with other text', 'that ended'])
    assert.equal(valueOf(`killed/${name}`), 0, name);
  assert(valueOf('killed/streams that moved') > 0);
  for (const name of ['rate', 'control thread', 'all threads', 'instances', 'tbt/p50', 'tbt/p99', 'reader'])
    valueOf(name);
  for (const part of ['receive', 'walk', 'text', 'write', 'garbage', 'loop', 'rest']) valueOf(`profile/${part}`);
  assert(valueOf('profile/walk') > 0, lines.join('\n'));
});

test('the streams of a killed router end, and no reader of the other sees a gap, a repeat or another text', async () => {
  const varied = { numRouters: 2, killed: 'router', print: () => undefined } as const;
  const valueOf = await valuesOf('6 readers, 2 routers', varied);
  for (const name of ['its streams', 'that ended with it', 'of the others'])
    assert.equal(valueOf(`router killed/${name}`), 3, name);
  for (const name of ['with a gap', 'with a repeat', 'with other text', 'that ended'])
    assert.equal(valueOf(`router killed/of the others/${name}`), 0, name);
  assert(valueOf('router killed/of the others/longest pause') > 0);
  for (const name of ['rate', 'control thread', 'all threads', 'instances', 'tbt/p50', 'tbt/p99', 'reader', 'capacity'])
    valueOf(name);
});

test('a reader finds tokens left out, sent twice, and any other text', () => {
  const faultsOf = (...indexes: number[]) => {
    const text = new ExpectedText(3);
    for (const index of indexes) text.take(index < 0 ? ' none' : tokenOf(3, index).text);
    return text.faults;
  };
  assert.deepEqual(faultsOf(0, 1, 2, 3), { hasGap: false, hasRepeat: false, hasOtherText: false });
  assert.deepEqual(faultsOf(0, 1, 3, 4), { hasGap: true, hasRepeat: false, hasOtherText: false });
  assert.deepEqual(faultsOf(0, 1, 1, 2), { hasGap: false, hasRepeat: true, hasOtherText: false });
  assert.deepEqual(faultsOf(0, -1, 2), { hasGap: false, hasRepeat: false, hasOtherText: true });
  const whole = new ExpectedText(500);
  assert.equal(whole.take(Array.from({ length: 100 }, (_, index) => tokenOf(500, index).text).join('')), 100);
  assert.equal(whole.take(Array.from({ length: 100 }, (_, index) => tokenOf(500, 100 + index).text).join('')), 100);
  assert.deepEqual(whole.faults, { hasGap: false, hasRepeat: false, hasOtherText: false });
});

test('events are read from chunks, wherever the bytes are divided', () => {
  const body = ['data: one\n\nda', 'ta: two\n\n', ': comment\n\ndata: [DONE]\n\n'];
  const chunks = body.map((text) => `${text.length.toString(16)}\r\n${text}\r\n`).join('');
  const answer = `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n${chunks}0\r\n\r\n`;
  for (let size = 1; size <= answer.length; size++) {
    const heard: string[] = [];
    const reader = new EventReader({
      onHead: (head) => heard.push(head.slice(0, 15)),
      onEvent: (event) => heard.push(event),
      onEnd: () => heard.push('end'),
    });
    for (let at = 0; at < answer.length; at += size) reader.read(answer.slice(at, at + size));
    assert.deepEqual(heard, ['HTTP/1.1 200 OK', 'data: one', 'data: two', ': comment', 'data: [DONE]', 'end']);
  }
});
