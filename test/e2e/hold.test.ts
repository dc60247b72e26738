/**
 * Checks what a supervisor, a busy instance, a hanging device, a broken disk or a namesake does to requests. Real processes; the tests
 * assert only what comes out. Budget: 150 s.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { rmSync, writeFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ClientDuplexStream } from '@grpc/grpc-js';
import { afterEach, expect, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { Random } from '../../shared/base/random.ts';
import type { Digest } from '../../shared/kv/block_key.ts';
import { packDigest, packTokens } from '../../shared/protocol/packing.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { askOnce } from '../../shared/net/network.ts';
import { toFailure } from '../../shared/net/grpc/status.ts';
import { methodOf, wires } from '../../shared/net/grpc/wire.ts';
import { Cluster, harbour, run, runToEnd, temporaryFolder } from '../support/cluster.ts';
import { eventsOf } from './chaos/load.ts';
import { halfOf, longTest } from '../support/long.ts';
import { freePort } from '../support/free_ports.ts';
import { stoppedIn } from '../support/stopped_in.ts';
import { callDecode } from '../support/played_decode.ts';
import { PATIENCE_MS, patientCall, until } from '../support/until.ts';
import { neutralRequest } from '../../shared/protocol/request.ts';

const random = new Random(31);
const promptOf = (length: number): number[] => Array.from({ length }, () => 3 + random.below(1_500));

let cluster: Cluster | undefined;
const children: ChildProcess[] = [];
const folder = temporaryFolder();
afterEach(async () => {
  await cluster?.close();
  cluster = undefined;
  for (const child of children.splice(0)) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    const exit = once(child, 'exit');
    child.kill('SIGKILL');
    await exit;
  }
  folder.remove();
});

/** A role by itself; resolves with its process when it is ready. */
async function start(role: string, token: string, ...args: string[]): Promise<{ child: ChildProcess; line: string }> {
  const child = run([role, '--log-level', 'warn', ...args], { PENSTOCK_CLUSTER_TOKEN: token });
  children.push(child);
  assert(child.stdout);
  const line = await Promise.race([
    once(createInterface({ input: child.stdout }), 'line').then(([text]) => text as string),
    once(child, 'exit').then(() => ''),
  ]);
  assert(line, `${role} ended at its start`);
  return { child, line };
}

