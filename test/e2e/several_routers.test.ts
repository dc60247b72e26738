/**
 * `penstock up --router 2`: two routers over a nats-server that `up` starts, or over servers of --bus. One of them, or the bus, is killed while
 * streams run; the end of `up` is the end of all. Budget: 90 s.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Cluster, runToEnd, temporaryFolder } from '../support/cluster.ts';
import { freePort, freePortRow } from '../support/free_ports.ts';
import { NatsServer, pathWithNats } from '../support/nats_server.ts';
import { settledRequests } from '../support/stopped_in.ts';
import { NEVER_SILENT, until } from '../support/until.ts';

/** Tokens of a stream: many, so that it is in its middle when something is killed. */
const MAX_TOKENS = 1_500;
/** Times that streams are begun, at most, until the instance is stopped while both run. */
const ROUNDS = 10;
const BODY = {
  model: 'harbour',
  prompt: Array.from({ length: 40 }, (_, i) => 3 + ((i * 31) % 1_500)),
  max_tokens: MAX_TOKENS,
  temperature: 0,
  ignore_eos: true,
} as const;

const folder = temporaryFolder();
const auditOf = (router: string): string => join(folder.path, `audit.${router}.jsonl`);

/** The cluster as each of its two routers sees it. */
let seen: readonly [Cluster, Cluster];
/** Text of the answer to BODY. */
let want = '';

beforeAll(async () => {
  process.env['PATH'] = pathWithNats;
  const bind = `127.0.0.1:${await freePortRow(2)}`;
  const audit = join(folder.path, 'audit.jsonl');
  const flags = ['--router', '2', '--bind', bind, '--audit-log', audit, '--strict-roles', '--store', '0'];
  const cluster = await Cluster.up(...flags, ...NEVER_SILENT);
  seen = [cluster.seenBy(0), cluster.seenBy(1)];
  want = await answerOf(seen[0]);
});

afterAll(async () => {
  await seen[0].close();
  folder.remove();
});

function clientOf({ url }: Cluster): OpenAI {
  return new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
}

async function answerOf(router: Cluster): Promise<string> {
  const { choices } = await clientOf(router).completions.create(BODY);
  return choices[0]?.text ?? '';
}

/** Starts a stream; `begun` resolves with its first event, `text` with all of its text. */
function streamAt(router: Cluster): { begun: Promise<void>; text: Promise<string> } {
  let begin: () => void = () => undefined;
  const begun = new Promise<void>((resolve) => (begin = resolve));
  const read = async (): Promise<string> => {
    let text = '';
    for await (const { choices } of await clientOf(router).completions.create({ ...BODY, stream: true })) {
      text += choices[0]?.text ?? '';
      begin();
    }
    return text;
  };
  const text = read();
  text.catch(() => undefined);
  return { begun, text };
}

/** Starts a stream at each router, and stops the instance that generates both while they run. */
async function standingStreams(): Promise<readonly [Promise<string>, Promise<string>]> {
  for (let round = 0; round < ROUNDS; round++) {
    const streams = [streamAt(seen[0]), streamAt(seen[1])] as const;
    await Promise.all(streams.map(({ begun }) => begun));
    seen[0].kill('decode-1', 'SIGSTOP');
    const views = await Promise.all(seen.map((router) => settledRequests(router, () => true)));
    if (views.every(([newest]) => newest?.phase === 'decoding')) return [streams[0].text, streams[1].text];
    seen[0].kill('decode-1', 'SIGCONT');
    await Promise.all(streams.map(({ text }) => text));
  }
  return assert.fail(`${ROUNDS} times a stream had ended before its instance was stopped`);
}

/** Waits until both routers are connected to the bus and see each other and both instances. */
async function whole(): Promise<void> {
  for (const [i, router] of seen.entries())
    await until(`router-${i + 1} sees all`, async () => {
      const response = await fetch(`${router.url}/api/pool`).catch(() => undefined);
      if (response?.ok !== true) return false;
      const {
        bus,
        other_routers: others,
        nodes,
      } = (await response.json()) as Record<string, unknown> & {
        bus: { connected: boolean };
        other_routers: string[];
        nodes: { role: string; state: string }[];
      };
      const alive = nodes.filter(({ role, state }) => role !== 'router' && state === 'alive');
      return bus.connected && others.includes(`router-${2 - i}`) && alive.length === 2;
    });
}

/** Whether a process runs: one whose parent was killed may stay in the list of processes after its end, until somebody asks for its exit code. */
function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return process.platform !== 'linux' || !/^\d+ \(.*\) Z /s.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

function lineOf(text: string): string | undefined {
  return seen[0].errors.find((line) => line.startsWith(text));
}

test('both routers answer alike, at --bind and the next port, and each has an audit log of its own', async () => {
  const [first, second] = seen.map(({ url }) => Number(new URL(url).port));
  expect(second).toBe((first ?? 0) + 1);
  await whole();
  expect(await answerOf(seen[1])).toBe(want);
  const numLines = (router: string): number => {
    const text = existsSync(auditOf(router)) ? readFileSync(auditOf(router), 'utf8') : '';
    return text.split('\n').filter((line) => line.includes('/v1/completions')).length;
  };
  for (const router of ['router-1', 'router-2'])
    await until(`the log of ${router} has its request`, () => numLines(router) === 1);
});

