/**
 * A quiet client next to one with forty streams on eight seats, over a router and an instance as processes. Clients are told apart by
 * their addresses. What is counted is who is answered before whom, so nothing depends on the speed of the machine. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { request, type IncomingMessage } from 'node:http';
import { afterEach, test } from 'vitest';
import { Cluster } from '../support/cluster.ts';
import { until } from '../support/until.ts';

let cluster: Cluster | undefined;
afterEach(async () => {
  await cluster?.close();
  cluster = undefined;
});

const FLOOD = 40;
const SEATS = 8;

/** Asks for an answer from an address of this machine; resolves when it is complete. */
async function ask(url: string, localAddress: string, body: object): Promise<void> {
  const asked = request(`${url}/v1/completions`, {
    method: 'POST',
    localAddress,
    agent: false,
    headers: { 'content-type': 'application/json' },
  });
  asked.end(JSON.stringify({ ignore_eos: true, ...body }));
  const [answer] = (await once(asked, 'response')) as [IncomingMessage];
  answer.resume();
  await once(answer, 'end');
  assert.equal(answer.statusCode, 200);
}

/** Returns how many answers of the flood were complete when the quiet client's was. */
async function endedBefore(fairShares: 'on' | 'off', priority?: (i: number) => number): Promise<number> {
  cluster = await Cluster.up(
    ...['--prefill', '0', '--decode', '1', '--store', '0', '--max-num-seqs', String(SEATS)],
    ...['--fair-shares', fairShares, '--allow-priority'],
  );
  const up = cluster;
  let numEnded = 0;
  const flood = Array.from({ length: FLOOD }, async (_, i) => {
    const prompt = Array.from({ length: 20 }, (__, k) => 3 + ((7 * i + k) % 900));
    await ask(up.url, '127.0.0.1', { prompt, max_tokens: 150, priority: priority?.(i) });
    numEnded++;
  });
  await until('all seats are taken, and the others wait', async () => {
    const [instance] = await up.pool();
    return (instance?.running ?? 0) + (instance?.waiting ?? 0) + numEnded >= FLOOD;
  });
  const numBefore = numEnded;
  await ask(up.url, '127.0.0.2', { prompt: [5, 6, 7, 8], max_tokens: 2 });
  const numMeanwhile = numEnded - numBefore;
  await Promise.all(flood);
  await up.close();
  cluster = undefined;
  return numMeanwhile;
}

test('a quiet client is answered when a seat is free, also while the flood states the lowest numbers', async () => {
  const numWithout = await endedBefore('off');
  assert(numWithout >= FLOOD - 2 * SEATS, `${numWithout} answers before its own in one queue`);
  for (const priority of [undefined, (i: number) => i - 2_000_000_000]) {
    const num = await endedBefore('on', priority);
    assert(num <= 2 * SEATS, `${num} answers before its own with fair shares`);
  }
});
