/**
 * A quiet client next to one with forty streams on eight seats, over a router and an instance as processes. Clients are told apart by
 * their addresses. What is counted is who has its first token before whom, so nothing depends on the speed of the machine. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { request, type IncomingMessage } from 'node:http';
import { afterEach, test } from 'vitest';
import { Cluster, type RequestView } from '../support/cluster.ts';
import { until } from '../support/until.ts';

let cluster: Cluster | undefined;
afterEach(async () => {
  await cluster?.close();
  cluster = undefined;
});

const FLOOD = 40;
const SEATS = 8;

/** Prompt of the quiet client, shorter than any of the flood. */
const QUIET = [5, 6, 7, 8];

/** Returns how many requests have their first token between the quiet client's request and its own first token, by the router's clock. */
function firstBetween(requests: readonly RequestView[]): number {
  const startMs = ({ started_at: time }: RequestView): number => Date.parse(time);
  const firstMs = (one: RequestView): number => startMs(one) + (one.ttft_ms ?? Infinity);
  const own = requests.find(({ prompt_tokens: length }) => length === QUIET.length);
  assert(own?.ttft_ms, 'the quiet client has a first token');
  return requests.filter((one) => firstMs(one) > startMs(own) && firstMs(one) < firstMs(own)).length;
}

/** A client that has an address of this machine as its own, asks until `signal` aborts, and is told when a first token comes. */
interface Client {
  readonly localAddress: string;
  readonly signal: AbortSignal;
  readonly onFirst: () => void;
}

/** Asks for a stream; resolves when it is complete. */
async function ask(url: string, { localAddress, signal, onFirst }: Client, body: object): Promise<void> {
  const asked = request(`${url}/v1/completions`, {
    method: 'POST',
    localAddress,
    agent: false,
    signal,
    headers: { 'content-type': 'application/json' },
  });
  asked.end(JSON.stringify({ ignore_eos: true, stream: true, ...body }));
  const [answer] = (await once(asked, 'response')) as [IncomingMessage];
  assert.equal(answer.statusCode, 200);
  let text = '';
  let isFirst = true;
  for await (const chunk of answer) {
    text += String(chunk);
    if (!isFirst || !text.includes('"choices":[{')) continue;
    isFirst = false;
    onFirst();
  }
  assert.match(text, /\[DONE\]/);
}

/** Returns how many requests of the flood have their first token between the quiet client's request and its own first token. */
async function firstBefore(fairShares: 'on' | 'off', priority?: (i: number) => number): Promise<number> {
  cluster = await Cluster.up(
    ...['--prefill', '0', '--decode', '1', '--store', '0', '--max-num-seqs', String(SEATS)],
    ...['--fair-shares', fairShares, '--allow-priority'],
  );
  const up = cluster;
  const over = new AbortController();
  let numFirst = 0;
  const client: Client = { localAddress: '127.0.0.1', signal: over.signal, onFirst: () => numFirst++ };
  const flood = Array.from({ length: FLOOD }, async (_, i) => {
    const prompt = Array.from({ length: 20 }, (__, k) => 3 + ((7 * i + k) % 900));
    // Answers of different lengths, so that seats become free one after the other.
    const body = { prompt, max_tokens: 300 + 40 * (i % SEATS), priority: priority?.(i) };
    while (!over.signal.aborted)
      await ask(up.url, client, body).catch((error: unknown) => {
        if (!over.signal.aborted) throw error;
      });
  });
  await until('all seats are taken, and the others wait', async () => {
    const [instance] = await up.pool();
    return numFirst >= SEATS && (instance?.waiting ?? 0) >= FLOOD - SEATS - 1;
  });
  const quiet = { ...client, localAddress: '127.0.0.2', onFirst: () => undefined };
  await ask(up.url, quiet, { prompt: QUIET, max_tokens: 2 });
  const numMeanwhile = firstBetween(await up.requests());
  over.abort();
  await Promise.all(flood);
  await up.close();
  cluster = undefined;
  return numMeanwhile;
}

test('a quiet client is next when a seat is free, also while the flood states the lowest numbers', async () => {
  const numWithout = await firstBefore('off');
  assert(numWithout >= FLOOD - 3 * SEATS, `${numWithout} first tokens before its own in one queue`);
  for (const priority of [undefined, (i: number) => i - 2_000_000_000]) {
    const num = await firstBefore('on', priority);
    // At most the seats that were being filled when it came.
    assert(
      num <= SEATS && num < numWithout,
      `${num} first tokens before its own with fair shares, ${numWithout} without`,
    );
  }
});