async function post(of: Cluster, path: string, body: unknown): Promise<{ status: number; text: string }> {
  const response = await fetch(`${of.url}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  return { status: response.status, text: await response.text() };
}

test('with every decode instance killed a request waits for one, says so, and is answered; what served is restarted at once', async () => {
  cluster = await Cluster.up('--prefill', '0', '--decode', '2', '--store', '0');
  const up = cluster;
  const prompt = promptOf(100);
  const want = await up.completion({ prompt, max_tokens: 40 });
  // eslint-disable-next-line time/speed -- who ends sooner after its start counts as one that cannot serve
  await sleep(1_200);
  for (const name of ['decode-1', 'decode-2']) up.kill(name);
  const again = await up.completion({ prompt, max_tokens: 40 });
  assert.deepEqual(again.choices[0]?.token_ids, want.choices[0]?.token_ids);
  const [view] = await up.requests(1);
  expect(view?.notes.join('\n')).toContain('waits for a decode instance');
  const restarts = up.errors.filter((line) => line.includes('starting it again'));
  expect(restarts).toHaveLength(2);
  for (const line of restarts) expect(line).not.toContain(' in ');
});

test('busy instances: requests are held and asked again, none fails, and nothing is computed twice', async () => {
  cluster = await Cluster.up(
    ...['--prefill', '1', '--decode', '1', '--store', '0', '--local-prefill-tokens', '64'],
    // Prompts wait at the prefill instance, and answers at the decode instance.
    ...['--policy', 'longest_prefix', '--max-waiting', '1', '--max-num-seqs', '1', '--chunk-tokens', '64'],
  );
  const up = cluster;
  const answers = await Promise.all(
    Array.from({ length: 8 }, () => up.completion({ prompt: promptOf(300), max_tokens: 4 })),
  );
  for (const { choices } of answers) expect(choices[0]?.token_ids).toHaveLength(4);
  const views = await up.requests(8);
  const byDecode = views.map(({ attempts }) => attempts.at(-1)?.report?.computed_tokens ?? 0);
  // The prefill instance's blocks came from there; what its turn had not come to when a busy decode instance ended it may be so
  // little that the next one computes it (--local-prefill-tokens).
  for (const computed of byDecode) expect(computed).toBeLessThanOrEqual(64);
});

test('the outcomes of attempts: finished, cancelled, stopped', async () => {
  cluster = await Cluster.up('--prefill', '0', '--decode', '1', '--store', '0');
  const up = cluster;
  await up.completion({ prompt: [5, 6, 7], max_tokens: 3 });
  const [finished] = await up.requests(1);
  assert.deepEqual([finished?.phase, finished?.attempts[0]?.outcome], ['finished', 'finished']);
  const client = new AbortController();
  const leaving = up.completion({ prompt: [5, 6, 7], max_tokens: 1_900 }, client.signal).catch(() => undefined);
  await until('it decodes', async () => (await up.requests(1))[0]?.phase === 'decoding');
  client.abort();
  await leaving;
  const cancelled = await until('it is closed', async () => {
    const [view] = await up.requests(1);
    return view?.phase === 'cancelled' && view;
  });
  assert.equal(cancelled.attempts[0]?.outcome, 'cancelled');
});

longTest('an instance with few blocks takes what fits it and refuses for nobody else', async () => {
  const token = 'few-blocks-token';
  cluster = await Cluster.up(
    ...['--prefill', '0', '--decode', '1', '--store', '0', '--cluster-token', token, '--kv-blocks', '70'],
    // Short prompts go to the shorter queue, whatever the steps of either have taken so far.
    ...['--policy', 'longest_prefix'],
  );
  await start(
    'decode',
    token,
    '--name',
    'small',
    '--join',
    cluster.hub,
    '--model',
    harbour,
    '--kv-blocks',
    '8',
    '--threads',
    '1',
  );
  const up = cluster;
  const long = await Promise.all(
    Array.from({ length: 6 }, () => up.completion({ prompt: promptOf(600), max_tokens: 4 })),
  );
  for (const { choices } of long) expect(choices[0]?.token_ids).toHaveLength(4);
  const views = await up.requests(6);
  expect(new Set(views.map(({ attempts }) => attempts[0]?.decode))).toEqual(new Set(['decode-1']));
  const models = (await (await fetch(`${up.url}/v1/models`)).json()) as { data: { max_model_len: number }[] };
  assert.equal(models.data[0]?.max_model_len, 2_048);
  await Promise.all(Array.from({ length: 12 }, () => up.completion({ prompt: promptOf(20), max_tokens: 8 })));
  const short = await up.requests(12);
  expect(new Set(short.map(({ attempts }) => attempts[0]?.decode))).toEqual(new Set(['decode-1', 'small']));
});

test('a device that hangs while its process lives is noticed, and its requests go on elsewhere', async () => {
  const token = 'hang-token';
  // Its measured times do not count: a price could keep all requests from an instance that was warmed up while the machine was busy.
  const policy = ['--policy', 'longest_prefix'];
  cluster = await Cluster.up(...policy, '--prefill', '0', '--decode', '1', '--store', '0', '--cluster-token', token);
  const up = cluster;
  // Too short for a block: the instance that has seen them is no better a place.
  const prompts = Array.from({ length: 6 }, () => promptOf(20));
  const want = await Promise.all(prompts.map((prompt) => up.completion({ prompt, max_tokens: 60 })));
  const hanging = await start(
    ...(['decode', token, '--name', 'hanging', '--join', cluster.hub, '--model', harbour, '--threads', '1'] as const),
    // eslint-disable-next-line time/speed -- the device hangs for good, other steps take milliseconds
    ...(['--hang-after-steps', '10', '--step-timeout-ms', '1000'] as const),
  );
  const exit = once(hanging.child, 'exit');
  const answers = await Promise.all(prompts.map((prompt) => up.completion({ prompt, max_tokens: 60 })));
  for (const [i, { choices }] of answers.entries())
    assert.deepEqual(choices[0]?.token_ids, want[i]?.choices[0]?.token_ids);
  await exit;
  expect((await up.requests(6)).some(({ attempts }) => attempts.length > 1)).toBe(true);
});

longTest('/tokenize counts as a request, and a reader that stops gives its place back', async () => {
  cluster = await Cluster.up(
    ...['--prefill', '0', '--decode', '1', '--store', '0', '--max-requests', '8'],
    // eslint-disable-next-line time/speed -- the reader reads nothing, ever
    ...['--stalled-reader-ms', '5000'],
  );
  const up = cluster;
  // More than the buffers of a connection hold: some 26 MB.
  const body = JSON.stringify({
    prompt: Array.from({ length: 8 }, (_, i) => [5, 6, i]),
    max_tokens: 2_040,
    ignore_eos: true,
    stream: true,
    logprobs: 20,
    return_token_ids: true,
  });
  const { hostname, port } = new URL(up.url);
  // Opened ahead, as clients' pools and browsers do: it has not stopped reading.
  const ahead = connect({ host: hostname, port: Number(port) });
  const socket = connect({ host: hostname, port: Number(port) });
  socket.on('error', () => undefined);
  socket.write(
    `POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  );
  socket.pause();
  await until('it runs', async () => (await up.requests(8)).filter(({ phase }) => phase === 'decoding').length === 8);
  const refused = await post(up, '/tokenize', { prompt: 'x' });
  assert.equal(refused.status, 503);
  assert.match(refused.text, /8 requests are in flight/);
  const ended = await until('its places are free', async () => {
    const views = await up.requests(8);
    const isOver = views.every(({ phase }) => /finished|failed|cancelled/.test(phase));
    return views.length === 8 && isOver && views;
  });
  // Not because they were through: their reader took nothing.
  for (const { output_tokens: numTokens } of ended) expect(numTokens).toBeLessThan(2_040);
  assert.equal((await post(up, '/tokenize', { prompt: 'x' })).status, 200);
  ahead.write('GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n');
  let text = '';
  for await (const chunk of ahead) text += String(chunk);
  assert.match(text, /^HTTP\/1\.1 200 OK/);
  socket.destroy();
});

