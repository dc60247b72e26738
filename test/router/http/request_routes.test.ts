/** Pages of `/api/requests`, by a clock that the test sets. Budget: 2 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure } from '../../../shared/base/failure.ts';
import { pageOf } from '../../../services/router/http/request_routes.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import type { RequestTrace } from '../../../services/router/record/request_trace.ts';
import { ParameterFailure } from '../../../services/router/api/parameter_failure.ts';
import type { RequestRow } from '../../../shared/protocol/router_api.ts';
import { placedAt } from '../../support/request_events.ts';
import { kindOf } from '../../support/request_kind.ts';

const T0 = 1_700_000_000_000;

class World {
  nowMs = 0;
  readonly log: RequestLog;

  constructor(most = 100) {
    const clock = { nowMs: () => this.nowMs, wallMs: () => T0 + this.nowMs, sleep: never, turn: never };
    this.log = new RequestLog(clock, [], most);
  }

  open(id: string, decode = 'd1', model = 'm', tenant = ''): RequestTrace {
    const names = { clientId: `client-${id}`, traceId: undefined, tenant, key: tenant && `key-of-${tenant}` };
    const trace = this.log.open(id, kindOf('/v1/completions'), names);
    trace.emit({ kind: 'read', facts: { model, promptTokens: 100 } });
    trace.emit(placedAt(decode, { reason: `lowest price at ${decode}` }));
    return trace;
  }

  finish(id: string, ttftMs: number, failure?: Failure, decode?: string): void {
    const trace = this.open(id, decode);
    this.nowMs += ttftMs;
    if (!failure) trace.emit({ kind: 'firstToken', attempt: 1, report: undefined, isFirst: true });
    this.nowMs += 10;
    trace.end(failure ? 'failed' : 'finished', failure ? 'error' : 'stop', failure);
  }

  ids(query: Record<string, string>): string[] {
    return (this.page({ view: 'rows', ...query }).requests as RequestRow[]).map(({ id }) => id);
  }

  page(query: Record<string, string>): ReturnType<typeof pageOf> {
    return pageOf(this.log, query, this.nowMs);
  }
}

function never(): Promise<void> {
  return Promise.reject(new Error('not used'));
}

test('a page goes on after its cursor while new requests come and active ones end', () => {
  const world = new World();
  const active = world.open('active');
  for (let i = 0; i < 9; i++) world.finish(`r${i}`, 5);
  const first = world.page({ view: 'rows', limit: '4' });
  assert.deepEqual(world.ids({ limit: '4' }), ['r8', 'r7', 'r6', 'r5']);
  assert.equal(first.kept, 10);
  world.finish('new', 5);
  active.end('cancelled', 'abort');
  assert.deepEqual(world.ids({ limit: '4', cursor: first.next ?? '' }), ['r4', 'r3', 'r2', 'r1']);
  const last = world.page({ limit: '4', cursor: '3' });
  assert.deepEqual(
    (last.requests as RequestRow[]).map(({ id }) => id),
    ['r0', 'active'],
  );
  assert.equal(last.next, null);
});

test('requests are chosen by phase, model, node, time, error, reason and id', () => {
  const world = new World();
  world.finish('fast', 5);
  world.finish('slow', 500, undefined, 'd2');
  world.finish('broken', 50, new Failure('instance_lost', 'd1 is lost'));
  world.open('open', 'd1', 'other');
  assert.deepEqual(world.ids({ phase: 'finished' }), ['slow', 'fast']);
  assert.deepEqual(world.ids({ phase: 'finished,failed', node: 'd1' }), ['broken', 'fast']);
  assert.deepEqual(world.ids({ model: 'other' }), ['open']);
  assert.deepEqual(world.ids({ min_ttft_ms: '100' }), ['slow']);
  assert.deepEqual(world.ids({ error: '1' }), ['broken']);
  assert.deepEqual(world.ids({ error: 'is lost' }), ['broken']);
  assert.deepEqual(world.ids({ error: '0' }), ['open', 'slow', 'fast']);
  assert.deepEqual(world.ids({ reason: 'at d2' }), ['slow']);
  assert.deepEqual(world.ids({ reason: 'error' }), ['broken']);
  assert.deepEqual(world.ids({ since: String(T0 + 20) }), ['open', 'broken']);
  assert.deepEqual(world.ids({ q: 'client-sl' }), ['slow']);
  assert.deepEqual(world.ids({ q: 'fast' }), ['fast']);
  assert.deepEqual(world.ids({ endpoint: '/v1/embeddings' }), []);
  assert.deepEqual(world.ids({ slowest: '1', limit: '2' }), ['slow', 'broken']);
  const [row] = world.page({ view: 'rows', q: 'broken' }).requests as RequestRow[];
  assert.equal(row?.error, 'd1 is lost');
  assert.equal(row.started_at, T0 + 525);
});

test('requests are chosen by tenant, and name it and its key; without keys both are null', () => {
  const world = new World();
  world.open('a1', 'd1', 'm', 'a');
  world.open('b1', 'd1', 'm', 'b');
  world.open('a2', 'd1', 'm', 'a');
  world.open('none');
  assert.deepEqual(world.ids({ tenant: 'a' }), ['a2', 'a1']);
  assert.deepEqual(world.ids({ tenant: 'c' }), []);
  const named = (view: string): unknown[] =>
    (world.page({ view }).requests as RequestRow[]).map(({ tenant, key }) => [tenant, key]);
  const [a, b] = ['a', 'b'].map((tenant) => [tenant, `key-of-${tenant}`]);
  for (const view of ['rows', 'full']) assert.deepEqual(named(view), [[null, null], a, b, a]);
});

test('a parameter that is not allowed is refused with those that are', () => {
  const world = new World();
  const refused = (query: Record<string, string>, message: RegExp): void => {
    assert.throws(
      () => world.page(query),
      (error: unknown) => error instanceof ParameterFailure && message.test(error.message),
    );
  };
  refused({ phase: 'done' }, /"done" is none of tokenizing, placing, .*finished, failed, cancelled/);
  refused({ limit: '5000' }, /limit: a whole number from 1 to 1000/);
  refused({ view: 'html' }, /full, rows/);
  refused({ slowest: 'yes' }, /slowest: 0 or 1/);
  refused({ slowest: '1', cursor: '7' }, /one page/);
  refused({ cursor: 'abc' }, /cursor: a whole number/);
});

test('beyond the last ones, requests that failed and the 20 slowest of a minute stay for an hour', () => {
  const world = new World(50);
  const failure = new Failure('internal', 'broken');
  for (let i = 0; i < 300; i++) world.finish(`a${i}`, i === 7 ? 900 : 10 + (i % 5), i === 3 ? failure : undefined);
  const startMs = world.nowMs;
  assert.ok(startMs < 60_000);
  const early = world.log.all().filter(({ id }) => Number(id.slice(1)) < 250);
  assert.ok(early.some(({ id }) => id === 'a3') && early.some(({ id }) => id === 'a7'));
  assert.ok(early.length <= 42, `${early.length} beyond the last 50`);
  world.nowMs = 3_590_000;
  for (let i = 0; i < 60; i++) world.finish(`b${i}`, 5);
  assert.ok(world.log.all().some(({ id }) => id === 'a3'));
  world.nowMs = startMs + 3_600_001;
  world.finish('c', 5);
  assert.deepEqual(
    world.log.all().filter(({ id }) => id.startsWith('a')),
    [],
  );
});

test('a search finds what stands in the record of an ended request, and nothing that only resembles it', () => {
  const world = new World();
  world.finish('a', 5, undefined, 'd"1');
  world.finish('b', 5, new Failure('internal', 'no “d3” here'), 'd2');
  assert.deepEqual(world.ids({ node: 'd"1' }), ['a']);
  assert.deepEqual(world.ids({ error: '“d3”' }), ['b']);
  assert.deepEqual(world.ids({ node: 'd3' }), []);
  assert.deepEqual(world.ids({ node: 'kind' }), []);
  assert.deepEqual(world.ids({ reason: 'at d"1' }), ['a']);
});