test('`penstock policy` of the same user finds the token by the address of a hub', async () => {
  const { code, output, errors } = await runToEnd(['policy', '--json', '--router', seen[0].hub]);
  assert.equal(code, 0, errors);
  expect(JSON.parse(output)).toMatchObject({ name: 'auto' });
});

test('nobody without its token uses the nats-server, which listens on loopback only', async () => {
  const address = /nats:\/\/127\.0\.0\.1:\d+/.exec(lineOf('nats-server started') ?? '')?.[0];
  assert(address);
  const { code, errors } = await runToEnd(['store', '--bus', address, '--data-dir', join(folder.path, 'thief')]);
  assert.equal(code, 1);
  assert.match(errors, /refuses this process/);
});

test('a router is killed while streams run: that of the other goes on, and the killed one is back at its address', async () => {
  const [stays, breaks] = await standingStreams();
  seen[0].kill('router-2', 'SIGKILL');
  await assert.rejects(breaks);
  await until('router-2 is back', () => lineOf('router-2 is back'));
  seen[0].kill('decode-1', 'SIGCONT');
  expect(await stays).toBe(want);
  await whole();
  expect(lineOf('router-2 is back')).toContain(seen[1].url);
  expect(await answerOf(seen[1])).toBe(want);
  for (const router of seen) await router.idle();
});

test('the nats-server is killed while streams run: they go on, and it is back at its address', async () => {
  const streams = await standingStreams();
  const address = /nats:\S+(?=,)/.exec(lineOf('nats-server started') ?? '')?.[0] ?? '';
  seen[0].kill('nats-server', 'SIGKILL');
  await until('it is back', () => lineOf('nats-server is back'));
  seen[0].kill('decode-1', 'SIGCONT');
  expect(await Promise.all(streams)).toEqual([want, want]);
  expect(lineOf('nats-server is back')).toContain(address);
  await whole();
});

// Elsewhere there is no /proc to find its parent in.
test.runIf(process.platform === 'linux')(
  'the process that runs the nats-server is killed: both begin anew',
  async () => {
    const server = seen[0].pidOf('nats-server');
    const parent = Number(/^\d+ \(.*\) \S+ (\d+) /s.exec(readFileSync(`/proc/${server}/stat`, 'utf8'))?.[1]);
    process.kill(parent, 'SIGKILL');
    await until('another one is there', () => seen[0].pidOf('nats-server') !== server);
    await until('the one before has ended', () => !isRunning(server));
    await whole();
  },
);

test('SIGTERM: streams of both routers end as they should, then every process', async () => {
  const names = ['router-1', 'router-2', 'prefill-1', 'decode-1', 'nats-server'];
  const pids = names.map((name) => seen[0].pidOf(name));
  const streams = seen.map(streamAt);
  await Promise.all(streams.map(({ begun }) => begun));
  await seen[0].close();
  expect(await Promise.all(streams.map(({ text }) => text))).toEqual([want, want]);
  expect(pids.filter(isRunning)).toEqual([]);
});

test('`up` is killed: every process ends, the nats-server too', async () => {
  const up = await Cluster.up('--router', '2', '--prefill', '0', '--store', '0');
  const pids = ['router-1', 'router-2', 'decode-1', 'nats-server'].map((name) => up.pidOf(name));
  await up.crash();
  await until('all have ended', () => !pids.some(isRunning));
  await up.close();
});

test('servers of --bus are used with their account, and none is started', async () => {
  const nats = await NatsServer.start('authorization { token: "of-this-test" }');
  const flags = ['--router', '2', '--prefill', '0', '--store', '0', '--bus', nats.url];
  await assert.rejects(
    Cluster.up(...flags, '--bus-token', 'guessed'),
    /no server of --bus nats:\S+ takes a connection: .*Authorization Violation.*; start it, correct --bus/,
  );
  const up = await Cluster.up(...flags, '--bus-token', 'of-this-test');
  expect(up.errors.filter((line) => line.startsWith('nats-server'))).toEqual([]);
  expect(await answerOf(up.seenBy(0))).toBe(await answerOf(up.seenBy(1)));
  await up.close();
  await nats.close();
});

test('what is refused, with what to do', async () => {
  const closed = `nats://127.0.0.1:${await freePort()}`;
  const cases: [string[], RegExp][] = [
    [['--router', '0'], /--router: "0" is not allowed: .*>=1/],
    [['--router', '33'], /--router: "33" is not allowed: .*<=32/],
    [['--router', '2', '--bus', closed], /no server of --bus nats:\S+ takes a connection: .*REFUSED; start it/],
    [['--router', '2', '--bus-user', 'ada'], /--bus-user is for NATS servers, and none is named: add --bus/],
    [['--router', '2', '--bind', '127.0.0.1:65535'], /2 routers find no free ports from there on: name a lower one/],
  ];
  for (const [args, pattern] of cases) {
    const { code, errors } = await runToEnd(['up', ...args]);
    expect(code).toBeGreaterThan(0);
    assert.match(errors, pattern);
  }
  const { code, errors } = await runToEnd(['up', '--router', '2'], { PATH: folder.path });
  assert.equal(code, 2);
  assert.match(errors, /there is no nats-server in the PATH: install it .*, or name NATS servers with --bus nats:/);
});
