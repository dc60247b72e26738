/** Failures that go from process to process: what logs keep of them, and what clients are told. Budget: 1 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { Failure, toldOf, type FailureCode } from '../../shared/base/failure.ts';
import { toFailure, toStatus } from '../../shared/net/grpc/status.ts';
import { errorFormOf } from '../router/surfaces/support.ts';

const PEER = '10.0.0.7:4100';
const HOLDER = '10.0.0.8:4200';
const INSIDE = /\d+\.\d+\.\d+\.\d+|:4100|:4200|decode-1/;

/** Returns what a router has of a failure that a peer has answered with. */
const answered = (error: unknown, peer = PEER): Failure => toFailure(toStatus(error), peer);

describe('clients are told no address and no name', () => {
  test('of an instance that refuses the request, in its own words', () => {
    const failure = answered(new Failure('invalid_request', 'stop: “é” is no text'));
    assert.deepEqual(
      [failure.code, failure.message, failure.told],
      ['invalid_request', `${PEER}: stop: “é” is no text`, 'stop: “é” is no text'],
    );
  });

  test('of an instance that passes on what another has refused', () => {
    for (const code of ['invalid_request', 'overloaded', 'unavailable'] as const) {
      const failure = answered(answered(new Failure(code, 'no block is free at “é”'), HOLDER));
      assert.equal(failure.message, `${PEER}: ${HOLDER}: no block is free at “é”`);
      assert.equal(failure.told, 'no block is free at “é”');
    }
  });

  test('of a failure between processes, whatever its text says', () => {
    const codes: FailureCode[] = ['internal', 'instance_lost', 'session_broken', 'transfer_failed', 'cancelled'];
    for (const code of [...codes, 'deadline_exceeded', 'not_found', 'unauthenticated', 'cluster_mismatch'] as const) {
      const failure = answered(new Failure(code, `decode-1 at ${HOLDER} sent a part that is none`));
      assert.equal(failure.code, code);
      assert.match(failure.message, /^10\.0\.0\.7:4100: decode-1 at 10\.0\.0\.8:4200/);
      assert.doesNotMatch(failure.told, INSIDE);
    }
    assert.doesNotMatch(answered(new Error(`connect ECONNREFUSED ${HOLDER}`)).told, INSIDE);
  });

  test('of a failure of the transport', () => {
    for (let code = 1; code <= 16; code++) {
      // RESOURCE_EXHAUSTED and its like are about the size of a message.
      const details = [3, 8, 9, 11].includes(code) ? 'too long' : `Deadline exceeded, remote_addr=${HOLDER}`;
      assert.doesNotMatch(toFailure({ code, details }, PEER).told, INSIDE, String(code));
    }
  });

  test('in the errors of any API, as answers and as events', () => {
    const told = 'an instance is lost';
    const failure = new Failure('instance_lost', `decode-1 at ${PEER} is lost`, { told });
    for (const path of ['/v1/chat/completions', '/v1/messages', '/v1/responses', '/v1/embeddings', '/nothing'])
      for (const shown of [
        JSON.stringify(errorFormOf(path).body(failure, 'r1')),
        errorFormOf(path).event(failure, 'r1'),
      ]) {
        assert(shown.includes(told), shown);
        assert.doesNotMatch(shown, INSIDE);
      }
  });
});

test('other errors are told by their message', () => {
  assert.equal(toldOf(new Failure('overloaded', 'try again')), 'try again');
  assert.equal(toldOf(new Error('no such path')), 'no such path');
});
