/**
 * Two routers on a real nats-server serve HTTPS while their file of keys and their certificate change again and again, under 16 clients that stream
 * without a pause: no request of a key that is valid fails. A key that is removed is refused at both; its open streams end as --revoke says.
 * How soon a change is seen is in cli/watched_files. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { connect } from 'node:tls';
import { Agent, fetch as undiciFetch, type Response } from 'undici';
import { afterAll, beforeAll, test } from 'vitest';
import { keyDigest, keyTextOf } from '../../shared/base/client_keys.ts';
import type { ServerTexts } from '../../shared/net/tls_texts.ts';
import { Authority } from '../support/certificates.ts';
import { harbour, run, temporaryFolder } from '../support/cluster.ts';
import { sized } from '../support/long.ts';
import { NatsServer } from '../support/nats_server.ts';
import { projectPath } from '../support/project.ts';
import { NEVER_SILENT, until } from '../support/until.ts';

const NUM_CLIENTS = 16;
/** Changes of both files while clients stream. */
const NUM_ROUNDS = sized(12, 4);
/** Tokens of each stream. */
const NUM_TOKENS = 24;
/** Its instance alone is stopped while streams are to stay open: they can end in no other way than by their key. */
const HELD_MODEL = 'harbour-tools';

const token = { PENSTOCK_CLUSTER_TOKEN: 'a-secret-of-this-test' };
const authority = new Authority();
const folder = temporaryFolder();
const at = (name: string): string => join(folder.path, name);
const { ca, ...first } = authority.issue('first');
/** A connection for each request, so that each meets the certificate of its time. */
const anew = new Agent({ connect: { ca }, pipelining: 0 });
const children = new Map<string, ChildProcess>();
let nats: NatsServer;

/** Keys by name: those of the clients, and one that each round brings and takes away. */
const keyOf = (name: string): string => keyTextOf(Buffer.alloc(32, name));
const lasting = Array.from({ length: NUM_CLIENTS }, (_, i) => `client-${i}`);

/** Puts a file in the place of another at once. */
function replace(name: string, held: string): void {
  writeFileSync(at(`${name}.new`), held);
  renameSync(at(`${name}.new`), at(name));
}

/** `round`: raises the limits of all tenants, so that entries of clients change, too. */
function writeKeys(names: readonly string[], round = 0): void {
  const limits = { requests_in_flight: 2 * NUM_CLIENTS + round, samples: 1 + round };
  const entries = names.map((name, i) => {
    const sha256 = keyDigest(keyOf(name)).toString('hex');
    return { name, sha256, tenant: `tenant-${i % 4}`, limits };
  });
  replace('keys.yaml', JSON.stringify(entries));
}

function writeCertificate({ cert, key }: ServerTexts): void {
  replace('https.key', key);
  replace('https.crt', cert);
}

async function start(role: string, name: string, ...more: string[]): Promise<string> {
  const common = ['--name', name, '--bus', nats.url, '--log-level', 'error'];
  const child = run([role, ...common, ...more], token);
  children.set(name, child);
  assert(child.stdout && child.stderr);
  child.stderr.resume();
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string];
  return /(https:\/\/127\.0\.0\.1:\d+)/.exec(line)?.[1] ?? '';
}

interface Router {
  readonly url: string;
  readonly revoke: 'finish' | 'abort';
}
let routers: readonly Router[];

beforeAll(async () => {
  nats = await NatsServer.start();
  writeKeys(lasting);
  writeCertificate(first);
  const models = [harbour, projectPath(`config/models/${HELD_MODEL}`)];
  const files = ['--keys', at('keys.yaml'), '--https-cert', at('https.crt'), '--https-key', at('https.key')];
  const bound = ['--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0', '--model', models.join(',')];
  const startRouter = async (revoke: Router['revoke']): Promise<Router> => {
    // Headers of a stream whose instance is stopped come with the first comment.
    // eslint-disable-next-line time/speed -- how soon they come, nothing depends on it
    const own = [...NEVER_SILENT, '--sse-keep-alive-ms', '100', '--revoke', revoke];
    return { revoke, url: await start('router', `router-${revoke}`, ...bound, ...own, ...files) };
  };
  const instances = models.map((model, i) => start('decode', `decode-${i + 1}`, '--model', model, '--threads', '1'));
  routers = await Promise.all([startRouter('finish'), startRouter('abort')]);
  await Promise.all(instances);
  for (const { url } of routers)
    for (const model of ['harbour', HELD_MODEL])
      await until(`${url} serves ${model}`, async () =>
        (await stream(url, 'client-0', model, [5, 6])).text.includes('[DONE]'),
      );
});

afterAll(async () => {
  for (const child of children.values()) {
    if (child.exitCode !== null) continue;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }
  await nats.close();
  await anew.close();
  authority.remove();
  folder.remove();
});

