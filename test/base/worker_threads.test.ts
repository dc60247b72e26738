/** Calls to a worker: order, those who leave, bounds, death. A worker that the test plays, and real ones. Budget: 10 s. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { EventEmitter } from 'node:events';
import { promisify } from 'node:util';
import type { Worker } from 'node:worker_threads';
import { test } from 'vitest';
import { Failure } from '../../shared/base/failure.ts';
import { endThreads, WorkerThread, workerThreads } from '../../shared/base/worker_threads.ts';
import type { start } from '../support/echo_thread.ts';
import { assertNoLines } from '../support/no_lines.ts';
import { projectPath } from '../support/project.ts';

interface Methods {
  echo: (argument: number) => number;
}

class PlayedWorker extends EventEmitter {
  readonly posted: { id: number; argument: unknown }[] = [];

  postMessage(call: { id: number; argument: unknown }): void {
    this.posted.push(call);
  }

  answer(index: number, answer: Record<string, unknown>): void {
    this.emit('message', { id: this.posted[index]?.id, ...answer });
  }
}

function open(): { worker: PlayedWorker; calls: WorkerThread<Methods, string>; events: string[]; deaths: Error[] } {
  const worker = new PlayedWorker();
  const deaths: Error[] = [];
  const events: string[] = [];
  const calls = new WorkerThread<Methods, string>(worker as unknown as Worker, {
    onEvent: (event) => events.push(event),
    onDeath: (error) => deaths.push(error),
  });
  return { worker, calls, deaths, events };
}

test('a few calls are with the worker, the rest wait in order; one whose caller left is never begun', async () => {
  const { worker, calls } = open();
  const client = new AbortController();
  const all = Array.from({ length: 8 }, (_, i) => calls.call('echo', i, i === 5 ? client.signal : undefined));
  const fifth = assert.rejects(
    all[5] ?? Promise.resolve(0),
    (error: unknown) => error instanceof Failure && error.code === 'cancelled',
  );
  assert.deepEqual(
    worker.posted.map(({ argument }) => argument),
    [0, 1, 2, 3],
  );
  client.abort();
  await fifth;
  for (let i = 0; i < 7; i++) worker.answer(i, { value: worker.posted[i]?.argument });
  assert.deepEqual(
    worker.posted.map(({ argument }) => argument),
    [0, 1, 2, 3, 4, 6, 7],
  );
  assert.equal(await all[7], 7);
});

test('a failure keeps its code, an error its message', async () => {
  const { worker, calls } = open();
  const [a, b] = [calls.call('echo', 1), calls.call('echo', 2)];
  worker.answer(0, { error: 'too long', code: 'context_too_long' });
  worker.answer(1, { error: 'odd' });
  await assert.rejects(a, (error: unknown) => error instanceof Failure && error.code === 'context_too_long');
  await assert.rejects(b, (error: unknown) => !(error instanceof Failure) && /odd/.test(String(error)));
});

test('65,536 calls wait, the next is refused (P1); the worker’s death fails them all and is told once', async () => {
  const { worker, calls, deaths } = open();
  const waiting = Array.from({ length: 65_536 + 4 }, (_, i) =>
    calls.call('echo', i).catch((error: unknown) => String(error)),
  );
  await assert.rejects(calls.call('echo', 0), /over 65536 calls wait/);
  worker.emit('exit', 1);
  worker.emit('error', new Error('again'));
  const outcomes = await Promise.all(waiting);
  assert(outcomes.every((outcome) => String(outcome).includes('ended with code 1')));
  assert.equal(deaths.length, 1);
  await assert.rejects(calls.call('echo', 0), /ended with code 1/);
});

test('what is told waits for nothing and has no answer; events come as they are', () => {
  const { worker, calls, events } = open();
  for (let i = 0; i < 5; i++) void calls.call('echo', i).catch(() => undefined);
  calls.notify('echo', 77);
  assert.deepEqual(worker.posted.at(-1), { id: undefined, method: 'echo', argument: 77 });
  worker.emit('message', { event: 'news' });
  assert.deepEqual(events, ['news']);
});

test('a real worker starts its module, answers, emits, and dies with what it could not start', async () => {
  const url = new URL(`file://${projectPath('dist/test/support/echo_thread.js')}`);
  const events: string[] = [];
  let death: Error | undefined;
  const listener = { onEvent: (event: string) => events.push(event), onDeath: (error: Error) => (death = error) };
  const thread = workerThreads.spawn<typeof start>({ url }, { greeting: 'hello' }, listener);
  thread.notify('shout', 'early');
  assert.equal(await thread.call('echo', 'x'), 'hello x');
  assert.deepEqual(events, ['early!']);
  await assert.rejects(
    thread.call('refuse', undefined),
    (error: unknown) => error instanceof Failure && error.code === 'overloaded',
  );
  await thread.close();
  assert.equal(death, undefined, 'it was asked to end');
  const broken = workerThreads.spawn<typeof start>({ url }, { greeting: '' }, listener);
  await assert.rejects(broken.call('echo', 'x'), /no greeting/);
  assert.match(String(death), /no greeting/);
});

test('a thread that waits ends by itself, one that computes is terminated, and neither is heard any more', async () => {
  const url = new URL(`file://${projectPath('dist/test/support/echo_thread.js')}`);
  const events: string[] = [];
  const listener = { onEvent: (event: string) => events.push(event), onDeath: assert.fail };
  const [waiting, computing] = [1, 2].map(() =>
    workerThreads.spawn<typeof start>({ url }, { greeting: 'hello' }, listener),
  );
  assert(waiting && computing);
  for (const thread of [waiting, computing]) await thread.call('echo', 'x');
  const hung = assert.rejects(computing.call('hang', undefined), /ended with code 1/);
  waiting.notify('shout', 'late');
  await endThreads();
  await hung;
  await assert.rejects(waiting.call('echo', 'x'), /ended with code 0/);
  assert.deepEqual(events, []);
});

test('threads that end while they load a native library leave the process alive', async () => {
  const script = projectPath('dist/test/support/closing_threads.js');
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [script, '4']);
  assertNoLines(stderr.split('\n').filter((line) => line !== ''));
  assert.equal(stdout, '12 ended\n');
});
