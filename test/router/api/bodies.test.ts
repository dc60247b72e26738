/** Bodies on their way in: bounds of each and of all, and what becomes of their bytes. Budget: 5 s. */
import assert from 'node:assert/strict';
import type { IncomingMessage } from 'node:http';
import { PassThrough } from 'node:stream';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, test } from 'vitest';
import { workerThreads } from '../../../shared/base/worker_threads.ts';
import { Bodies, type Body } from '../../../services/router/api/bodies.ts';
import { readBody } from '../../../services/router/http/read_body.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { oneCaller } from '../../../services/router/access/caller.ts';
import { completionKind } from '../../../services/router/surfaces/openai/body_kinds.ts';
import { projectPath } from '../../support/project.ts';
import { readCompletionBody } from '../../../services/router/surfaces/openai/parameters.ts';

const caller = oneCaller({ allow_priority: false })({ url: '/', headers: {} });

const LIMIT = 90 << 20;
let bodies: Bodies;
beforeAll(() => {
  bodies = new Bodies(
    LIMIT,
    () => 2_048,
    () => ({ vocabSize: 1_536, maxModelLen: 2_048, isStrict: false }),
    workerThreads,
    { url: pathToFileURL(projectPath('dist/services/router/surfaces/body_worker.js')) },
    assert.fail,
  );
});
afterAll(async () => {
  await bodies.close();
});

/** A request whose body the test writes. */
function payload(): PassThrough & IncomingMessage {
  const stream = Object.assign(new PassThrough({ highWaterMark: 64 << 20 }), { complete: false });
  stream.once('end', () => (stream.complete = true));
  return stream as never;
}

async function arrived(bytes: Buffer): Promise<Body> {
  const one = payload();
  const taking = readBody(bodies, one, undefined);
  one.end(bytes);
  return taking;
}

test('bytes count from their arrival until they are read, however the reading ends', async () => {
  const body = await arrived(Buffer.from('{"prompt": [5, 6]}'));
  assert.equal(bodies.allBytes, 18);
  const { prompts } = await bodies.read(completionKind, body, { caller, signal: new AbortController().signal });
  assert.deepEqual([...(prompts[0] as Uint32Array)], [5, 6]);
  assert.equal(bodies.allBytes, 0);
  assert.equal(body.bytes.length, 0, 'what was read is let go of');
  const bad = await arrived(Buffer.from('{'));
  await assert.rejects(bodies.read(completionKind, bad, { caller, signal: new AbortController().signal }), /not JSON/);
  body.release();
  assert.equal(bodies.allBytes, 0);
});

test('a large body is read by another thread, to the same result and the same refusal', async () => {
  const text = `{"prompt": ["${'x'.repeat(100_000)}", [1, 2]], "logit_bias": {"x": 1}}`;
  const large = await arrived(Buffer.from(text));
  await assert.rejects(
    bodies.read(completionKind, large, { caller, signal: new AbortController().signal }),
    (error: unknown) =>
      error instanceof Failure && error.status === 400 && /keys are token ids, not "x"/.test(error.message),
  );
  const good = await arrived(Buffer.from(text.replace('"x": 1', '"7": 1')));
  const { prompts, sampling } = await bodies.read(completionKind, good, {
    caller,
    signal: new AbortController().signal,
  });
  assert.deepEqual([prompts.length, sampling.biasTokens], [2, [7]]);
  assert.equal(bodies.allBytes, 0);
});

test('all bodies together have a bound (P1): the next is told to come later, and room comes back', async () => {
  const chunk = Buffer.alloc(60 << 20);
  const held = await Promise.all(Array.from({ length: 6 }, () => arrived(chunk)));
  const refused = payload();
  const taking = readBody(bodies, refused, undefined);
  refused.end(chunk);
  await assert.rejects(taking, (error: unknown) => error instanceof Failure && error.code === 'overloaded');
  for (const body of held) body.release();
  assert.equal(bodies.allBytes, 0);
  (await arrived(chunk)).release();
});

test('a body over the limit is refused with the limit, and counts no more; so is one whose client left', async () => {
  const one = payload();
  const taking = readBody(bodies, one, String(LIMIT + 1));
  one.end('x');
  await assert.rejects(taking, /over 94371840 bytes: .*--max-body-bytes/);
  const left = payload();
  const leaving = readBody(bodies, left, undefined);
  left.write(Buffer.alloc(1_000));
  await new Promise((resolve) => setImmediate(resolve));
  left.destroy();
  await assert.rejects(leaving, (error: unknown) => error instanceof Failure && error.code === 'cancelled');
  assert.equal(bodies.allBytes, 0);
});

test('257 prompts in one request are refused, 256 are not (P1)', () => {
  const limits = { vocabSize: 1_536, maxModelLen: 2_048, isStrict: false };
  const body = (count: number): Buffer =>
    Buffer.from(JSON.stringify({ prompt: Array.from({ length: count }, () => [5]) }));
  assert.equal(readCompletionBody(body(256), limits).prompts.length, 256);
  assert.throws(() => readCompletionBody(body(257), limits), /1 to 256 of either, not 257/);
});