function ask(url: string, name: string, path: string, body?: object): Promise<Response> {
  const headers = { authorization: `Bearer ${keyOf(name)}`, 'content-type': 'application/json' };
  const sent = body ? { method: 'POST', body: JSON.stringify(body) } : {};
  return undiciFetch(`${url}${path}`, { ...sent, headers, dispatcher: anew });
}

interface Answered {
  readonly status: number;
  readonly text: string;
}

/** Sends a stream's request; resolves at its end. `onBegin` is called when its headers have come. */
async function stream(
  url: string,
  name: string,
  model: string,
  prompt: readonly number[],
  onBegin: () => void = () => undefined,
): Promise<Answered> {
  const more = { stream: true, stream_options: { include_usage: true }, ignore_eos: true };
  const answer = await ask(url, name, '/v1/completions', { model, prompt, max_tokens: NUM_TOKENS, ...more });
  onBegin();
  return { status: answer.status, text: await answer.text() };
}

function assertWhole({ status, text }: Answered): void {
  assert.equal(status, 200, text);
  assert(text.includes(`"completion_tokens":${NUM_TOKENS}`) && text.endsWith('data: [DONE]\n\n'), text);
}

const isTaken = async ({ url }: Router, name: string): Promise<boolean> => {
  const { status, body } = await ask(url, name, '/v1/models');
  await body?.cancel();
  assert(status === 200 || status === 401, `status ${status}`);
  return status === 200;
};

async function shownBy({ url }: Router): Promise<string | undefined> {
  const socket = connect({ host: '127.0.0.1', port: Number(new URL(url).port), ca });
  await once(socket, 'secureConnect');
  const subject = socket.getPeerX509Certificate()?.subject;
  socket.destroy();
  return subject;
}

/** Clients that stream over the routers in turn, each with its own key, until they are ended; the first failure ends them, too. */
class Clients {
  readonly #working: Promise<unknown>;
  readonly #numServed = new Map<string, number>();
  #isOver = false;
  #failed: unknown;

  constructor() {
    const clients = lasting.map((name, i) => this.#work(name, i));
    this.#working = Promise.all(clients).catch((error: unknown) => {
      [this.#isOver, this.#failed] = [true, error];
    });
  }

  async #work(name: string, client: number): Promise<void> {
    for (let turn = client; !this.#isOver; turn++) {
      const { url } = routers[turn % routers.length]!;
      assertWhole(await stream(url, name, 'harbour', [5, 6, 7 + client, 30 + (turn % 200)]));
      this.#numServed.set(url, this.numServedBy(url) + 1);
    }
  }

  numServedBy(url: string): number {
    return this.#numServed.get(url) ?? 0;
  }

  /** Resolves when each router has ended more streams than clients: one of them at least began after the call. @throws the first failure */
  async goOn(): Promise<void> {
    const before = routers.map(({ url }) => this.numServedBy(url));
    await until('streams go on at both routers', () => {
      if (this.#failed) throw this.#failed as Error;
      return routers.every(({ url }, i) => this.numServedBy(url) > before[i]! + NUM_CLIENTS);
    });
  }

  /** @throws the first failure */
  async end(): Promise<void> {
    this.#isOver = true;
    await this.#working;
    if (this.#failed) throw this.#failed as Error;
  }
}

interface Open {
  readonly router: Router;
  readonly answer: Promise<Answered>;
}

/** Opens a stream of this key at each router, to an instance that is stopped. */
function openStreams(name: string): Promise<readonly Open[]> {
  return Promise.all(
    routers.map(async (router, i): Promise<Open> => {
      let answer: Promise<Answered> | undefined;
      await new Promise<void>((resolve, reject) => {
        answer = stream(router.url, name, HELD_MODEL, [9, 10, 11 + i], resolve);
        answer.catch(reject);
      });
      assert(answer);
      return { router, answer };
    }),
  );
}

test('keys and certificates change under 16 clients over two routers: none of them fails, and a key that is removed is refused at both', async () => {
  const held = children.get('decode-2');
  const clients = new Clients();
  await clients.goOn();
  for (let round = 0; round < NUM_ROUNDS; round++) {
    const guest = `guest-${round}`;
    writeKeys([...lasting, guest], round);
    writeCertificate(authority.issue(`round-${round}`));
    for (const router of routers) {
      await until('the new key is taken', () => isTaken(router, guest));
      await until('the new certificate is shown', async () => (await shownBy(router)) === `CN=round-${round}`);
    }
    held?.kill('SIGSTOP');
    const open = await openStreams(guest);
    writeKeys(lasting, round);
    for (const router of routers) await until('the key is refused', async () => !(await isTaken(router, guest)));
    for (const { router, answer } of open) {
      if (router.revoke !== 'abort') continue;
      const { status, text } = await answer;
      assert.deepEqual([status, text.includes('[DONE]')], [200, false], text);
      assert.match(text, /data: \{.*invalid_api_key/, text);
    }
    held?.kill('SIGCONT');
    for (const { router, answer } of open) if (router.revoke === 'finish') assertWhole(await answer);
    await clients.goOn();
  }
  await clients.end();
});