test('connections beyond their bound are closed, and there is room again when one ends (P1)', async () => {
  cluster = await Cluster.up('--prefill', '0', '--decode', '1', '--store', '0', '--max-connections', '6');
  const { hostname, port } = new URL(cluster.url);
  const open = async (): Promise<{ socket: Socket; isClosed: boolean }> => {
    const socket = connect({ host: hostname, port: Number(port) });
    const state = { socket, isClosed: false };
    socket.on('error', () => undefined);
    socket.once('close', () => (state.isClosed = true));
    await once(socket, 'connect');
    return state;
  };
  const all: Awaited<ReturnType<typeof open>>[] = [];
  for (let i = 0; i < 10; i++) all.push(await open());
  await until('four are closed', () => all.filter(({ isClosed }) => isClosed).length >= 4);
  for (const { socket } of all) socket.destroy();
  await until('there is room again', async () => (await fetch(`${cluster?.url}/version`).catch(() => undefined))?.ok);
});

longTest(
  'a caller that says too much is answered like any other (P1), by whichever engine: each serves both calls',
  async () => {
    const token = 'talkative-token';
    cluster = await Cluster.up('--prefill', '1', '--decode', '1', '--store', '0', '--cluster-token', token);
    const { model } = (await (await fetch(`${cluster.url}/api/pool`)).json()) as { model: { digest: Digest } };
    const network = new GrpcNetwork(token, systemClock);
    const tokensOf = async (name: string): Promise<number[]> => {
      const { address } = (await cluster?.node(name)) ?? assert.fail(`there is no ${name}`);
      const call = callDecode(network, address, {
        context: {
          requestId: 'talk',
          tenant: '',
          priority: 0,
          timeoutMs: PATIENCE_MS,
          traceId: 't',
          router: '',
          placement: 0,
          expectedTokens: 0,
        },
        format: packDigest(model.digest),
        tokens: packTokens([5, 6, 7]),
        lastDigest: Buffer.alloc(0),
        request: neutralRequest(3, 43),
        sources: [],
        maxSelfCompute: 64,
        promptLogprobsFrom: 0,
        group: null,
      });
      for (let i = 0; i < 1_000; i++) call.more({ sources: [], maxSelfCompute: 64 });
      const tokens: number[] = [];
      for await (const { sampled } of call.replies) {
        if (!sampled) continue;
        assert.equal(sampled.position, 3 + tokens.length);
        tokens.push(sampled.token);
      }
      assert.equal(tokens.length, 40);
      return tokens;
    };
    assert.deepEqual(await tokensOf('prefill-1'), await tokensOf('decode-1'));
    network.close();
  },
);

