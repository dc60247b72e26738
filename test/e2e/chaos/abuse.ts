/**
 * Abuses by one client, by name, each run alongside a stream of another client, whose key is another tenant's where keys are asked for; reports
 * the worst gap of that stream.
 */
import assert from 'node:assert/strict';
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Cluster } from '../../support/cluster.ts';
import { projectPath } from '../../support/project.ts';
import { until } from '../../support/until.ts';
import type { ControlReport } from './control.ts';

/** Numbers of the clients, which pick their keys. */
const [ABUSER, CONTROL] = [0, 1] as const;

interface Reply {
  readonly status: number;
  readonly text: string;
}

async function post(cluster: Cluster, path: string, body: string): Promise<Reply> {
  try {
    const response = await fetch(`${cluster.url}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...cluster.clientHeaders(ABUSER) },
      body,
    });
    return { status: response.status, text: await response.text() };
  } catch (error) {
    // A body over its limit is answered before it has all been sent; some clients see the reset first.
    return { status: 0, text: String(error) };
  }
}

function isOneOf(reply: Reply, ...statuses: number[]): void {
  assert(statuses.includes(reply.status), `${reply.status}: ${reply.text.slice(0, 300)}`);
  if (reply.status >= 400) assert(reply.text.includes('"error"'), reply.text.slice(0, 300));
}

/** A raw connection that has sent `head`. */
async function raw(cluster: Cluster, head: string): Promise<Socket> {
  const { hostname, port } = new URL(cluster.url);
  const socket = connect({ host: hostname, port: Number(port), allowHalfOpen: true });
  socket.on('error', () => undefined);
  await new Promise((resolve) => socket.once('connect', resolve));
  socket.write(head);
  return socket;
}

function httpPost(cluster: Cluster, path: string, length: number): string {
  const headers = { host: 'x', 'content-type': 'application/json', ...cluster.clientHeaders(ABUSER) };
  const lines = Object.entries({ ...headers, 'content-length': length }).map(
    ([name, value]) => `${name}: ${value}\r\n`,
  );
  return `POST ${path} HTTP/1.1\r\n${lines.join('')}\r\n`;
}

/** The interval of the timer that prom-client measures with, which its figures contain. */
const LAG_TIMER_MS = 10;
const JUST_UNDER = 4_000_000;
const repeated = (unit: string, bytes = JUST_UNDER): string => unit.repeat(Math.floor(bytes / unit.length));

export const abuses: Readonly<Record<string, (cluster: Cluster) => Promise<void>>> = {
  '15 million ids': async (cluster) => {
    isOneOf(await post(cluster, '/v1/completions', `{"prompt":[${'1,'.repeat(15_000_000)}1]}`), 413, 0);
  },
  'as many ids as a body may hold': async (cluster) => {
    isOneOf(await post(cluster, '/v1/completions', `{"prompt":[${repeated('1,')}1]}`), 400);
  },
  'lists of lists': async (cluster) => {
    isOneOf(await post(cluster, '/v1/completions', `{"prompt":[${repeated('[1],')}[1]]}`), 400);
  },
  'many empty messages': async (cluster) => {
    const messages = repeated('{"role":"user","content":""},');
    isOneOf(
      await post(cluster, '/v1/chat/completions', `{"messages":[${messages}{"role":"user","content":"x"}]}`),
      400,
    );
  },
  'as many messages as the context has tokens': async (cluster) => {
    const messages = '{"role":"user","content":""},'.repeat(2_047);
    isOneOf(
      await post(cluster, '/v1/chat/completions', `{"messages":[${messages}{"role":"user","content":"x"}]}`),
      400,
    );
  },
  '300,000 keys': async (cluster) => {
    const keys = Array.from({ length: 300_000 }, (_, i) => `"k${i}":0`).join();
    isOneOf(await post(cluster, '/v1/completions', `{"prompt":"x",${keys}}`), 400);
  },
  '300,000 biases': async (cluster) => {
    const keys = Array.from({ length: 300_000 }, (_, i) => `"${i}":0`).join();
    isOneOf(await post(cluster, '/v1/completions', `{"prompt":"x","logit_bias":{${keys}}}`), 400);
  },
  'nested 10,000 deep': async (cluster) => {
    isOneOf(await post(cluster, '/v1/completions', `{"prompt":${'['.repeat(10_000)}${']'.repeat(10_000)}}`), 400);
    isOneOf(await post(cluster, '/v1/chat/completions', `{"tools":${'['.repeat(10_000)}${']'.repeat(10_000)}}`), 400);
  },
  'a long text to /tokenize, forty times': async (cluster) => {
    const body = JSON.stringify({ prompt: 'ab'.repeat(13_000) });
    const replies = await Promise.all(Array.from({ length: 40 }, () => post(cluster, '/tokenize', body)));
    for (const reply of replies) isOneOf(reply, 200);
  },
  'a text that cannot fit to /tokenize': async (cluster) => {
    isOneOf(await post(cluster, '/tokenize', JSON.stringify({ prompt: repeated('a') })), 400);
  },
  'millions of ids to /detokenize': async (cluster) => {
    isOneOf(await post(cluster, '/detokenize', `{"tokens":[${repeated('1,')}1]}`), 400);
    isOneOf(await post(cluster, '/detokenize', `{"tokens":[${repeated('1,', 24_000_000)}1]}`), 413, 0);
  },
  'log-probabilities of every token, twenty each': async (cluster) => {
    const prompt = Array.from({ length: 20 }, (_, i) => 100 + i);
    const body = { prompt, max_tokens: 2_000, logprobs: 20, ignore_eos: true, temperature: 2 };
    isOneOf(await post(cluster, '/v1/completions', JSON.stringify(body)), 200);
  },
  'tokens without text': async (cluster) => {
    // The first special tokens: skipped in text.
    const body = {
      prompt: [5],
      max_tokens: 2_000,
      ignore_eos: true,
      logit_bias: { '0': 100, '1': 100 },
      temperature: 2,
    };
    isOneOf(await post(cluster, '/v1/completions', JSON.stringify(body)), 200);
  },
  'a client that half-closes': async (cluster) => {
    const body = JSON.stringify({ prompt: [5, 6, 7], max_tokens: 400, ignore_eos: true });
    const socket = await raw(cluster, httpPost(cluster, '/v1/completions', Buffer.byteLength(body)) + body);
    socket.end();
    let text = '';
    for await (const chunk of socket) text += String(chunk);
    assert.match(text, /HTTP\/1\.1 200 OK[^]*"finish_reason":"length"/);
  },
  'a hundred bodies that dribble': async (cluster) => {
    const sockets = await Promise.all(
      Array.from({ length: 100 }, () => raw(cluster, `${httpPost(cluster, '/v1/completions', 100_000)}{"prompt":"`)),
    );
    for (const socket of sockets) socket.resume();
    // eslint-disable-next-line time/speed -- the pace at which they dribble
    const dribbling = setInterval(() => {
      for (const socket of sockets) socket.write('a');
    }, 200);
    try {
      await until('the router has ended all of them', () => sockets.every((socket) => socket.closed));
    } finally {
      clearInterval(dribbling);
      for (const socket of sockets) socket.destroy();
    }
  },
  'readers that stop': async (cluster) => {
    const body = JSON.stringify({ prompt: [5, 6, 7], max_tokens: 2_000, ignore_eos: true, stream: true, logprobs: 20 });
    const sockets = await Promise.all(
      Array.from({ length: 4 }, async () => {
        const socket = await raw(cluster, httpPost(cluster, '/v1/completions', Buffer.byteLength(body)) + body);
        socket.pause();
        return socket;
      }),
    );
    // eslint-disable-next-line time/speed -- they stop reading for so long, the stream alongside them goes on
    await sleep(3_000);
    for (const socket of sockets) socket.destroy();
  },
  'batches that are refused at their last prompt': async (cluster) => {
    const prompt = [...Array.from({ length: 200 }, () => [5, 6]), Array.from({ length: 2_048 }, () => 5)];
    for (let i = 0; i < 20; i++) {
      isOneOf(await post(cluster, '/v1/completions', JSON.stringify({ prompt, max_tokens: 4 })), 400);
    }
  },
  'clients that leave': async (cluster) => {
    const body = JSON.stringify({ prompt: 'ab'.repeat(13_000) });
    // Connections of their own: an aborted fetch leaves unused ones in its pool, which the router ends while others take them.
    await Promise.all(
      Array.from({ length: 30 }, async (_, i) => {
        const socket = await raw(cluster, httpPost(cluster, '/tokenize', Buffer.byteLength(body)) + body);
        socket.resume();
        // eslint-disable-next-line time/speed -- each leaves at another moment
        await sleep(10 * i);
        socket.destroy();
      }),
    );
  },
};

export interface AbuseReport extends ControlReport {
  /** The longest that the router's event loop was away, as its own timer of 10 ms sees it. */
  readonly loopLagMs: number;
}

/** Runs one alongside a stream that lasts at least as long. */
export async function runAbuse(cluster: Cluster, abuse: (cluster: Cluster) => Promise<void>): Promise<AbuseReport> {
  const control = fork(projectPath('dist/test/e2e/chaos/control.js'), [
    cluster.url,
    JSON.stringify(cluster.clientHeaders(CONTROL)),
  ]);
  try {
    const [begun] = (await once(control, 'message')) as ['begun' | ControlReport];
    // One that failed at once has said all.
    if (begun !== 'begun') return { ...begun, loopLagMs: 0 };
    await takeLoopLagMs(cluster);
    await abuse(cluster);
    const loopLagMs = await takeLoopLagMs(cluster);
    control.send('stop');
    const [report] = (await once(control, 'message')) as [ControlReport];
    return { ...report, loopLagMs };
  } finally {
    control.kill();
  }
}

/** Since it was asked last. */
async function takeLoopLagMs(cluster: Cluster): Promise<number> {
  const text = await (await fetch(`${cluster.url}/metrics`, { headers: cluster.headers })).text();
  const [, seconds] = /^nodejs_eventloop_lag_max_seconds\S* (\S+)$/m.exec(text) ?? [];
  return Math.max(0, Number(seconds) * 1_000 - LAG_TIMER_MS);
}
