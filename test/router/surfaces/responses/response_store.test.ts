/** Bounds of the stored answers: age, number, bytes; and what is said of an id that is not there. Budget: 1 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { systemClock } from '../../../../shared/base/clock.ts';
import { Failure } from '../../../../shared/base/failure.ts';
import type { ChatItem } from '../../../../services/router/surfaces/responses/response_input.ts';
import { ResponseStore } from '../../../../services/router/surfaces/responses/response_store.ts';

const HOUR_MS = 3_600_000;
const before: readonly ChatItem[] = [{ message: { role: 'user', content: 'a' } }];
const itemOf = (id: string, content = 'b'): ChatItem => ({ id, message: { role: 'assistant', content } });

function isMissing(read: () => unknown): boolean {
  try {
    read();
    return false;
  } catch (error) {
    assert(error instanceof Failure && error.code === 'not_found' && error.status === 404, String(error));
    return true;
  }
}

function storeOf(bounds: { maxAgeMs?: number; maxCount?: number; maxBytes?: number } = {}): {
  store: ResponseStore;
  /** Sets the time. */
  at: (nowMs: number) => void;
  put: (id: string, content?: string) => void;
} {
  let nowMs = 0;
  const store = new ResponseStore(
    { ...systemClock, nowMs: () => nowMs },
    { maxAgeMs: HOUR_MS, maxCount: 1_000, maxBytes: 64 << 20, ...bounds },
  );
  const put = (id: string, content = 'b'): void => {
    store.put('', id, JSON.stringify({ id }), before, [itemOf(`msg_${id}`, content)]);
  };
  const at = (ms: number): void => {
    nowMs = ms;
  };
  return { store, at, put };
}

test('an answer is there as it was stored, with the conversation before it and its own items', () => {
  const { store, put } = storeOf();
  put('r');
  assert.equal(store.answer('', 'r').toString(), '{"id":"r"}');
  assert.deepEqual(JSON.parse(store.conversation('', 'r').toString()), [...before, itemOf('msg_r')]);
  assert.deepEqual(JSON.parse(store.item('', 'msg_r').toString()), itemOf('msg_r'));
  const bytes = [{ id: 'r' }, [...before, itemOf('msg_r')], itemOf('msg_r')];
  assert.equal(
    store.numBytes,
    bytes.reduce((sum, one) => sum + JSON.stringify(one).length, 0),
  );
});

test('a deleted answer is gone with its items and bytes', () => {
  const { store, put } = storeOf();
  put('r');
  store.delete('', 'r');
  assert.equal(store.numBytes, 0);
  for (const read of [
    () => store.answer('', 'r'),
    () => store.conversation('', 'r'),
    () => store.item('', 'msg_r'),
    () => {
      store.delete('', 'r');
    },
  ])
    assert(isMissing(read));
});

describe('the oldest answers go', () => {
  test('at their age', () => {
    const { store, at, put } = storeOf();
    put('old');
    at(HOUR_MS - 1);
    put('new');
    assert.equal(store.answer('', 'old').length, 12);
    at(HOUR_MS);
    assert(isMissing(() => store.answer('', 'old')) && isMissing(() => store.item('', 'msg_old')));
    assert.equal(store.answer('', 'new').length, 12);
  });

  test('beyond the number', () => {
    const { store, put } = storeOf({ maxCount: 3 });
    for (const id of ['a', 'b', 'c', 'd']) put(id);
    assert(isMissing(() => store.answer('', 'a')));
    for (const id of ['b', 'c', 'd']) assert.equal(store.answer('', id).toString(), JSON.stringify({ id }));
  });

  test('beyond the bytes; one that is larger than all of them is not stored, and drops no other', () => {
    const { store, put } = storeOf({ maxBytes: 1_000 });
    for (let i = 0; i < 20; i++) {
      put(`r${i}`, 'x'.repeat(100));
      assert(store.numBytes <= 1_000, `${store.numBytes} bytes`);
    }
    assert(isMissing(() => store.answer('', 'r0')));
    assert.equal(store.answer('', 'r19').toString(), '{"id":"r19"}');
    put('large', 'x'.repeat(1_000));
    assert(isMissing(() => store.answer('', 'large')));
    assert.equal(store.answer('', 'r19').toString(), '{"id":"r19"}');
  });
});

test('a router keeps a thousand answers', () => {
  const store = new ResponseStore(systemClock);
  for (let i = 0; i <= 1_000; i++) store.put('', `r${i}`, '{}', before, [itemOf(`msg_${i}`)]);
  assert(isMissing(() => store.answer('', 'r0')));
  for (const id of ['r1', 'r1000']) assert.equal(store.answer('', id).toString(), '{}');
});

test('the error of an id that is not there names it, cut, and says why it may be missing', () => {
  const { store } = storeOf();
  assert.throws(() => store.answer('', 'resp_other'), /no response "resp_other" here: it belongs to another router/);
  assert.throws(
    () => store.item('', 'x'.repeat(5_000)),
    (error: Error) => error.message.length < 400,
  );
});

test("an answer is its own tenant's: others find neither it nor its items, and cannot delete it", () => {
  const { store } = storeOf();
  store.put('one', 'r', '{}', before, [itemOf('msg_r')]);
  for (const owner of ['', 'two', 'One']) {
    assert(isMissing(() => store.answer(owner, 'r')));
    assert(isMissing(() => store.conversation(owner, 'r')));
    assert(isMissing(() => store.item(owner, 'msg_r')));
    assert(
      isMissing(() => {
        store.delete(owner, 'r');
      }),
    );
  }
  assert.equal(store.answer('one', 'r').toString(), '{}');
  store.delete('one', 'r');
  assert.equal(store.numBytes, 0);
});

test('a tenant that stores much drops its own answers, not those of others', () => {
  const { store } = storeOf({ maxCount: 4 });
  store.put('quiet', 'q', '{}', before, [itemOf('msg_q')]);
  for (let i = 0; i < 20; i++) store.put('flood', `f${i}`, '{}', before, [itemOf(`msg_f${i}`)]);
  assert.equal(store.answer('quiet', 'q').toString(), '{}');
  assert(isMissing(() => store.answer('flood', 'f16')) && store.answer('flood', 'f19').length === 2);
  const large = storeOf({ maxBytes: 3_000 }).store;
  large.put('quiet', 'q', '{}', before, [itemOf('msg_q')]);
  for (let i = 0; i < 4; i++) large.put('flood', `f${i}`, '{}', before, [itemOf(`msg_f${i}`, 'x'.repeat(500))]);
  assert(large.numBytes <= 3_000);
  assert.equal(large.answer('quiet', 'q').toString(), '{}');
});