longTest(
  'a store has 8,192 fetches open at once; one more is overload, not a failure, and their ends make room (P1, R2)',
  async () => {
    const token = 'fetching-token';
    cluster = await Cluster.up('--prefill', '0', '--decode', '1', '--store', '1', '--cluster-token', token);
    const { address } = await cluster.node('store-1');
    const network = new GrpcNetwork(token, systemClock);
    const method = methodOf(wires.fetch);
    /** Opens a fetch stream that has not yet sent its request, so that it stays open. */
    const open = (): ClientDuplexStream<object, object> =>
      network
        .client(address)
        .makeBidiStreamRequest(
          method.path,
          method.requestSerialize,
          method.responseDeserialize,
          network.metadata(),
          {},
        );
    const codeOf = async (call: ReturnType<typeof open>): Promise<string> => {
      const [error] = (await once(call.resume(), 'error')) as [Error];
      return toFailure(error, address).code;
    };
    const calls = Array.from({ length: 8_192 }, open);
    const ends = Promise.all(calls.map(codeOf));
    assert.equal(await codeOf(open()), 'overloaded');
    for (const call of calls) call.end();
    const codes = await ends;
    assert(codes.every((code) => code === 'invalid_request'));
    await until('none is open', async () => (await cluster?.node('store-1'))?.open_streams === 0);
    network.close();
  },
);

longTest('a store that cannot open its disk serves from DRAM, says so, and opens it when it can', async () => {
  const token = 'disk-fault-token';
  cluster = await Cluster.up(
    ...['--prefill', '0', '--decode', '1', '--store', '0', '--cluster-token', token, '--kv-blocks', '70'],
  );
  const up = cluster;
  folder.remove();
  writeFileSync(folder.path, 'not a folder');
  await start('store', token, '--name', 'broken', '--join', cluster.hub, '--data-dir', join(folder.path, 'data'));
  const prompt = promptOf(500);
  await up.completion({ prompt, max_tokens: 2 });
  const tier = async (name: string): Promise<Record<string, unknown>> => (await up.node('broken')).tiers[name] ?? {};
  await until('it holds the blocks in DRAM', async () => Number((await tier('dram'))['blocks']) >= 15);
  assert.match(String((await tier('disk'))['fault']), /ENOTDIR|EEXIST|cannot make/);
  const metrics = await (await fetch(`${up.url}/metrics`)).text();
  assert.match(metrics, /penstock_tier_available\{[^}]*engine="broken"[^}]*tier="disk"[^}]*\} 0/);
  rmSync(folder.path);
  await until('the disk is back', async () => (await tier('disk'))['fault'] === null);
  // Blocks that were only in DRAM are written to disk when they are offered again.
  await up.completion({ prompt: [...prompt, ...promptOf(40)], max_tokens: 2 });
  await until('blocks are durable', async () => Number((await tier('disk'))['blocks']) >= 1);
});

/** Each waits for long, with a cluster of its own: they run at the same time. */
longTest.concurrent('of two processes with one name the second is refused, and the first goes on', async () => {
  const token = 'namesake-token';
  const up = await Cluster.up('--prefill', '0', '--decode', '1', '--store', '0', '--cluster-token', token);
  try {
    const args = ['--name', 'decode-1', '--join', up.hub, '--model', harbour, '--threads', '1'];
    const { code, errors } = await runToEnd(['decode', ...args, '--log-level', 'silent'], {
      PENSTOCK_CLUSTER_TOKEN: token,
    });
    assert.equal(code, 1);
    assert.match(errors, /the name decode-1 belongs to process \d+ at .*: give one of them another --name/);
    assert.equal((await up.completion({ prompt: [5, 6], max_tokens: 2 })).choices[0]?.token_ids.length, 2);
  } finally {
    await up.close();
  }
});

