/** Instances that a request avoids, for how long, and the request's block chain. Simulated clock. Budget: 5 s. */
import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { test } from 'vitest';
import { systemClock } from '../../../shared/base/clock.ts';
import { Random } from '../../../shared/base/random.ts';
import { linkSignals } from '../../../shared/base/signal.ts';
import { chainOf, type Digest } from '../../../shared/kv/block_key.ts';
import { noScope, type Format } from '../../../shared/kv/format.ts';
import { Instance } from '../../../shared/placement/instance.ts';
import { Exclusions } from '../../../services/router/relay/exclusions.ts';
import { ChainCache } from '../../../services/router/relay/chain_cache.ts';
import { RequestChain } from '../../../services/router/relay/request_chain.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { keyWords } from '../../../shared/protocol/packing.ts';

function instance(epoch: string): Instance {
  return new Instance(
    { member: { name: 'd1', role: 'decode', address: 'd1:1', pid: 1, epoch }, protocolVersion: 1 },
    0,
  );
}

test('one that failed is kept away from until it is heard of again, and a moment longer', async () => {
  const clock = new SimulatedClock();
  const excluded = new Exclusions(clock, new Random(1));
  const one = instance('a');
  await clock.run(1_000);
  one.lastHeardMs = 900;
  excluded.failed(one);
  await clock.run(30_000);
  assert(excluded.has(one), 'not heard of since');
  one.lastHeardMs = 30_000;
  assert(!excluded.has(one));
  excluded.failed(one);
  one.lastHeardMs = 30_001;
  assert(excluded.has(one), 'heard of, but the moment is not over: all who failed would come back at once');
  await clock.run(30_300);
  assert(!excluded.has(one));
});

test('another epoch is another instance; busy is not broken', async () => {
  const clock = new SimulatedClock();
  const excluded = new Exclusions(clock, new Random(1));
  excluded.failed(instance('a'));
  assert(excluded.has(instance('a')));
  assert(!excluded.has(instance('b')));
  const busy = instance('c');
  excluded.busy(busy);
  assert(excluded.has(busy));
  await clock.run(200);
  assert(!excluded.has(busy), 'without a word from it');
});

test('a holder that did not deliver is not asked again by the same attempt, but may be placed', () => {
  const excluded = new Exclusions(new SimulatedClock(), new Random(1));
  const holder = instance('a');
  excluded.unhelpful(holder);
  assert(!excluded.isHolder(holder));
  assert(!excluded.has(holder));
  excluded.beginAttempt();
  assert(excluded.isHolder(holder));
});

test('the chain of a long request is derived in slices that others run between, and once', async () => {
  const digest = 'ab'.repeat(16) as Digest;
  const model = { digest, format: { blockSize: 32 } as Format };
  const tokens = Uint32Array.from({ length: 32_768 }, (_, i) => i % 1_000);
  const chain = new RequestChain(systemClock, noScope, new ChainCache());
  let numTurns = 0;
  let isDone = false;
  const others = (async () => {
    while (!isDone) {
      await systemClock.turn();
      numTurns++;
    }
  })();
  const blocks = await chain.blocks(model, tokens);
  isDone = true;
  await others;
  assert(numTurns >= 10, `${numTurns} turns of the loop in between`);
  const all = chainOf(digest, 32, [...tokens, 1, 2, 3]);
  const keys = keyWords(all.map(({ key }) => key));
  const hashes = all.slice(0, 1_023);
  assert.deepEqual(blocks, { keys: keys.subarray(0, 2 * 1_023), hashes, lastDigest: all[1_022]?.digest });
  assert.equal(await chain.blocks(model, tokens), blocks, 'packed once');
  assert.deepEqual(await chain.blocks(model, Uint32Array.from([...tokens, 1, 2, 3])), {
    keys,
    hashes: all,
    lastDigest: all[1_023]?.digest,
  });
  const other = await chain.blocks({ ...model, digest: 'cd'.repeat(16) as Digest }, tokens);
  assert.notEqual(other.lastDigest, blocks.lastDigest);
});

test('a signal that follows others lets go of them', () => {
  const [a, b] = [new AbortController(), new AbortController()];
  for (let i = 0; i < 100; i++) linkSignals(a.signal, b.signal).release();
  assert.equal(getEventListeners(a.signal, 'abort').length, 0);
  const hash = linkSignals(a.signal, b.signal);
  b.abort('why');
  assert.equal(hash.signal.reason, 'why');
});