longTest.concurrent('--advertise is the address that others use', async () => {
  const token = 'advertise-token-1';
  const up = await Cluster.up('--prefill', '0', '--decode', '1', '--store', '0', '--cluster-token', token);
  const port = await freePort();
  // 127.0.0.9 reaches it too: it listens on every address of this machine.
  const args = ['--name', 'behind-nat', '--join', up.hub, '--model', harbour, '--threads', '1', '--log-level', 'warn'];
  const child = run(['decode', ...args, '--bind', `0.0.0.0:${port}`, '--advertise', `127.0.0.9:${port}`], {
    PENSTOCK_CLUSTER_TOKEN: token,
  });
  try {
    const node = await until('it has joined', async () => (await up.pool()).find(({ name }) => name === 'behind-nat'));
    assert.equal(node.address, `127.0.0.9:${port}`);
    up.kill('decode-1', 'SIGSTOP');
    await until('the other is gone', async () => (await up.pool()).every(({ name }) => name !== 'decode-1'));
    assert.equal((await up.completion({ prompt: [5, 6], max_tokens: 2 })).choices[0]?.token_ids.length, 2);
    up.kill('decode-1', 'SIGCONT');
  } finally {
    child.kill('SIGKILL');
    await up.close();
  }
});

test.each(halfOf(['decode', 'prefill']))(
  'a %s instance that drains with work in flight finishes it, and leaves',
  async (role) => {
    const token = 'drain-token';
    cluster = await Cluster.up(
      ...['--prefill', '2', '--decode', '2', '--store', '0', '--cluster-token', token],
      // Both roles have work: prompts here, answers there.
      ...['--policy', 'longest_prefix', '--local-prefill-tokens', '64', '--chunk-tokens', '64'],
    );
    const up = cluster;
    const prompts = Array.from({ length: 6 }, () => promptOf(1_200));
    // Long answers: the work must last for some heartbeats, which tell of it.
    const answers = Promise.all(prompts.map((prompt) => up.completion({ prompt, max_tokens: 400 })));
    // A call that is on its way when the instance begins to drain is refused, and placed elsewhere: that would be a second attempt.
    const node = await until('work is in flight', async () => {
      const ours = (await up.pool()).filter((one) => one.role === role);
      const numThere = ours.reduce((sum, { running, waiting }) => sum + running + waiting, 0);
      return role === 'prefill' || numThere === prompts.length ? ours.find(({ running }) => running > 0) : undefined;
    });
    const network = new GrpcNetwork(token, systemClock);
    await askOnce(network, node.address, 'drain', {}, patientCall);
    network.close();
    for (const { choices } of await answers) expect(choices[0]?.token_ids).toHaveLength(400);
    await until('it has left and another life has begun', async () =>
      (await up.pool()).some(({ name, epoch }) => name === node.name && epoch !== node.epoch),
    );
    for (const { attempts } of await up.requests(6)) expect(attempts, JSON.stringify(attempts)).toHaveLength(1);
  },
);

test('failover keeps stop strings, log-probabilities and biases as they were', async () => {
  cluster = await Cluster.up('--prefill', '0', '--decode', '2', '--store', '0');
  const up = cluster;
  const ask = async (): Promise<unknown> => {
    const response = await fetch(`${up.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        prompt: 'Nadia likes figs. Nadia',
        max_tokens: 1_900,
        temperature: 1.2,
        seed: 11,
        ignore_eos: true,
        logprobs: 3,
        logit_bias: { '300': 4, '301': -100 },
        frequency_penalty: 0.3,
        stream: true,
        stop: ['never in this text', 'zzzzqq'],
        return_token_ids: true,
      }),
    });
    const events: unknown[] = [];
    for await (const event of eventsOf(response)) events.push(event.choices?.[0]);
    return events;
  };
  const want = await ask();
  const { answer, victim } = await stoppedIn(up, 'answer', ask);
  up.kill(victim);
  assert.deepEqual(await answer, want);
  const [view] = await up.requests(1);
  expect(view?.attempts.length).toBeGreaterThan(1);
});
